#include "cli/output_names.h"

#include <algorithm>
#include <cctype>
#include <climits>
#include <set>

#include "cli/command.h"
#include "pom/io/atomic_file.h"
#include "pom/io/clip.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestName = 60;  // of a class within a file's name

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

void check_extension(const fs::path& path, OutputKind kind) {
  if (kind == OutputKind::clip) return as_usage([&] { io::check_clip_name(path); });
  if (is_image_name(path)) return;
  throw UsageError(detail::concat("--output: expected a file that ends in .png, .jpg or .npz, or a folder (",
                                  path.string(), "/), got \"", path.string(), "\""));
}

bool is_folder(const std::string& output) {
  std::error_code ignored;
  return output.ends_with('/') || fs::is_directory(output, ignored);
}

std::string padded(std::int64_t number, std::size_t width, char fill) {
  std::string text = std::to_string(number);
  return text.size() < width ? std::string(width - text.size(), fill) + text : text;
}

// A percent sign at `at` in the pattern: appends what it stands for and returns where it ends.
std::size_t expand_percent(const std::string& pattern, std::size_t at, std::int64_t index,
                           std::string& text) {
  std::size_t end = at + 1;
  if (end < pattern.size() && pattern[end] == '%') {
    text += '%';
    return end + 1;
  }
  const char fill = end < pattern.size() && pattern[end] == '0' ? '0' : ' ';
  std::size_t width = 0;
  for (; end < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[end])) && width < 100; ++end)
    width = width * 10 + static_cast<std::size_t>(pattern[end] - '0');
  if (end >= pattern.size() || pattern[end] != 'd' || width > 20)
    throw UsageError(
        detail::concat("--output: expected %d or %03d for the number of an image, or %% for a percent "
                       "sign, got \"",
                       pattern, "\""));
  text += padded(index, width, fill == '0' ? '0' : '_');
  return end + 1;
}

std::string expand(const std::string& pattern, const NamedItem& item, std::int64_t index) {
  constexpr std::string_view class_mark = "{class}", prompt_mark = "{prompt}", seed_mark = "{seed}";
  std::string text;
  for (std::size_t i = 0; i < pattern.size();) {
    if (pattern[i] == '%') {
      i = expand_percent(pattern, i, index, text);
    } else if (pattern.compare(i, class_mark.size(), class_mark) == 0) {
      text += file_safe(item.subject);
      i += class_mark.size();
    } else if (pattern.compare(i, prompt_mark.size(), prompt_mark) == 0) {
      text += file_safe(item.subject);
      i += prompt_mark.size();
    } else if (pattern.compare(i, seed_mark.size(), seed_mark) == 0) {
      text += std::to_string(item.seed);
      i += seed_mark.size();
    } else {
      text += pattern[i++];
    }
  }
  return text;
}

std::string percent_doubled(const std::string& text) {
  std::string doubled;
  for (char c : text) doubled += c == '%' ? std::string("%%") : std::string(1, c);
  return doubled;
}

std::string extension_of(OutputKind kind) {
  if (kind == OutputKind::image) return ".png";
  return io::clip_libraries().empty() ? ".gif" : ".mp4";
}

// What a person would write instead of "cat.png" for many images.
std::string suggested_pattern(const fs::path& path) {
  return (path.parent_path() / (path.stem().string() + "_%03d" + path.extension().string())).string();
}

fs::path nearest_folder(const fs::path& file) {
  fs::path folder = fs::absolute(file).parent_path();
  std::error_code ignored;  // a link that leads nowhere is there too: no folder can be made in its place
  while (!fs::exists(fs::symlink_status(folder, ignored)) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder;
}

// Whether anything has this name.
bool is_there(const fs::path& file) {
  std::error_code error;
  const bool there = fs::exists(fs::symlink_status(file, error));
  const bool too_long = error == std::errc::filename_too_long ||
                        std::ranges::any_of(file, [](const fs::path& part) {  // of folders not made yet, too
                          return part.native().size() > NAME_MAX;
                        });
  check(!too_long, "--output: the name is too long: ", file.string());
  return there;
}

// What a finished picture could not take the place of.
void check_replaceable(const fs::path& file) {
  std::error_code ignored;
  const fs::file_type type = fs::status(file, ignored).type();
  check(type != fs::file_type::directory, "--output: ", file.string(), " is a folder");
  check(type == fs::file_type::regular || type == fs::file_type::not_found, "--output: ", file.string(),
        " is not an ordinary file");
}

// An unfinished atomic file is removed again, so making one proves that a folder takes files.
void check_writable(const fs::path& folder) {
  std::error_code ignored;
  check(fs::is_directory(folder, ignored), "--output: ", folder.string(), " is not a folder");
  try {
    io::AtomicFile probe(folder / ".pom-probe");
  } catch (const Error& error) {
    fail("--output: cannot write into ", folder.string(), " (", error.what(), ")");
  }
}

[[noreturn]] void refuse_existing(const fs::path& first, std::size_t more) {
  throw UsageError(detail::concat(
      "--output: ", first.string(),
      more ? detail::concat(" and ", more, " more files already exist") : std::string(" already exists"),
      "; use -y to overwrite"));
}

}  // namespace

