#include "pom/data/encode_folder.h"

#include <system_error>
#include <vector>

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* record_file = "encode.json";

}  // namespace

EncodeFolder::EncodeFolder(fs::path folder, std::int64_t part, std::int64_t parts, ShardRange range)
    : folder_(std::move(folder)), part_(part), parts_(parts), range_(range) {}

std::string EncodeFolder::index_of(std::int64_t part) const {
  return parts_ == 1 ? std::string(shard_set_file)
                     : pom::detail::concat("part-", part, "-of-", parts_, ".json");
}

bool EncodeFolder::has(const std::string& name) const {
  std::error_code error;
  return fs::exists(folder_ / name, error);
}

void EncodeFolder::remove(const std::string& name) {
  std::error_code error;
  fs::remove(folder_ / name, error);
  check(!error, "encode: ", (folder_ / name).string(), ": cannot remove it: ", error.message());
}

// "per_shard: expected 100, as it was begun with, got 50", or nothing.
std::string EncodeFolder::difference(const EncodeRecord& record) const {
  EncodeRecord before, now = record;
  const std::string file = (folder_ / record_file).string();
  io::read_json(io::read_json_text(file), before, file);
  const std::vector<BoundField> old_fields = bind_fields(before), new_fields = bind_fields(now);
  for (std::size_t i = 0; i < old_fields.size(); ++i) {
    const std::string was = io::write_json(std::span(&old_fields[i], 1), io::JsonStyle::line);
    const std::string is = io::write_json(std::span(&new_fields[i], 1), io::JsonStyle::line);
    if (was != is)
      return pom::detail::concat(file, ": expected ", was, ", as the data set was begun, got ", is);
  }
  return {};
}

std::string EncodeFolder::unfinished() const {
  return (parts_ == 1 ? std::string(shards) : fs::path(index()).stem().string()) + ".unfinished.json";
}

std::string EncodeFolder::difference(const ShardSetInfo& info) const {
  for (const std::string& name : {unfinished(), index(), std::string(shard_set_file)})
    if (has(name)) try {
        join_shard_sets(std::vector<ShardSetInfo>{info, read_shard_set(folder_ / name)});
      } catch (const Error& error) {
        return (folder_ / name).string() + ": " + error.what();
      }
  return {};
}

// What says that there is something goes first: who is killed here leaves shards that nobody counts.
void EncodeFolder::clear() {
  std::error_code error;
  remove(std::string(shard_set_file));
  remove(index());
  remove(unfinished());
  if (parts_ == 1) remove(record_file);
  std::vector<std::string> tars;
  const auto own = [&](const std::string& name) {
    if (!name.starts_with(std::string(shards) + "-") || !name.ends_with(".tar")) return false;
    if (parts_ == 1) return true;
    return name >= shard_name(shards, range_.first) && name < shard_name(shards, range_.first + range_.most);
  };
  for (fs::directory_iterator entry(folder_, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    if (const std::string name = entry->path().filename().string(); own(name)) tars.push_back(name);
  check(!error, "encode: ", folder_.string(), ": ", error.message());
  for (const std::string& name : tars) remove(name);
}

void EncodeFolder::begin(const EncodeRecord& record, const ShardSetInfo& info, bool overwrite) {
  std::error_code error;
  fs::create_directories(folder_, error);
  check(!error, "encode: output: ", folder_.string(), ": cannot make the folder: ", error.message());
  using Hold = io::FolderLock::Hold;
  lock_.emplace(folder_, parts_ == 1 ? Hold::exclusive : Hold::shared);
  if (parts_ > 1) part_lock_.emplace(folder_, Hold::exclusive, fs::path(index()).stem().string());
  const bool recorded = has(record_file), finished = has(index()) || has(std::string(shard_set_file));
  std::string other = recorded ? difference(record) : "";
  if (recorded && other.empty()) other = difference(info);
  check(other.empty() || (overwrite && parts_ == 1), "encode: output: ", other,
        parts_ == 1 ? "; -y begins anew" : "; a part needs a folder that is new, or begun in the same way");
  check(recorded || !finished || overwrite, "encode: output: ", folder_.string(),
        ": there is a data set that was not made by this command; -y overwrites it");
  const bool stray = !recorded && range_.most > 0 && has(shard_name(shards, range_.first));
  check(!stray || overwrite, "encode: output: ", folder_.string(),
        ": there are shards that nobody knows; -y overwrites them");
  if (overwrite && (finished || stray || !other.empty())) clear();
  if (!has(record_file)) {
    EncodeRecord written = record;
    io::write_file_atomically(folder_ / record_file, io::write_json(written, io::JsonStyle::pages));
  }
}

bool EncodeFolder::join() {
  const fs::path whole = folder_ / shard_set_file;
  if (has(std::string(shard_set_file))) return true;
  std::vector<ShardSetInfo> sets;
  for (std::int64_t i = 0; i < parts_; ++i) {
    if (!has(index_of(i))) return false;
    sets.push_back(read_shard_set(folder_ / index_of(i)));
  }
  const ShardSetInfo joined = join_shard_sets(sets);
  check(joined.samples > 0, "encode: expected at least one item that can be read, got none of them");
  write_shard_set(whole, joined);
  return true;
}

}  // namespace pom::data
