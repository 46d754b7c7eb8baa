#include "pom/io/frame_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <optional>

#include "pom/io/clip.h"
#include "pom/io/json_header.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

bool is_frame_name(const std::string& name) {
  constexpr std::size_t least = 6, ending = 4;
  return name.ends_with(".png") && name.size() >= least + ending &&
         std::all_of(name.begin(), name.end() - ending, [](char c) { return c >= '0' && c <= '9'; });
}

// What clip.json counts; nothing where it is none of ours.
std::optional<std::int64_t> read_record(const fs::path& path) try {
  using Kind = SafetensorsError::Kind;
  const std::vector<std::byte> bytes = detail::read_file(path, "clip.json", 4096);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (detail::find_invalid_utf8(text) != text.size()) return {};
  const detail::Site site{.operation = "clip.json", .file = path.string()};
  detail::JsonCursor json(text, site);
  std::string kind;
  std::uint64_t frames = 0;
  json.open('{', Kind::JsonSyntax, "an object");
  for (bool first = true; json.more(first, '}');) {
    if (const std::string key = json.key(); key == "kind")
      kind = json.string(Kind::JsonSyntax, "a kind");
    else if (key == "frames")
      frames = json.integer("a number of frames");
    else
      return {};
  }
  json.finish();
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (kind != detail::record_kind) return {};
  return static_cast<std::int64_t>(std::min(frames, most));
} catch (const Error&) {
  return {};
}

}  // namespace

std::string detail::frame_name(std::int64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%06lld.png", static_cast<long long>(number));
  return name;
}

std::vector<std::string> detail::frame_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (std::string name = entry->path().filename().string(); is_frame_name(name))
      names.push_back(std::move(name));
  const bool missing = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  check(!error || missing, "clip folder: ", folder.string(), ": ", error.message());
  return names;
}

std::int64_t detail::frame_number(const std::string& name) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size() - 4, number);
  return error == std::errc() && frame_name(number) == name ? number : -1;
}

FramesInFolder frames_in(const fs::path& folder) {
  FramesInFolder found;
  const auto other = [&](const std::string& file) {
    if (found.others++ == 0 || file < found.first_other) found.first_other = file;
  };
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(folder / detail::record_name, ignored))) {
    if (const std::optional<std::int64_t> counted = read_record(folder / detail::record_name))
      found.counted = *counted;
    else
      other(detail::record_name);
  }
  for (const std::string& file : detail::frame_names(folder))
    if (const std::int64_t number = detail::frame_number(file); number >= 0 && number < found.counted)
      ++found.written;
    else
      other(file);
  return found;
}

}  // namespace pom::io
