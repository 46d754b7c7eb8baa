// Clips are read by FFmpeg, but for folders of PNG, which need only libpng: a frame is a file there.
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include "pom/io/clip_source.h"
#include "pom/io/frame_folder.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

void check_reading(const std::string& name, const ClipReading& reading) {
  check((reading.width == 0) == (reading.height == 0) && reading.width >= 0 && reading.height >= 0,
        "clip read: ", name, ": expected both sides or none, got ", reading.width, "x", reading.height);
  if (reading.width > 0) check_size("clip read: " + name, reading.width, reading.height);
  check(reading.fps >= 0 && reading.fps <= 1000, "clip read: ", name, ": fps: expected 0 to 1000, got ",
        reading.fps);
  check(reading.start >= 0 && std::isfinite(reading.start), "clip read: ", name,
        ": start: expected at least 0, got ", reading.start);
}

class FramesOfFolder final : public detail::FrameSource {
 public:
  explicit FramesOfFolder(const fs::path& folder) : folder_(folder), count_(frames_in(folder).written) {
    check(count_ > 0, "clip read: ", folder.string(), ": expected frames that ", detail::record_name,
          " counts, got a folder without");
    first_ = frame(0);
    info.width = first_->width;
    info.height = first_->height;
    info.format = "folder";
    info.codec = "png";
  }

  bool next(Image& out) override {
    if (given_ == count_) return false;
    out = first_ ? *std::exchange(first_, std::nullopt) : frame(given_);
    ++given_;
    return true;
  }

 private:
  Image frame(std::int64_t number) const {
    const fs::path path = folder_ / detail::frame_name(number);
    Image image = to_rgb8(parse_png_image(detail::read_file(path, "clip read", max_frame_bytes),
                                          path.string(), max_frame_pixels));
    check(number == 0 || (image.width == info.width && image.height == info.height),
          "clip read: ", path.string(), ": expected ", info.width, "x", info.height,
          " as the first frame, got ", image.width, "x", image.height);
    return image;
  }

  // Of the largest frame whose pixels do not pack at all, with 16 bits of RGBA, and its text.
  static constexpr std::uint64_t max_frame_bytes = 9 * std::uint64_t{max_frame_pixels};

  fs::path folder_;
  std::int64_t count_, given_ = 0;
  std::optional<Image> first_;  // until it is given
};

}  // namespace

std::unique_ptr<detail::FrameSource> detail::open_frames_of(const fs::path& folder,
                                                            const ClipReading& reading) {
  check(reading.width == 0 && reading.fps == 0 && reading.start == 0, "clip read: ", folder.string(),
        ": expected 0 for size, fps and start of a folder, whose frames come as they are, got ",
        reading.width, "x", reading.height, ", ", reading.fps, " and ", reading.start);
  return std::make_unique<FramesOfFolder>(folder);
}

struct ClipReader::Impl {
  std::unique_ptr<detail::FrameSource> source;
};

ClipReader::ClipReader(const fs::path& path, const ClipReading& reading) : impl_(std::make_unique<Impl>()) {
  check_reading(path.string(), reading);
  std::error_code ignored;
  impl_->source = fs::is_directory(path, ignored) ? detail::open_frames_of(path, reading)
                                                  : detail::open_decoded(path, reading);
}
ClipReader::~ClipReader() = default;
ClipReader::ClipReader(ClipReader&&) noexcept = default;

const ClipInfo& ClipReader::info() const {
  return impl_->source->info;
}

bool ClipReader::next(Image& frame) {
  return impl_->source->next(frame);
}

}  // namespace pom::io
