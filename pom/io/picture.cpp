#include "pom/io/picture.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "pom/base/error.h"
#include "pom/io/jpeg.h"
#include "pom/io/read_file.h"
#include "pom/io/text_comment.h"

namespace pom::io {
namespace {

using namespace std::string_view_literals;

enum class Kind { png, jpeg, other };

struct Signature {
  std::string_view start;
  std::string_view name;
  Kind kind = Kind::other;
};

// Those that people have and we do not read are here for the message.
constexpr std::array signatures = {
    Signature{"\x89PNG\r\n\x1a\n"sv, "PNG", Kind::png},
    Signature{"\xff\xd8\xff"sv, "JPEG", Kind::jpeg},
    Signature{"GIF8"sv, "GIF"},
    Signature{"BM"sv, "BMP"},
    Signature{"II*\0"sv, "TIFF"},
    Signature{"MM\0*"sv, "TIFF"},
    Signature{"RIFF"sv, "WebP or another RIFF file"},
    Signature{"\0\0\0\x0cJXL "sv, "JPEG XL"},
    Signature{"\xff\x0a"sv, "JPEG XL"},
    Signature{"\0\0\0\x0cjP  "sv, "JPEG 2000"},
};

Signature signature_of(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Signature& signature : signatures)
    if (text.starts_with(signature.start)) return signature;
  return {{}, bytes.empty() ? "an empty file" : "something else"};
}

Kind kind_of_name(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  if (extension == ".png") return Kind::png;
  return extension == ".jpg" || extension == ".jpeg" ? Kind::jpeg : Kind::other;
}

}  // namespace

Image parse_picture(std::span<const std::byte> bytes, std::string_view source, std::int64_t most) {
  const Signature found = signature_of(bytes);
  switch (found.kind) {
    case Kind::png:
      return parse_png_image(bytes, source, most);
    case Kind::jpeg:
      return parse_jpeg(bytes, source, most);
    case Kind::other:
      break;
  }
  fail("picture read: ", source, ": expected PNG or JPEG, got ", found.name);
}

Image read_picture(const std::filesystem::path& path, std::int64_t most) {
  return parse_picture(detail::read_file(path, "picture read"), path.string(), most);
}

void check_picture_name(const std::filesystem::path& path) {
  check(kind_of_name(path) != Kind::other, "picture write: ", path.string(),
        ": expected a name that ends in .png, .jpg or .jpeg, got \"", path.extension().string(), "\"");
}

void write_picture(const std::filesystem::path& path, const Image& image, std::span<const TextEntry> text,
                   int quality) {
  check_picture_name(path);
  if (kind_of_name(path) == Kind::png) return write_png(path, image, text);
  const bool plain = image.bits == 8 && (image.channels == 1 || image.channels == 3);
  detail::check_text("picture write: " + path.string(), text);
  write_jpeg(path, plain ? image : to_rgb8(image), quality, detail::as_comment(text));
}

}  // namespace pom::io
