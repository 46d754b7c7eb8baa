#include "pom/data/shard_files.h"

#include <algorithm>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/shard_format.h"
#include "pom/io/webdataset.h"

namespace pom::data {
namespace {

constexpr std::size_t most_open = 64;
constexpr std::uint64_t most_sample_bytes = std::uint64_t{1} << 30;

std::uint64_t to_block(std::uint64_t bytes) {
  return (bytes + io::tar_block - 1) / io::tar_block * io::tar_block;
}

}  // namespace

ShardFiles::ShardFiles(std::filesystem::path folder, std::vector<ShardFile> files, ShardUnit unit)
    : folder_(std::move(folder)),
      files_(std::move(files)),
      first_(1, 0),
      unit_(unit),
      shards_(std::make_unique<Shard[]>(files_.size())) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    check(files_[i].count >= 0 && files_[i].count < (std::int64_t{1} << 40), "shards: ", path_of(i).string(),
          ": expected a number of samples, got ", files_[i].count);
    check_file(i);
    first_.push_back(first_.back() + files_[i].count);
  }
}

// Its length, or the zeros at its end: that much of all shards is looked at before a training begins.
void ShardFiles::check_file(std::size_t shard) const {
  const io::TarReader tar(path_of(shard));
  const std::string site = "shards: " + path_of(shard).string();
  const std::uint64_t bytes = tar.bytes();
  if (const std::int64_t told = files_[shard].bytes; told > 0)
    check(bytes == static_cast<std::uint64_t>(told), site, ": ",
          bytes < static_cast<std::uint64_t>(told) ? "cut off: " : "", "expected ", told,
          " bytes, as dataset.json says, got ", bytes);
  const bool ended = bytes >= 2 * io::tar_block &&
                     tar.range(bytes - 2 * io::tar_block, bytes).find_first_not_of('\0') == std::string::npos;
  check(ended, site, ": cut off: expected the two blocks of zeros that end a tar, got ",
        bytes >= 2 * io::tar_block ? "others" : "a shorter file");
}

std::vector<std::int64_t> ShardFiles::counts() const {
  std::vector<std::int64_t> counts;
  for (const ShardFile& file : files_) counts.push_back(file.count);
  return counts;
}

ShardFiles::Place ShardFiles::place_of(std::int64_t index) const {
  check(index >= 0 && index < size(), "data: index: expected below ", size(), ", got ", index);
  const auto after = std::ranges::upper_bound(first_, index);
  const auto shard = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {shard, index - first_[shard]};
}

std::string ShardFiles::name_of(std::int64_t index) const {
  const Place place = place_of(index);
  return detail::concat(path_of(place.shard).string(), ", sample ", place.number);
}

std::shared_ptr<const io::TarReader> ShardFiles::opened(std::size_t shard) const {
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(open_, shard, &Opened::shard);
  if (found == open_.end()) {
    open_.push_front({shard, std::make_shared<io::TarReader>(path_of(shard))});
    if (open_.size() > most_open) open_.pop_back();
  } else {
    open_.splice(open_.begin(), open_, found);
  }
  return open_.front().tar;
}

// Our writer's __index__ is the last member: where it begins follows from the number of samples.
bool ShardFiles::read_index(std::size_t shard, Offsets& offsets) const {
  const auto tar = opened(shard);
  const auto count = static_cast<std::uint64_t>(files_[shard].count);
  const std::uint64_t data = 8 * (count + 2), length = io::tar_block + to_block(data),
                      end = 2 * io::tar_block;
  if (tar->bytes() < length + end) return false;
  const std::uint64_t begin = tar->bytes() - end - length;
  const std::string bytes = tar->range(begin, begin + length);
  if (!bytes.starts_with(std::string(shard_index_member) + '\0')) return false;
  auto parsed = parse_shard_index(std::string_view(bytes).substr(io::tar_block, data));
  if (!parsed || parsed->back() != begin) return false;
  offsets = *std::move(parsed);
  return true;
}

ShardFiles::Offsets ShardFiles::listed(std::size_t shard) const {
  Offsets offsets;
  if (unit_ == ShardUnit::samples && read_index(shard, offsets)) return offsets;
  io::TarReader tar(path_of(shard));
  io::WebGrouping grouping(tar.site());
  io::WebSample sample;
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (!offsets.empty()) offsets.pop_back();
    offsets.push_back(begin);
    offsets.push_back(end);
  };
  for (io::TarMember member; tar.next(member);) {
    if (unit_ == ShardUnit::members && member.is_file()) add(member.header, member.next);
    if (unit_ == ShardUnit::samples && grouping.add(std::move(member), sample)) add(sample.begin, sample.end);
  }
  if (unit_ == ShardUnit::samples && grouping.finish(sample)) add(sample.begin, sample.end);
  const std::int64_t found = std::max<std::int64_t>(0, std::ssize(offsets) - 1);
  check(found == files_[shard].count, "shards: ", path_of(shard).string(), ": expected ", files_[shard].count,
        " samples, as the index says, got ", found);
  return offsets;
}

std::shared_ptr<const ShardFiles::Offsets> ShardFiles::offsets_of(std::size_t shard) const {
  Shard& state = shards_[shard];
  const std::lock_guard lock(state.mutex);
  if (!state.offsets && state.error.empty()) {
    try {
      state.offsets = std::make_shared<const Offsets>(listed(shard));
    } catch (const Error& error) {
      state.error = error.what();
    }
  }
  if (!state.offsets) throw Error(state.error);
  return state.offsets;
}

ShardFiles::Bytes ShardFiles::read(std::int64_t index) const {
  const Place place = place_of(index);
  const auto offsets = offsets_of(place.shard);
  const std::uint64_t begin = (*offsets)[static_cast<std::size_t>(place.number)];
  const std::uint64_t end = (*offsets)[static_cast<std::size_t>(place.number) + 1];
  const std::string site = "shards: " + path_of(place.shard).string();
  check(end - begin <= most_sample_bytes, site, ": at byte ", begin, ": expected a sample of at most ",
        most_sample_bytes, " bytes, got ", end - begin);
  return {opened(place.shard)->range(begin, end), begin, site};
}

}  // namespace pom::data