std::string file_safe(std::string_view name) {
  std::string safe;
  for (char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool keep = std::isalnum(byte) || byte >= 0x80 || c == '.' || c == '_' || c == '-';
    if (keep)
      safe += c;
    else if (!safe.empty() && safe.back() != '-')
      safe += '-';
  }
  std::size_t length = std::min(safe.size(), kLongestName);
  while (length > 0 && length < safe.size() && (static_cast<unsigned char>(safe[length]) & 0xC0) == 0x80)
    --length;
  safe.resize(length);
  while (safe.ends_with('-')) safe.pop_back();
  if (safe.starts_with('.')) safe[0] = '-';
  return safe.empty() ? "picture" : safe;
}

bool is_jpeg(const fs::path& path) {
  return lower_extension(path) != ".png";
}

bool is_image_name(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

bool is_npz_name(const fs::path& path) {
  return lower_extension(path) == ".npz";
}

std::vector<fs::path> item_names(const std::string& output, std::string_view model,
                                 std::span<const NamedItem> items, OutputKind kind) {
  const bool clips = kind == OutputKind::clip;
  const std::string extension = extension_of(kind);
  std::string pattern = output;
  if (output.empty())
    pattern = "out/" + (items.front().subject.empty() ? file_safe(model) : std::string("{class}")) +
              "_{seed}" + extension;
  else if (is_folder(output) && !(clips && items.size() == 1))
    pattern = (fs::path(percent_doubled(output)) / (file_safe(model) + "_%03d" + extension)).string();
  else if (is_folder(output))  // "frames/" and "frames" are one folder
    pattern =
        percent_doubled(fs::path(output).has_filename() ? output : fs::path(output).parent_path().string());
  check_extension(pattern, kind);
  std::vector<fs::path> names;
  std::set<std::string> seen;
  for (const NamedItem& item : items) {
    names.emplace_back(expand(pattern, item, static_cast<std::int64_t>(names.size())));
    if (seen.insert(names.back().lexically_normal().string()).second) continue;
    throw UsageError(detail::concat(
        "--output: expected a name for each of ", items.size(), clips ? " clips" : " images", ", got \"",
        pattern, "\": write ", suggested_pattern(pattern), ", a folder such as ",
        (fs::path(pattern).parent_path() / (clips ? "clips/" : "images/")).string(), ", or add --grid"));
  }
  return names;
}

fs::path sheet_name(const std::string& output, std::string_view model, const NamedItem& first,
                    OutputKind kind) {
  const std::string name = file_safe(model) + "_sheet_{seed}" + extension_of(kind);
  std::string pattern = output;
  if (output.empty())
    pattern = "out/" + name;
  else if (is_folder(output))
    pattern = (fs::path(percent_doubled(output)) / name).string();
  check_extension(pattern, kind);
  return expand(pattern, first, 0);
}

fs::path numbered(const fs::path& path, std::int64_t index) {
  return path.parent_path() /
         (path.stem().string() + "_" + padded(index, 3, '0') + path.extension().string());
}

fs::path preview_name(const fs::path& path, std::int64_t step) {
  return path.parent_path() /
         (path.stem().string() + "_preview_" + padded(step, 3, '0') + path.extension().string());
}

void check_outputs(std::span<const fs::path> files, bool replace) {
  std::vector<fs::path> there;
  std::set<fs::path> folders;
  for (const fs::path& file : files) {
    if (is_there(file)) there.push_back(file);
    folders.insert(nearest_folder(file));
  }
  if (!replace && !there.empty()) refuse_existing(there.front(), there.size() - 1);
  for (const fs::path& file : there) check_replaceable(file);
  for (const fs::path& folder : folders) check_writable(folder);
}

void make_folder_of(const fs::path& file) {
  if (!file.has_parent_path()) return;
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  check(!error, "--output: cannot create the folder ", file.parent_path().string(), ": ", error.message());
}

void check_previews(std::span<const fs::path> files, bool replace) {
  for (const fs::path& file : files) is_there(preview_name(file, 1000));
  if (replace) return;
  std::set<std::string> stems;
  std::set<fs::path> folders;
  for (const fs::path& file : files) {
    stems.insert(file.stem().string() + "_preview_");
    folders.insert(file.has_parent_path() ? file.parent_path() : ".");
  }
  std::error_code ignored;
  for (const fs::path& folder : folders)
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      const std::size_t mark = name.rfind("_preview_");
      if (mark != std::string::npos && stems.contains(name.substr(0, mark + 9)))
        refuse_existing(entry.path(), 0);
    }
}

}  // namespace pom::cli
