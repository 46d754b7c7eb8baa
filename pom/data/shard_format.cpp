// dataset.json of our shards: what it may say, and sets that become one.
#include "pom/data/shard_format.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/atomic_file.h"
#include "pom/io/crc32.h"
#include "pom/io/json_fields.h"

namespace pom::data {
namespace {

// A name within the folder, and a file that nobody hides.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

void check_shards(const ShardSetInfo& info, std::string_view site) {
  const std::size_t count = info.shard_names.size();
  check(info.shard_counts.size() == count && info.shard_bytes.size() == count, site,
        ": shard_names, shard_counts, shard_bytes: expected as many of each, got ", count, ", ",
        info.shard_counts.size(), " and ", info.shard_bytes.size());
  std::set<std::string_view> names;
  for (const std::string& name : info.shard_names) {
    check(is_plain_name(name), site, ": shard_names: expected names of files in the folder, got \"",
          shown(name), "\"");
    check(names.insert(name).second, site, ": shard_names: \"", shown(name), "\" is there twice");
  }
  std::int64_t samples = 0;
  for (const std::int64_t n : info.shard_counts) samples += std::min(n, std::int64_t{1} << 40);
  check(samples == info.samples, site, ": samples: expected the sum of shard_counts, ", samples, ", got ",
        info.samples);
}

void check_info(const ShardSetInfo& info, std::string_view site) {
  check(info.size.size() == 2, site, ": size: expected width and height, got ", info.size.size(), " numbers");
  check(!info.clips() || info.frames > 0, site, ": frames: expected at least 1 of clips, got ", info.frames);
  check(info.text_hash.empty() || (info.text_tokens > 0 && info.text_width > 0), site,
        ": text_tokens, text_width: expected at least 1 where there is a text_hash, got ", info.text_tokens,
        " and ", info.text_width);
  check_shards(info, site);
}

// All but the shards, as text.
std::string without_shards(ShardSetInfo info) {
  info.samples = 0;
  info.shard_names.clear();
  info.shard_counts.clear();
  info.shard_bytes.clear();
  return io::write_json(info);
}

// "channels", of two texts of JSON that are not equal.
std::string first_difference(ShardSetInfo a, ShardSetInfo b) {
  const std::vector<BoundField> ours = bind_fields(a), theirs = bind_fields(b);
  for (std::size_t i = 0; i < ours.size(); ++i)
    if (io::write_json(std::span(&ours[i], 1), io::JsonStyle::line) !=
        io::write_json(std::span(&theirs[i], 1), io::JsonStyle::line))
      return std::string(ours[i].field.name);
  return "something";
}

}  // namespace

ShardSetInfo read_shard_set(const std::filesystem::path& file) {
  const std::string site = file.string();
  ShardSetInfo info;
  const std::set<std::string> given = io::read_json(io::read_json_text(file), info, site);
  for (const char* name : {"format", "kind", "stored", "scale", "shift", "channels", "shard_names"})
    check(given.contains(name), site, ": ", name, ": expected it, got none");
  check_info(info, site);
  return info;
}

void write_shard_set(const std::filesystem::path& file, ShardSetInfo info) {
  check_info(info, file.string());
  io::write_file_atomically(file, io::write_json(info, io::JsonStyle::pages));
}

ShardSetInfo join_shard_sets(std::span<const ShardSetInfo> parts) {
  check(!parts.empty(), "shards: join: expected data sets, got none");
  ShardSetInfo whole = parts.front();
  for (const ShardSetInfo& part : parts.subspan(1)) {
    check(without_shards(part) == without_shards(whole),
          "shards: join: expected data sets that agree, got another ", first_difference(part, whole));
    whole.samples += part.samples;
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(whole.shard_names, part.shard_names);
    append(whole.shard_counts, part.shard_counts);
    append(whole.shard_bytes, part.shard_bytes);
  }
  check_shards(whole, "shards: join");
  return whole;
}

void check_shard_codec(const ShardSetInfo& info, std::string_view codec_hash, std::string_view text_hash,
                       std::string_view site) {
  const auto expect = [&](std::string_view wanted, const std::string& found, std::string_view what,
                          std::string_view field) {
    check(wanted.empty() || wanted == found, site, ": ", field, ": expected latents of this run's ", what,
          ", ", shown(wanted, 64), ", got those of another, ",
          found.empty() ? "without a hash" : shown(found, 64));
  };
  expect(codec_hash, info.codec_hash, "codec", "codec_hash");
  expect(text_hash, info.text_hash, "text encoder", "text_hash");
}

std::string shard_index_bytes(std::span<const std::uint64_t> offsets) {
  std::string bytes(reinterpret_cast<const char*>(offsets.data()), offsets.size_bytes());
  const std::uint64_t sum = io::crc32(bytes);
  return bytes.append(reinterpret_cast<const char*>(&sum), sizeof sum);
}

std::optional<std::vector<std::uint64_t>> parse_shard_index(std::string_view bytes) {
  if (bytes.size() < 16 || bytes.size() % 8 != 0) return std::nullopt;
  std::vector<std::uint64_t> offsets(bytes.size() / 8);
  std::memcpy(offsets.data(), bytes.data(), bytes.size());
  if (offsets.back() != io::crc32(bytes.substr(0, bytes.size() - 8))) return std::nullopt;
  offsets.pop_back();
  if (!std::ranges::is_sorted(offsets)) return std::nullopt;
  return offsets;
}

}  // namespace pom::data
