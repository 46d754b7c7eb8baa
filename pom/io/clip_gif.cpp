// GIF89a: every frame has its own palette, and leaves out what has not changed since the last one.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "pom/io/clip_sink.h"
#include "pom/io/clip_writers.h"
#include "pom/io/palette.h"
#include "pom/io/text_comment.h"

namespace pom::io {
namespace {

// The codes of LZW, packed from the lowest bit on, in blocks of at most 255 bytes after their length.
class CodeWriter {
 public:
  explicit CodeWriter(std::string& out) : out_(out) {}

  void write(std::uint32_t code, int bits) {
    waiting_ |= code << held_;
    for (held_ += bits; held_ >= 8; held_ -= 8, waiting_ >>= 8) put(static_cast<char>(waiting_ & 255));
  }
  void finish() {
    if (held_ > 0) put(static_cast<char>(waiting_ & 255));
    if (!block_.empty()) put_block();
    out_ += '\0';
  }

 private:
  void put(char byte) {
    block_ += byte;
    if (block_.size() == 255) put_block();
  }
  void put_block() {
    out_ += static_cast<char>(block_.size());
    out_ += block_;
    block_.clear();
  }

  std::string& out_;
  std::string block_;
  std::uint32_t waiting_ = 0;
  int held_ = 0;
};

// Strings seen so far, as a string before and one more pixel: a row of children for each code.
void write_lzw(std::span<const std::uint8_t> pixels, int bits, std::string& out) {
  constexpr std::uint32_t limit = 4096;
  const std::uint32_t clear = 1u << bits, stop = clear + 1;
  out += static_cast<char>(bits);
  CodeWriter codes(out);
  std::vector<std::uint16_t> child(limit << 8);
  std::uint32_t next = stop + 1;
  int width = bits + 1;
  codes.write(clear, width);
  std::uint32_t current = pixels[0];
  for (std::size_t i = 1; i < pixels.size(); ++i) {
    std::uint16_t& longer = child[current << 8 | pixels[i]];
    if (longer != 0) {
      current = longer;
      continue;
    }
    codes.write(current, width);
    current = pixels[i];
    if (next < limit) {
      if (next == 1u << width) ++width;
      longer = static_cast<std::uint16_t>(next++);
    } else {
      codes.write(clear, width);
      std::fill(child.begin(), child.end(), 0);
      next = stop + 1;
      width = bits + 1;
    }
  }
  codes.write(current, width);
  // The reader adds a string for the code just written, which may widen the codes.
  if (next < limit && next == 1u << width) ++width;
  codes.write(stop, width);
  codes.finish();
}

void put16(std::string& out, std::int64_t value) {
  out += static_cast<char>(value & 255);
  out += static_cast<char>(value >> 8 & 255);
}

int bits_for(std::size_t colours) {
  int bits = 2;  // LZW has no less
  while ((std::size_t{1} << bits) < colours) ++bits;
  return bits;
}

struct Area {
  int left, top, width, height;
};

class GifWriter final : public ClipWriter {
 public:
  GifWriter(const std::filesystem::path& path, const ClipOptions& options)
      : ClipWriter(path.string(), options), sink_(path, options.growing) {
    std::string head = "GIF89a";
    put16(head, options.width);
    put16(head, options.height);
    head += std::string("\x70\0\0", 3);                                // no palette for all frames
    head += std::string("\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0", 19);  // again and again
    put_comment(head, detail::as_comment(options.text));
    sink_.write(head);
  }

 private:
  static void put_comment(std::string& out, std::string_view text) {
    if (text.empty()) return;
    out += "\x21\xfe";
    for (; !text.empty(); text.remove_prefix(std::min<std::size_t>(255, text.size()))) {
      const std::string_view block = text.substr(0, 255);
      out += static_cast<char>(block.size());
      out += block;
    }
    out += '\0';
  }

