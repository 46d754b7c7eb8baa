// Each kind of file is walked from part to part, and only text is taken into memory.
#include "pom/io/file_text.h"

#include <array>
#include <system_error>

#include "pom/base/error.h"
#include "pom/io/clip_tags.h"
#include "pom/io/frame_folder.h"
#include "pom/io/png_text.h"
#include "pom/io/text_comment.h"
#include "pom/io/y4m_text.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using detail::FileParts;
using namespace std::string_view_literals;

constexpr int max_parts = 1 << 16;  // before the pixels; files of strangers could have millions of them

[[noreturn]] void fail_for_parts(const FileParts& file) {
  fail(file.site(), ": expected pixels after at most ", max_parts, " parts of a file, got more");
}

void append(std::string& text, const FileParts& file, std::uint64_t offset, std::size_t count) {
  check(text.size() + count <= detail::max_comment, file.site(), ": expected at most ", max_file_text,
        " bytes of text, got more");
  text += file.at(offset, count);
}

void take(std::vector<TextEntry>& entries, std::string_view comment) {
  for (TextEntry& entry : detail::from_comment(comment)) entries.push_back(std::move(entry));
}

unsigned byte_of(std::string_view bytes, std::size_t place) {
  return static_cast<unsigned char>(bytes[place]);
}

// Segments: 0xff, a kind, and but for a few kinds two bytes of length. Text of another kind (EXIF) is passed
// over.
std::vector<TextEntry> jpeg_text(const FileParts& file) {
  constexpr unsigned comment = 0xfe, start_of_scan = 0xda, end_of_image = 0xd9, fill = 0xff, alone = 0x01;
  std::vector<TextEntry> entries;
  std::size_t bytes = 0;
  std::uint64_t offset = 2;
  for (int i = 0; i < max_parts; ++i) {
    const std::string head = file.at(offset, 2);
    const unsigned kind = byte_of(head, 1);
    check(byte_of(head, 0) == 0xff, file.site(), ": expected a marker at byte ", offset, ", got other bytes");
    if (kind == start_of_scan || kind == end_of_image) return entries;
    if (kind == fill || kind == alone) {
      offset += kind == fill ? 1 : 2;
      continue;
    }
    const std::string length = file.at(offset + 2, 2);
    const std::size_t count = byte_of(length, 0) << 8 | byte_of(length, 1);
    check(count >= 2, file.site(), ": expected a length of at least 2 at byte ", offset + 2, ", got ", count);
    if (kind == comment) {
      std::string text;
      append(text, file, offset + 4, count - 2);
      check((bytes += text.size()) <= detail::max_comment, file.site(), ": expected at most ", max_file_text,
            " bytes of text, got more");
      take(entries, text);
    }
    offset += 2 + count;
  }
  fail_for_parts(file);
}

// Blocks before the first picture: 0x21, a kind, and parts of at most 255 bytes after their length, the last
// of length 0.
class GifText {
 public:
  explicit GifText(const FileParts& file) : file_(file) {
    const std::string head = file.at(0, 13);
    const unsigned flags = byte_of(head, 10);
    offset_ = head.size() + ((flags & 0x80) != 0 ? 3u << ((flags & 7) + 1) : 0);
  }

  std::vector<TextEntry> read() {
    constexpr unsigned extension = 0x21, comment = 0xfe;
    std::vector<TextEntry> entries;
    std::string texts;
    while (byte_of(file_.at(offset_, 1), 0) == extension) {
      const bool wanted = byte_of(file_.at(offset_ + 1, 1), 0) == comment;
      offset_ += 2;
      const std::size_t before = texts.size();
      pass(wanted ? &texts : nullptr);
      if (wanted) take(entries, std::string_view(texts).substr(before));
    }
    return entries;
  }

 private:
  void pass(std::string* text) {
    for (; parts_ < max_parts; ++parts_) {
      const std::size_t count = byte_of(file_.at(offset_, 1), 0);
      if (text != nullptr) append(*text, file_, offset_ + 1, count);
      offset_ += 1 + count;
      if (count == 0) return;
    }
    fail_for_parts(file_);
  }

  const FileParts& file_;
  std::uint64_t offset_ = 0;
  int parts_ = 0;
};

std::vector<TextEntry> text_of(const FileParts& file, const fs::path& path) {
  const std::string start = file.up_to(0, 16);
  const std::string_view png(reinterpret_cast<const char*>(detail::png_signature.data()),
                             detail::png_signature.size());
  std::vector<TextEntry> entries;
  if (start.starts_with(png)) return detail::find_png_text(file, max_file_text);
  if (start.starts_with("\xff\xd8\xff"sv)) return jpeg_text(file);
  if (start.starts_with("GIF8"sv)) return GifText(file).read();
  if (start.starts_with(detail::y4m_signature)) {
    if (const auto text = detail::find_y4m_text(file)) take(entries, text->comment);
    return entries;
  }
  check(start.find("ftyp") == 4 || start.starts_with("\x1a\x45\xdf\xa3"sv), file.site(),
        ": expected PNG, JPEG, .mp4, .webm, .gif, .y4m or a folder of frames, got ",
        start.empty() ? "an empty file" : "something else");
  take(entries, detail::read_tags(path));
  return entries;
}

}  // namespace

std::vector<TextEntry> read_file_text(const fs::path& path) {
  std::error_code ignored;
  const fs::path place = fs::is_directory(path, ignored) ? path / detail::frame_name(0) : path;
  const FileParts file(place, "file text");
  std::vector<TextEntry> entries = text_of(file, place);
  std::size_t bytes = 0;
  for (const TextEntry& entry : entries) bytes += entry.keyword.size() + entry.text.size();
  check(bytes <= max_file_text, file.site(), ": expected at most ", max_file_text, " bytes of text, got ",
        bytes);
  return entries;
}

}  // namespace pom::io
