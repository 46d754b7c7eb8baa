// libpng leaves by longjmp when something is wrong. So it is called only from functions that hold nothing
// with a destructor and begin with setjmp; they return false then, and their callers own the memory and
// throw.
#include "pom/io/png.h"

#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <png.h>

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/png_text.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

using Bytes = std::span<const std::byte>;

// What reading and writing share: where to go from an error, and what it was.
struct Session {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump;
  char message[160] = "";
};

[[noreturn]] void leave(png_structp png, png_const_charp message) {
  auto* session = static_cast<Session*>(png_get_error_ptr(png));
  std::snprintf(session->message, sizeof session->message, "%s", message);
  std::longjmp(session->jump, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

// --- reading

struct Reader : Session {
  const std::byte* next;
  std::size_t left;
  int passes = 1;

  explicit Reader(Bytes bytes) : next(bytes.data()), left(bytes.size()) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void give_bytes(png_structp png, png_bytep into, std::size_t count) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader->left) png_error(png, "truncated: the file ends before its IEND chunk");
  std::memcpy(into, reader->next, count);
  reader->next += count;
  reader->left -= count;
}

// Has libpng turn whatever the file has into 8 or 16 bits of grey or RGB, with or without alpha.
void ask_for_whole_samples(png_structp png, png_infop info) {
  const int colour = png_get_color_type(png, info);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colour == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) < 8) png_set_expand_gray_1_2_4_to_8(png);
  if (png_get_valid(png, info, PNG_INFO_tRNS) != 0) png_set_tRNS_to_alpha(png);
  if (std::endian::native == std::endian::little && png_get_bit_depth(png, info) == 16) png_set_swap(png);
}

bool read_head(Reader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  reader.png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, static_cast<Session*>(&reader), leave, ignore_warning);
  if (reader.png == nullptr) return false;
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) return false;
  png_set_read_fn(reader.png, &reader, give_bytes);
  png_set_user_limits(reader.png, 0x7fffffff, 0x7fffffff);  // the caller has looked at the size
  png_set_crc_action(reader.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // whatever is no pixel
  png_read_info(reader.png, reader.info);
  ask_for_whole_samples(reader.png, reader.info);
  reader.passes = png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_rows(Reader& reader, std::uint8_t* data, std::size_t row_bytes, int height) {
  if (setjmp(reader.jump) != 0) return false;
  for (int pass = 0; pass < reader.passes; ++pass)
    for (int y = 0; y < height; ++y)
      png_read_row(reader.png, data + static_cast<std::size_t>(y) * row_bytes, nullptr);
  png_read_end(reader.png, nullptr);
  return true;
}

[[noreturn]] void fail_with(const Session& session, const std::string& site) {
  fail(site, ": ", session.message[0] == '\0' ? "not enough memory for libpng" : session.message);
}

std::string read_site(std::string_view source) {
  return ::pom::detail::concat("png read: ", source);
}

// --- writing

struct Writer : Session {
  std::vector<std::byte> bytes;
  bool out_of_memory = false;

  Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { png_destroy_write_struct(&png, &info); }

  void append(Bytes more) noexcept try { bytes.insert(bytes.end(), more.begin(), more.end()); } catch (...) {
    out_of_memory = true;
  }
};

void take_bytes(png_structp png, png_bytep from, std::size_t count) {
  auto* writer = static_cast<Writer*>(png_get_io_ptr(png));
  writer->append(std::as_bytes(std::span(from, count)));
  if (writer->out_of_memory) png_error(png, "not enough memory for the file");
}

void no_flush(png_structp) {}

int colour_type(int channels) {
  constexpr int types[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                           PNG_COLOR_TYPE_RGB_ALPHA};
  return types[channels - 1];
}

// Level 6 with the filter chosen row by row: what libpng does by itself, said here so that it stays.
void choose_packing(png_structp png) {
  png_set_compression_level(png, 6);
  png_set_compression_strategy(png, 1);  // zlib's Z_FILTERED
  png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_ALL_FILTERS);
}

bool write_all(Writer& writer, const Image& image, const detail::PngChunk* chunks, std::size_t count) {
  if (setjmp(writer.jump) != 0) return false;
  writer.png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, static_cast<Session*>(&writer), leave, ignore_warning);
  if (writer.png == nullptr) return false;
  writer.info = png_create_info_struct(writer.png);
  if (writer.info == nullptr) return false;
  png_set_write_fn(writer.png, &writer, take_bytes, no_flush);
  png_set_user_limits(writer.png, 0x7fffffff, 0x7fffffff);
  choose_packing(writer.png);
  png_set_IHDR(writer.png, writer.info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), image.bits, colour_type(image.channels),
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer.png, writer.info);
  for (std::size_t i = 0; i < count; ++i)
    png_write_chunk(writer.png, reinterpret_cast<png_const_bytep>(chunks[i].type.data()),
                    reinterpret_cast<png_const_bytep>(chunks[i].data.data()), chunks[i].data.size());
  if (std::endian::native == std::endian::little && image.bits == 16) png_set_swap(writer.png);
  for (int y = 0; y < image.height; ++y)
    png_write_row(writer.png, image.data.data() + static_cast<std::size_t>(y) * image.row_bytes());
  png_write_end(writer.png, nullptr);
  return true;
}

}  // namespace

Image parse_png_image(Bytes bytes, std::string_view source, std::int64_t most) {
  const std::string site = read_site(source);
  detail::check_png_header(bytes, site, most);
  Reader reader(bytes);
  if (!read_head(reader)) fail_with(reader, site);
  Image image = make_image(
      site, png_get_image_width(reader.png, reader.info), png_get_image_height(reader.png, reader.info),
      png_get_channels(reader.png, reader.info), png_get_bit_depth(reader.png, reader.info));
  check(png_get_rowbytes(reader.png, reader.info) == image.row_bytes(), site, ": libpng gives rows of ",
        png_get_rowbytes(reader.png, reader.info), " bytes, expected ", image.row_bytes());
  if (!read_rows(reader, image.data.data(), image.row_bytes(), image.height)) fail_with(reader, site);
  return image;
}

std::vector<TextEntry> parse_png_text(Bytes bytes, std::string_view source) {
  return detail::find_png_text(bytes, read_site(source));
}

Png parse_png(Bytes bytes, std::string_view source) {
  std::vector<TextEntry> text = parse_png_text(bytes, source);
  return {parse_png_image(bytes, source), std::move(text)};
}

Png read_png(const std::filesystem::path& path) {
  return parse_png(detail::read_file(path, "png read"), path.string());
}

std::vector<TextEntry> read_png_text(const std::filesystem::path& path) {
  return parse_png_text(detail::read_file(path, "png read"), path.string());
}

std::vector<std::byte> encode_png(const Image& image, std::span<const TextEntry> text) {
  check_image("png write", image);
  std::vector<detail::PngChunk> chunks;
  for (const TextEntry& entry : text) chunks.push_back(detail::text_chunk(entry, "png write"));
  Writer writer;
  if (!write_all(writer, image, chunks.data(), chunks.size())) fail_with(writer, "png write");
  return std::move(writer.bytes);
}

void write_png(const std::filesystem::path& path, const Image& image, std::span<const TextEntry> text) {
  const std::vector<std::byte> bytes = encode_png(image, text);
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace pom::io
