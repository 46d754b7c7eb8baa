// Finds the clips of a folder and what is said of them.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <system_error>

#include "pom/base/error.h"
#include "pom/data/clips.h"
#include "pom/io/json_header.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string trimmed(std::string_view text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  check(file.is_open() && !file.bad(), "captions: ", path.string(), ": cannot read it");
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // the mark of some editors
  return text;
}

bool is_clip(const fs::path& path) {
  return std::ranges::find(clip_endings(), lower(path.extension().string())) != clip_endings().end();
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// A caption as text encoders take it; `where` names its file.
std::string checked_caption(std::string_view text, const std::string& where) {
  const std::size_t bad = io::detail::find_invalid_utf8(text);
  check(bad == text.size(), "captions: ", where,
        ": expected a caption in UTF-8, got an invalid byte at position ", bad);
  return trimmed(text);
}

std::string caption_beside(const fs::path& clip) {
  fs::path other = clip;
  other.replace_extension(".txt");
  if (!is_there(other)) other = clip.string() + ".txt";
  return is_there(other) ? checked_caption(text_of(other), other.string()) : "";
}

// The files that the rows of a table name. Tables come from strangers: none may lead out of the folder that
// it came in, neither by its words nor by a link on the way.
class WithinFolder {
 public:
  explicit WithinFolder(const fs::path& root) : root_(root), real_root_(fs::weakly_canonical(root)) {}

  // `where` begins the message.
  fs::path file(const std::string& name, const std::string& where) const {
    check(!name.empty(), where, ": expected the name of a clip, got nothing");
    const fs::path plain = fs::path(name).lexically_normal();
    check(plain.is_relative() && *plain.begin() != "..", where,
          ": expected a file within the folder of the table, got ", io::detail::quote(name));
    std::error_code error;
    const fs::path real = fs::weakly_canonical(root_ / name, error);
    check(!error, where, ": ", io::detail::quote(name), ": ", error.message());
    check(std::ranges::mismatch(real_root_, real).in1 == real_root_.end(), where,
          ": expected a file within the folder of the table, got ", io::detail::quote(name),
          ", a link that leads to ", io::detail::quote(real.string()));
    return root_ / name;
  }

 private:
  fs::path root_, real_root_;
};

// The column that has one of these names.
std::size_t column_of(const std::vector<std::string>& head, const std::vector<std::string>& names,
                      const std::string& source) {
  for (std::size_t i = 0; i < head.size(); ++i)
    if (std::ranges::find(names, lower(trimmed(head[i]))) != names.end()) return i;
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  fail("captions: ", source, ": expected a column named one of ", list, " in the first line, got none");
}

std::vector<CaptionedClip> clips_of_table(const fs::path& root, const fs::path& table) {
  const std::string source = table.string();
  const auto rows = parse_csv(text_of(table), source);
  check(!rows.empty(), "captions: ", source, ": expected a line of column names, got nothing");
  const std::size_t file = column_of(rows[0], {"file", "file_name", "filename", "path", "video"}, source);
  const std::size_t caption = column_of(rows[0], {"caption", "text", "prompt"}, source);
  const WithinFolder within(root);
  std::vector<CaptionedClip> clips;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::string where = detail::concat(source, ": row ", i + 1);
    check(rows[i].size() > std::max(file, caption) && rows[i].size() <= rows[0].size(), "captions: ", where,
          ": expected ", rows[0].size(), " fields, got ", rows[i].size(),
          rows[i].size() > rows[0].size() ? "; put text with a comma in quotes" : "");
    clips.push_back(
        {within.file(rows[i][file], "captions: " + where), checked_caption(rows[i][caption], where)});
  }
  return clips;
}

std::vector<CaptionedClip> clips_of_folders(const fs::path& root) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(root, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    std::error_code ignored;
    if (hidden && entry->is_directory(ignored)) entry.disable_recursion_pending();
    if (!hidden && is_clip(entry->path()) && entry->is_regular_file(ignored)) paths.push_back(entry->path());
  }
  check(!error, "data: path: ", root.string(), ": ", error.message());
  std::ranges::sort(paths);
  std::vector<CaptionedClip> clips;
  for (const fs::path& path : paths) clips.push_back({path, caption_beside(path)});
  return clips;
}

}  // namespace

const std::vector<std::string_view>& clip_endings() {
  static const std::vector<std::string_view> endings = {".mp4", ".m4v", ".mov", ".webm", ".mkv",
                                                        ".avi", ".gif", ".y4m", ".mpg",  ".mpeg",
                                                        ".ogv", ".flv", ".wmv", ".ts"};
  return endings;
}

std::vector<std::vector<std::string>> parse_csv(std::string_view text, std::string_view source) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool quoted = false, was_quoted = false;
  const auto end_field = [&] {
    row.push_back(std::move(field));
    field.clear();
    was_quoted = false;
  };
  const auto end_row = [&] {
    end_field();
    if (row.size() > 1 || !row[0].empty()) rows.push_back(std::move(row));
    row.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      const bool twice = c == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (c != '"' || twice)
        field += c;
      else
        quoted = false;
      i += twice ? 1 : 0;
    } else if (c == '"' && field.empty() && !was_quoted) {
      quoted = was_quoted = true;
    } else if (c == ',') {
      end_field();
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r' || i + 1 == text.size() || text[i + 1] != '\n') {
      field += c;
    }
  }
  check(!quoted, "captions: ", source, ": a field of row ", rows.size() + 1,
        " opens a quote that nothing closes");
  if (!field.empty() || !row.empty()) end_row();
  return rows;
}

std::vector<CaptionedClip> find_webvid_clips(const std::string& table) {
  check(is_there(table), "captions: ", table, ": expected a table (.csv), got no such file");
  const auto rows = parse_csv(text_of(table), table);
  const fs::path root = fs::path(table).parent_path();
  const WithinFolder within(root.empty() ? fs::path(".") : root);
  std::vector<CaptionedClip> clips;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::string>& row = rows[i];
    const std::string where = detail::concat(table, ": row ", i + 1);
    check(row.size() >= 2, "captions: ", where, ": expected a caption and a file, got one field");
    if (i == 0 && !is_clip(row.back())) continue;
    std::string caption = checked_caption(row[row.size() - 2], where);
    const auto agency = [](const std::string& field) { return field.find("shutterstock") != field.npos; };
    if (!caption.empty() && std::any_of(row.begin(), row.end() - 2, agency))
      caption += ", shutterstock watermark";
    clips.push_back({within.file(row.back(), "captions: " + where), std::move(caption)});
  }
  check(!clips.empty(), "captions: ", table, ": expected rows of clips, got none");
  return clips;
}

std::vector<CaptionedClip> find_clips(const std::string& root) {
  check(!root.empty(), "data: path: expected a folder of clips, got nothing");
  std::error_code error;
  check(fs::is_directory(root, error), "data: path: ", root, ": expected a folder of clips, got ",
        fs::exists(root, error) ? "a file" : "no such folder");
  for (const char* name : {"captions.csv", "metadata.csv"})
    if (const fs::path table = fs::path(root) / name; is_there(table)) {
      auto clips = clips_of_table(root, table);
      check(!clips.empty(), "data: path: ", table.string(), ": expected clips, got none");
      return clips;
    }
  auto clips = clips_of_folders(root);
  check(!clips.empty(), "data: path: ", root, ": expected clips (.mp4, .webm, .gif, .mkv, …), got none");
  return clips;
}

}  // namespace pom::data
