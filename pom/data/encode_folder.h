// Private to the room: the folder that `pom encode` writes, and how it was begun.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "pom/base/fields.h"
#include "pom/data/shard_writer.h"
#include "pom/io/folder_lock.h"

namespace pom::data {

// encode.json: what else than dataset.json the bytes of the shards depend on. Who goes on must have the same.
struct EncodeRecord {
  std::int64_t items = 0;
  std::string list = {};  // SHA-256 of the source's list
  std::int64_t per_shard = 0, parts = 1, seed = 0;
  std::string stored_dtype = {}, dtype = {}, device = {}, chunks = {};
  std::int64_t batch = 0;  // on a GPU, where sums depend on it

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr double most = 1e15;
    visit(Field{.name = "items", .help = "in the source", .least = 0, .most = most}, items);
    visit(Field{.name = "list", .help = "SHA-256 of their names"}, list);
    visit(Field{.name = "per_shard", .help = "samples of a shard", .least = 1, .most = most}, per_shard);
    visit(Field{.name = "parts", .help = "machines that share the work", .least = 1, .most = most}, parts);
    visit(Field{.name = "seed", .help = "of drawn latents", .least = 0, .most = most}, seed);
    visit(Field{.name = "stored_dtype", .help = "of latents in files"}, stored_dtype);
    visit(Field{.name = "dtype", .help = "of the networks"}, dtype);
    visit(Field{.name = "device", .help = "cpu or cuda"}, device);
    visit(Field{.name = "chunks", .help = "how clips were encoded"}, chunks);
    visit(Field{.name = "batch", .help = "samples at once, on a GPU", .least = 0, .most = most}, batch);
  }
};

class EncodeFolder {
 public:
  static constexpr const char* shards = "latents";  // latents-000000.tar

  EncodeFolder(std::filesystem::path folder, std::int64_t part, std::int64_t parts, ShardRange range);

  const std::filesystem::path& path() const { return folder_; }
  std::string index() const { return index_of(part_); }  // what this part's writer finishes with

  // That the folder is new, or was begun with this record and info; makes it and holds it. With `overwrite`
  // what is finished or was begun otherwise goes first.
  void begin(const EncodeRecord& record, const ShardSetInfo& info, bool overwrite);
  // Whether dataset.json is there; where all parts are and it is not, it becomes theirs. One without a
  // sample is an error.
  bool join();

 private:
  std::string index_of(std::int64_t part) const;
  bool has(const std::string& name) const;
  void remove(const std::string& name);
  void clear();
  std::string difference(const EncodeRecord& record) const;
  std::string difference(const ShardSetInfo& info) const;
  std::string unfinished() const;  // the writer's file

  std::filesystem::path folder_;
  std::int64_t part_, parts_;
  ShardRange range_;
  std::optional<io::FolderLock> lock_, part_lock_;  // the folder's, which parts share, and a part's own
};

}  // namespace pom::data