  // In hundredths of a second, so that no rounding adds up.
  std::int64_t delay() const {
    const auto end_of = [this](std::int64_t frame) {
      return std::llround(100 * static_cast<double>(frame) / options().fps);
    };
    return std::clamp<std::int64_t>(end_of(frames() + 1) - end_of(frames()), 1, 65535);
  }

  // The least rectangle that holds all changes; one pixel where there is none.
  Area changed(const Image& frame) const {
    if (!last_) return {0, 0, frame.width, frame.height};
    int left = frame.width, top = frame.height, right = 0, bottom = 0;
    for (int y = 0; y < frame.height; ++y)
      for (int x = 0; x < frame.width; ++x)
        if (!same(frame, x, y)) {
          left = std::min(left, x), right = std::max(right, x + 1);
          top = std::min(top, y), bottom = std::max(bottom, y + 1);
        }
    if (right == 0) return {0, 0, 1, 1};
    return {left, top, right - left, bottom - top};
  }

  bool same(const Image& frame, int x, int y) const {
    const auto place = static_cast<std::size_t>(3 * x);
    return std::equal(&frame.row(y)[place], &frame.row(y)[place] + 3, &last_->row(y)[place]);
  }

  void put(const Image& frame) override {
    const Area area = changed(frame);
    std::vector<std::uint8_t> rgb;
    std::vector<bool> keeps;  // pixels that stay as they are
    for (int y = area.top; y < area.top + area.height; ++y)
      for (int x = area.left; x < area.left + area.width; ++x) {
        keeps.push_back(last_ && same(frame, x, y));
        if (keeps.back()) continue;
        const std::uint8_t* pixel = &frame.row(y)[static_cast<std::size_t>(3 * x)];
        rgb.insert(rgb.end(), pixel, pixel + 3);
      }
    const detail::Indexed few = detail::to_palette(rgb, 255);
    const auto transparent = static_cast<std::uint8_t>(few.palette.size());
    std::vector<std::uint8_t> pixels;
    pixels.reserve(keeps.size());
    std::size_t taken = 0;
    for (const bool keep : keeps) pixels.push_back(keep ? transparent : few.pixels[taken++]);
    write_frame(area, few.palette, transparent, pixels);
    last_ = frame;
  }

  void write_frame(const Area& area, std::span<const Rgb> palette, std::uint8_t transparent,
                   std::span<const std::uint8_t> pixels) {
    const int bits = bits_for(palette.size() + 1);
    std::string out("\x21\xf9\x04\x05", 4);  // stays when the next one comes; one index is transparent
    put16(out, delay());
    out += static_cast<char>(transparent);
    out += std::string("\0\x2c", 2);
    for (const int number : {area.left, area.top, area.width, area.height}) put16(out, number);
    out += static_cast<char>(0x80 | (bits - 1));
    for (std::size_t i = 0; i < std::size_t{1} << bits; ++i) {
      const Rgb colour = i < palette.size() ? palette[i] : Rgb{0, 0, 0};
      out += {static_cast<char>(colour.red), static_cast<char>(colour.green), static_cast<char>(colour.blue)};
    }
    write_lzw(pixels, bits, out);
    sink_.write(out);
  }

  void put_out() override {}
  void end() override {
    sink_.write(";");
    sink_.finish();
  }

  detail::ClipSink sink_;
  std::optional<Image> last_;
};

}  // namespace

std::unique_ptr<ClipWriter> detail::open_gif(const std::filesystem::path& path, const ClipOptions& options) {
  check(options.fps <= 50, "clip write: ", path.string(),
        ": fps: expected at most 50 in a GIF, whose players slow down what is faster, got ", options.fps);
  check(options.width < 65536 && options.height < 65536, "clip write: ", path.string(),
        ": expected sides below 65536 in a GIF, got ", options.width, "x", options.height);
  return std::make_unique<GifWriter>(path, options);
}

}  // namespace pom::io
