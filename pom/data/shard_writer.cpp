#include "pom/data/shard_writer.h"

#include <cstdio>
#include <optional>
#include <system_error>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"
#include "pom/io/webdataset.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

void check_arguments(const std::string& name, std::int64_t per_shard) {
  const bool plain = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
  check(plain, "shards: name: expected the beginning of names of files, got \"", shown(name), "\"");
  check(per_shard >= 0, "shards: samples in a shard: expected at least 0, got ", per_shard);
}

bool exists_already(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  check(!error, "shards: ", path.string(), ": ", error.message());
  return there;
}

// Samples of a whole shard; damage is an error that names it.
std::int64_t samples_in(io::WebShard shard) {
  std::int64_t count = 0;
  for (io::WebSample sample; shard.next(sample);) ++count;
  return count;
}

}  // namespace

std::string shard_name(const std::string& name, std::int64_t number) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "-%06lld.tar", static_cast<long long>(number));
  return name + digits;
}

struct ShardWriter::Impl {
  fs::path folder;
  std::string name, index;
  ShardSetInfo info;  // with the shards that are whole
  std::int64_t per_shard;
  ShardRange range;
  bool finished = false;
  std::optional<io::TarWriter> tar = {};  // the shard that is being written
  std::vector<std::uint64_t> offsets = {};

  fs::path begun() const {
    const std::string stem = index == shard_set_file ? name : fs::path(index).stem().string();
    return folder / (stem + ".unfinished.json");
  }
  std::string shard_number(std::int64_t number) const { return shard_name(name, range.first + number); }
  void begin();
  void take_finished();
  void take_whole_shards();
  void record(std::int64_t count, std::uint64_t bytes);
  void open_shard();
  void close_shard();
};

// What a writer before us has left.
void ShardWriter::Impl::begin() {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "shards: ", folder.string(), ": cannot make the folder: ", error.message());
  if (exists_already(begun())) {
    const ShardSetInfo before = read_shard_set(begun());
    join_shard_sets(std::vector<ShardSetInfo>{info, before});  // or they are of two data sets
    return take_whole_shards();
  }
  if (exists_already(folder / index)) return take_finished();
  const fs::path first = folder / shard_number(0);
  check(range.most == 0 || !exists_already(first), "shards: ", first.string(),
        ": expected no shards of this name, or the ", begun().filename().string(),
        " that they were begun with");
  write_shard_set(begun(), info);
}

void ShardWriter::Impl::take_finished() {
  const ShardSetInfo before = read_shard_set(folder / index);
  join_shard_sets(std::vector<ShardSetInfo>{info, before});
  info = before;
  finished = true;
}

void ShardWriter::Impl::take_whole_shards() {
  for (std::int64_t number = 0; number < range.most; ++number) {
    const fs::path path = folder / shard_number(number);
    if (!exists_already(path)) return;
    io::WebShard shard(path);
    const std::uint64_t bytes = shard.tar().bytes();
    const std::int64_t count = samples_in(std::move(shard));
    // Only the last one has fewer; it comes from a finish() that was interrupted, and is written once more.
    if (per_shard > 0 && count < per_shard) return;
    check(per_shard == 0 || count == per_shard, "shards: ", path.string(), ": expected ", per_shard,
          " samples in a shard, as it is asked for now, got ", count);
    record(count, bytes);
  }
}

void ShardWriter::Impl::record(std::int64_t count, std::uint64_t bytes) {
  info.shard_names.push_back(shard_number(std::ssize(info.shard_names)));
  info.shard_counts.push_back(count);
  info.shard_bytes.push_back(static_cast<std::int64_t>(bytes));
  info.samples += count;
}

void ShardWriter::Impl::open_shard() {
  check(!finished, "shards: ", folder.string(), ": expected no more samples: the data set is finished");
  if (tar) return;
  check(std::ssize(info.shard_names) < range.most, "shards: ", folder.string(), ": expected ", range.most,
        " shards, got more");
  tar.emplace(folder / shard_number(std::ssize(info.shard_names)));
  offsets.clear();
}

void ShardWriter::Impl::close_shard() {
  const auto count = std::ssize(offsets);
  offsets.push_back(tar->bytes());
  tar->add(shard_index_member, shard_index_bytes(offsets));
  tar->finish();
  const std::uint64_t bytes = tar->bytes();
  tar.reset();
  record(count, bytes);
}

ShardWriter::ShardWriter(fs::path folder, std::string name, ShardSetInfo info, std::int64_t per_shard,
                         std::string index, ShardRange range)
    : impl_(
          new Impl{std::move(folder), std::move(name), std::move(index), std::move(info), per_shard, range}) {
  check_arguments(impl_->name, per_shard);
  impl_->info.samples = 0;
  impl_->info.shard_names.clear();
  impl_->info.shard_counts.clear();
  impl_->info.shard_bytes.clear();
  impl_->begin();
}

ShardWriter::~ShardWriter() = default;

void ShardWriter::add(const ShardSample& sample) {
  const std::string bytes = shard_sample_bytes(sample, impl_->info);
  impl_->open_shard();
  impl_->offsets.push_back(impl_->tar->bytes());
  impl_->tar->add_bytes(bytes);
  if (std::ssize(impl_->offsets) == impl_->per_shard) impl_->close_shard();
}

void ShardWriter::end_shard() {
  impl_->open_shard();
  impl_->close_shard();
}

void ShardWriter::finish() {
  if (impl_->finished) return;
  if (impl_->tar) impl_->close_shard();
  write_shard_set(impl_->folder / impl_->index, impl_->info);
  impl_->finished = true;
  std::error_code ignored;
  fs::remove(impl_->begun(), ignored);  // where it stays, the next writer finds all shards whole
}

std::int64_t ShardWriter::samples() const {
  return impl_->info.samples;
}

std::int64_t ShardWriter::shards() const {
  return std::ssize(impl_->info.shard_names);
}

bool ShardWriter::finished() const {
  return impl_->finished;
}

const ShardSetInfo& ShardWriter::info() const {
  return impl_->info;
}

}  // namespace pom::data
