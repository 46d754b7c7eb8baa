// libjpeg leaves by longjmp when something is wrong. So it is called only from functions that hold nothing
// with a destructor and begin with setjmp; they return false then, and their callers own the memory and
// throw.
#include "pom/io/jpeg.h"

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
// jerror.h numbers its messages by what jpeglib.h defines, so it comes second.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "pom/base/error.h"
#include "pom/io/atomic_file.h"
#include "pom/io/exif.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

using Bytes = std::span<const std::byte>;

// A file of a few bytes a scan could keep a processor busy for hours; encoders write about ten.
constexpr int max_scans = 100;
// Each block of 64 pixels costs a bit at least, in any file but an arithmetic-coded one.
constexpr std::uint64_t max_pixels_per_byte = 512;
constexpr int max_side = 65500;
constexpr std::size_t max_comment = 65533;

// What reading and writing share: where to go from an error, and what it was.
struct Session {
  jpeg_error_mgr errors;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";
};

Session& session_of(j_common_ptr info) {
  return *static_cast<Session*>(info->client_data);
}

[[noreturn]] void leave(j_common_ptr info) {
  Session& session = session_of(info);
  info->err->format_message(info, session.message);
  std::longjmp(session.jump, 1);
}

// Of the warnings, those after which pixels are invented.
bool means_damage(int code) {
  switch (code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_NOT_SEQUENTIAL:
      return true;
    default:
      return false;
  }
}

void hear_message(j_common_ptr info, int level) {
  if (level < 0 && means_damage(info->err->msg_code)) leave(info);
}

void print_nothing(j_common_ptr) {}

void prepare(Session& session) {
  jpeg_std_error(&session.errors);
  session.errors.error_exit = leave;
  session.errors.emit_message = hear_message;
  session.errors.output_message = print_nothing;
}

[[noreturn]] void fail_with(const Session& session, std::string_view site) {
  fail(site, ": ", session.message);
}

// --- reading

struct Reader : Session {
  jpeg_decompress_struct info = {};
  jpeg_progress_mgr progress = {};

  Reader() {
    prepare(*this);
    info.err = &errors;
    info.client_data = static_cast<Session*>(this);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { jpeg_destroy_decompress(&info); }  // also fit for one that was never created
};

void count_scans(j_common_ptr info) {
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number <= max_scans) return;
  Session& session = session_of(info);
  std::snprintf(session.message, sizeof session.message, "expected at most %d scans, got more", max_scans);
  std::longjmp(session.jump, 1);
}

J_COLOR_SPACE wanted_colours(J_COLOR_SPACE stored) {
  switch (stored) {
    case JCS_GRAYSCALE:
      return JCS_GRAYSCALE;
    case JCS_RGB:
    case JCS_YCbCr:
      return JCS_RGB;
    case JCS_CMYK:
    case JCS_YCCK:
      return JCS_CMYK;
    default:
      return JCS_UNKNOWN;
  }
}

