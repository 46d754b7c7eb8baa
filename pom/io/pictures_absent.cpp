// Stands for png.cpp and jpeg.cpp in a build without libpng or libjpeg: whoever asks for a picture is told
// so.
#include "pom/base/error.h"
#include "pom/io/jpeg.h"
#include "pom/io/picture.h"
#include "pom/io/png.h"
#include "pom/io/png_text.h"

namespace pom::io {
namespace {

[[noreturn]] void refuse(std::string_view operation, std::string_view source = {}) {
  fail(operation, source.empty() ? "" : ": ", source,
       ": this libpom was built without pictures: install libpng-dev and libjpeg-dev and build it again");
}

}  // namespace

Png read_png(const std::filesystem::path& path) {
  refuse("png read", path.string());
}
Png parse_png(std::span<const std::byte>, std::string_view source) {
  refuse("png read", source);
}
Image parse_png_image(std::span<const std::byte>, std::string_view source, std::int64_t) {
  refuse("png read", source);
}
std::vector<TextEntry> read_png_text(const std::filesystem::path& path) {
  refuse("png read", path.string());
}
std::vector<TextEntry> parse_png_text(std::span<const std::byte>, std::string_view source) {
  refuse("png read", source);
}
std::vector<TextEntry> detail::find_png_text(const FileParts& file, std::size_t) {
  refuse(file.site());
}
std::vector<std::byte> encode_png(const Image&, std::span<const TextEntry>) {
  refuse("png write");
}
void write_png(const std::filesystem::path& path, const Image&, std::span<const TextEntry>) {
  refuse("png write", path.string());
}
Image read_jpeg(const std::filesystem::path& path) {
  refuse("jpeg read", path.string());
}
Image parse_jpeg(std::span<const std::byte>, std::string_view source, std::int64_t) {
  refuse("jpeg read", source);
}
std::vector<std::byte> encode_jpeg(const Image&, int, std::string_view) {
  refuse("jpeg write");
}
void write_jpeg(const std::filesystem::path& path, const Image&, int, std::string_view) {
  refuse("jpeg write", path.string());
}
std::string picture_libraries() {
  return {};
}

}  // namespace pom::io
