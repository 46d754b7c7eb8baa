// Writes a data set of our shards (shard_format.h). A shard appears under its name when it is whole: whoever
// is killed leaves whole shards, and who goes on after them writes the same bytes as somebody who was never
// stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pom/data/shard_format.h"

namespace pom::data {

// Which shards of a data set a writer makes: `most` of them from number `first` on. Machines that share the
// work take a range each, and leave what one alone would have left.
struct ShardRange {
  std::int64_t first = 0, most = std::int64_t{1} << 40;
};

// ShardWriter writer("latents", "train", info, 1000);
// for (auto i = writer.samples(); …; ++i) writer.add(sample i);
// writer.finish();
//
// Shards that are there already count as written: samples() says how many samples they have, shards() how
// many they are. What they were begun with is in NAME.unfinished.json (of parts, in INDEX.unfinished.json);
// going on with another `info` is an error. Not for two threads at once, nor for two writers of one name and
// range.
class ShardWriter {
 public:
  // `per_shard` samples make a shard; with 0 a shard ends where the caller says so (end_shard), and there may
  // be any number in it, also none. `index` is the name of the file that finish() writes: parts of a data set
  // that is joined later have names of their own.
  ShardWriter(std::filesystem::path folder, std::string name, ShardSetInfo info, std::int64_t per_shard,
              std::string index = std::string(shard_set_file), ShardRange range = {});
  ~ShardWriter();

  void add(const ShardSample& sample);
  void end_shard();
  // The last shard, and dataset.json; then the data set is whole.
  void finish();

  std::int64_t samples() const;  // in whole shards
  std::int64_t shards() const;   // whole ones
  bool finished() const;         // finish() has been called, here or before
  const ShardSetInfo& info() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "train-000012.tar"
std::string shard_name(const std::string& name, std::int64_t number);

}  // namespace pom::data
