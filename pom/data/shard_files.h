// Samples in tars by their number. Where they lie in a shard is found when it is first asked for, once; few
// files are open at a time. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pom/io/tar.h"

namespace pom::data {

struct ShardFile {
  std::string name;        // within the folder
  std::int64_t count = 0;  // samples
  std::int64_t bytes = 0;  // 0: nobody has said
};

enum class ShardUnit {
  samples,  // members of one key, as WebDataset has them
  members,  // each file
};

// Shards that are missing or cut off are errors when it is made; what is wrong within one, when that is read.
class ShardFiles {
 public:
  ShardFiles(std::filesystem::path folder, std::vector<ShardFile> files, ShardUnit unit);

  std::int64_t size() const { return first_.back(); }
  std::vector<std::int64_t> counts() const;

  struct Place {
    std::size_t shard;
    std::int64_t number;  // within it
  };
  Place place_of(std::int64_t index) const;

  // All of a sample's members, from one read; from many threads.
  struct Bytes {
    std::string bytes;
    std::uint64_t begin;  // of the shard
    std::string site;     // "shards: path"
  };
  Bytes read(std::int64_t index) const;
  std::string name_of(std::int64_t index) const;  // "path, sample 17"

 private:
  using Offsets = std::vector<std::uint64_t>;  // where samples begin and the last ends
  struct Shard {
    std::mutex mutex;
    std::shared_ptr<const Offsets> offsets;
    std::string error;  // why there are none
  };

  std::filesystem::path path_of(std::size_t shard) const { return folder_ / files_[shard].name; }
  void check_file(std::size_t shard) const;
  std::shared_ptr<const Offsets> offsets_of(std::size_t shard) const;
  Offsets listed(std::size_t shard) const;
  bool read_index(std::size_t shard, Offsets& offsets) const;
  std::shared_ptr<const io::TarReader> opened(std::size_t shard) const;

  std::filesystem::path folder_;
  std::vector<ShardFile> files_;
  std::vector<std::int64_t> first_;  // number of each shard's first sample, and of all
  ShardUnit unit_;
  std::unique_ptr<Shard[]> shards_;

  struct Opened {
    std::size_t shard;
    std::shared_ptr<const io::TarReader> tar;
  };
  mutable std::mutex mutex_;
  mutable std::list<Opened> open_;  // the one used last is first
};

}  // namespace pom::data