bool read_head(Reader& reader, Bytes bytes) {
  if (setjmp(reader.jump) != 0) return false;
  jpeg_create_decompress(&reader.info);  // keeps err and client_data
  reader.progress.progress_monitor = count_scans;
  reader.info.progress = &reader.progress;
  jpeg_mem_src(&reader.info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_save_markers(&reader.info, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(&reader.info, TRUE);
  reader.info.out_color_space = wanted_colours(reader.info.jpeg_color_space);
  return true;
}

// To the end of the file, so that one that lacks its EOI marker is found truncated.
bool read_rows(Reader& reader, std::uint8_t* data, std::size_t row_bytes) {
  if (setjmp(reader.jump) != 0) return false;
  jpeg_start_decompress(&reader.info);
  while (reader.info.output_scanline < reader.info.output_height) {
    JSAMPROW row = data + reader.info.output_scanline * row_bytes;
    jpeg_read_scanlines(&reader.info, &row, 1);
  }
  jpeg_finish_decompress(&reader.info);
  return true;
}

void check_head(const jpeg_decompress_struct& info, std::size_t file_bytes, const std::string& site,
                std::int64_t most) {
  check_size(site, info.image_width, info.image_height, most);
  check(info.out_color_space != JCS_UNKNOWN, site,
        ": expected grey, YCbCr, RGB, CMYK or YCCK, got colours of another kind with ", info.num_components,
        " components");
  const std::uint64_t pixels = std::uint64_t{info.image_width} * info.image_height;
  check(info.arith_code || pixels / max_pixels_per_byte <= file_bytes, site,
        ": truncated: ", info.image_width, " x ", info.image_height, " pixels do not fit into a file of ",
        file_bytes, " bytes");
}

int orientation_of(const jpeg_decompress_struct& info) {
  for (const jpeg_marker_struct* marker = info.marker_list; marker != nullptr; marker = marker->next)
    if (marker->marker == JPEG_APP0 + 1)
      if (const int found = exif_orientation(std::as_bytes(std::span(marker->data, marker->data_length)));
          found != 1)
        return found;
  return 1;
}

// Ink to light, in place: three bytes of four. Adobe's programs store ink inverted, and say so by their
// marker.
void cmyk_to_rgb(Image& image, bool inverted) {
  const std::size_t pixels = image.data.size() / 4;
  const unsigned flip = inverted ? 0 : 255;
  for (std::size_t i = 0; i < pixels; ++i) {
    const std::uint8_t* ink = &image.data[4 * i];
    const unsigned black = ink[3] ^ flip;
    for (std::size_t c = 0; c < 3; ++c)
      image.data[3 * i + c] = static_cast<std::uint8_t>(((ink[c] ^ flip) * black + 127) / 255);
  }
  image.channels = 3;
  image.data.resize(3 * pixels);
}

int channels_of(J_COLOR_SPACE colours) {
  if (colours == JCS_CMYK) return 4;
  return colours == JCS_GRAYSCALE ? 1 : 3;
}

// --- writing

// Takes libjpeg's bytes block by block. (Its own jpeg_mem_dest leaves a freed pointer behind on an error.)
struct Writer : Session {
  jpeg_compress_struct info = {};
  jpeg_destination_mgr destination = {};
  std::vector<std::byte> bytes;
  JOCTET block[16384];

  Writer() {
    prepare(*this);
    info.err = &errors;
    info.client_data = static_cast<Session*>(this);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { jpeg_destroy_compress(&info); }

  void offer_block() {
    destination.next_output_byte = block;
    destination.free_in_buffer = sizeof block;
  }

  bool keep(std::size_t count) noexcept try {
    const Bytes more = std::as_bytes(std::span(block, count));
    bytes.insert(bytes.end(), more.begin(), more.end());
    return true;
  } catch (...) {
    return false;
  }
};

Writer& writer_of(j_compress_ptr info) {
  return static_cast<Writer&>(*static_cast<Session*>(info->client_data));
}

void keep_or_leave(j_compress_ptr info, std::size_t count) {
  if (!writer_of(info).keep(count)) ERREXIT1(info, JERR_OUT_OF_MEMORY, 0);
}

void start_blocks(j_compress_ptr info) {
  writer_of(info).offer_block();
}

boolean take_block(j_compress_ptr info) {
  keep_or_leave(info, sizeof Writer::block);
  writer_of(info).offer_block();
  return TRUE;
}

void take_last_block(j_compress_ptr info) {
  keep_or_leave(info, sizeof Writer::block - info->dest->free_in_buffer);
}

void take_blocks(Writer& writer) {
  writer.destination.init_destination = start_blocks;
  writer.destination.empty_output_buffer = take_block;
  writer.destination.term_destination = take_last_block;
  writer.info.dest = &writer.destination;
}

void choose_quality(jpeg_compress_struct& info, int quality) {
  jpeg_set_quality(&info, quality, TRUE);
  info.optimize_coding = TRUE;
  if (quality >= 90)
    for (int i = 0; i < info.num_components; ++i)
      info.comp_info[i].h_samp_factor = info.comp_info[i].v_samp_factor = 1;
}

bool write_all(Writer& writer, const Image& image, int quality, std::string_view comment) {
  if (setjmp(writer.jump) != 0) return false;
  jpeg_compress_struct& info = writer.info;
  jpeg_create_compress(&info);
  take_blocks(writer);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = image.channels;
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  choose_quality(info, quality);
  jpeg_start_compress(&info, TRUE);
  if (!comment.empty())
    jpeg_write_marker(&info, JPEG_COM, reinterpret_cast<const JOCTET*>(comment.data()),
                      static_cast<unsigned>(comment.size()));
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(image.data.data() + info.next_scanline * image.row_bytes());
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

void check_writable(const Image& image, int quality, std::string_view comment) {
  check_image("jpeg write", image);
  check(image.bits == 8 && !image.has_alpha(), "jpeg write: image: expected 8 bits of grey or RGB, got ",
        image.bits, " bits and ", image.channels, " channels; to_rgb8 makes them so");
  check(image.width <= max_side && image.height <= max_side, "jpeg write: image: expected sides of at most ",
        max_side, " pixels, got ", image.width, " x ", image.height);
  check(quality >= 1 && quality <= 100, "jpeg write: quality: expected 1 to 100, got ", quality);
  check(comment.size() <= max_comment, "jpeg write: comment: expected at most ", max_comment, " bytes, got ",
        comment.size());
}

}  // namespace

Image parse_jpeg(Bytes bytes, std::string_view source, std::int64_t most) {
  const std::string site = ::pom::detail::concat("jpeg read: ", source);
  check(bytes.size() >= 2 && bytes[0] == std::byte{0xff} && bytes[1] == std::byte{0xd8}, site,
        ": expected a JPEG file, got other bytes at its beginning");
  Reader reader;
  if (!read_head(reader, bytes)) fail_with(reader, site);
  check_head(reader.info, bytes.size(), site, most);
  Image image = make_image(site, reader.info.image_width, reader.info.image_height,
                           channels_of(reader.info.out_color_space));
  const bool inverted = reader.info.saw_Adobe_marker;  // both are forgotten after the last row
  const int orientation = orientation_of(reader.info);
  if (!read_rows(reader, image.data.data(), image.row_bytes())) fail_with(reader, site);
  if (image.channels == 4) cmyk_to_rgb(image, inverted);
  return upright(std::move(image), orientation);
}

Image read_jpeg(const std::filesystem::path& path) {
  return parse_jpeg(detail::read_file(path, "jpeg read"), path.string());
}

std::vector<std::byte> encode_jpeg(const Image& image, int quality, std::string_view comment) {
  check_writable(image, quality, comment);
  Writer writer;
  if (!write_all(writer, image, quality, comment)) fail_with(writer, "jpeg write");
  return std::move(writer.bytes);
}

void write_jpeg(const std::filesystem::path& path, const Image& image, int quality,
                std::string_view comment) {
  const std::vector<std::byte> bytes = encode_jpeg(image, quality, comment);
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace pom::io
