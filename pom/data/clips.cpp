// Clips are decoded when they are asked for, never before. F frames of H x W pixels.
#include "pom/data/clips.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/mirror.h"
#include "pom/data/streams.h"
#include "pom/io/clip.h"

namespace pom::data {
namespace {

struct ClipFiles {
  std::vector<CaptionedClip> clips;
  std::unique_ptr<std::atomic<float>[]> seconds;  // how long each is; below 0: not yet looked at

  explicit ClipFiles(std::vector<CaptionedClip> found)
      : clips(std::move(found)), seconds(std::make_unique<std::atomic<float>[]>(clips.size())) {
    for (std::size_t i = 0; i < clips.size(); ++i) seconds[i] = -1;
  }
};

class ClipFolder final : public Dataset {
 public:
  ClipFolder(std::shared_ptr<ClipFiles> files, const DataConfig& config, bool training, std::uint64_t seed)
      : files_(std::move(files)), config_(config), training_(training), seed_(seed) {}

  std::int64_t size() const override { return std::ssize(files_->clips); }
  const std::vector<std::string>& classes() const override {
    static const std::vector<std::string> none;
    return none;
  }
  std::vector<std::int64_t> shape() const override {
    return {3, config_.frames, config_.size[1], config_.size[0]};
  }

  Example get(std::int64_t index, std::int64_t visit) const override {
    const CaptionedClip& clip = clip_at(index);
    check(!clip.caption.empty(), "clip read: ", clip.path.string(), ": expected a caption, got none");
    Example example{at::empty(shape(), at::kByte), 0, clip.caption};
    auto* bytes = example.picture.data_ptr<std::uint8_t>();
    read_frames(clip.path, start_of(index, visit), bytes);
    if (training_ && config_.flip && is_mirrored(seed_, index, visit))
      mirror({bytes, static_cast<std::size_t>(example.picture.numel())}, config_.size[0]);
    return example;
  }

  std::string name_of(std::int64_t index) const override { return clip_at(index).path.string(); }

 private:
  const CaptionedClip& clip_at(std::int64_t index) const {
    check(index >= 0 && index < size(), "data: index: expected below ", size(), ", got ", index);
    return files_->clips[static_cast<std::size_t>(index)];
  }

  // Whole frames into a clip, so that what is read is the same on every machine.
  double start_of(std::int64_t index, std::int64_t visit) const {
    if (!training_) return 0;
    std::atomic<float>& seconds = files_->seconds[static_cast<std::size_t>(index)];
    if (seconds < 0) seconds = static_cast<float>(io::ClipReader(clip_at(index).path).info().seconds);
    const auto frames =
        static_cast<std::int64_t>(std::floor(static_cast<double>(seconds) * config_.fps + 1e-3));
    const std::int64_t spare = frames - config_.frames;
    if (spare <= 0) return 0;
    const NoiseKey key{seed_, noise_for::data_content, streams::clip_start};
    const double u = uniform_at(key, (index << 20) + (visit & 0xfffff));
    return static_cast<double>(
               std::min(spare, static_cast<std::int64_t>(u * static_cast<double>(spare + 1)))) /
           config_.fps;
  }

  void read_frames(const std::filesystem::path& path, double start, std::uint8_t* out) const {
    const std::int64_t width = config_.size[0], height = config_.size[1], pixels = width * height;
    io::ClipReader reader(path, {.width = static_cast<int>(width),
                                 .height = static_cast<int>(height),
                                 .fps = config_.fps,
                                 .start = start});
    io::Image frame;
    for (std::int64_t f = 0; f < config_.frames; ++f) {
      check(reader.next(frame), "clip read: ", path.string(), ": expected ", config_.frames, " frames at ",
            config_.fps, " a second, got ", f);
      for (std::int64_t c = 0; c < 3; ++c) {
        std::uint8_t* plane = out + (c * config_.frames + f) * pixels;
        for (std::int64_t i = 0; i < pixels; ++i) plane[i] = frame.data[static_cast<std::size_t>(3 * i + c)];
      }
    }
  }

  std::shared_ptr<ClipFiles> files_;
  DataConfig config_;
  bool training_;
  std::uint64_t seed_;
};

}  // namespace

FileSets open_clip_folder(const DataConfig& config, std::uint64_t seed) {
  check_picture_size(config);
  check_clip_length(config);
  check(!io::clip_libraries().empty(),
        "data: kind: clips: this libpom was built without FFmpeg: install libavformat-dev, libavcodec-dev, "
        "libswscale-dev and libavutil-dev and build it again");
  const auto files = std::make_shared<ClipFiles>(find_clips(config.path));
  return {std::make_shared<ClipFolder>(files, config, true, seed),
          std::make_shared<ClipFolder>(files, config, false, seed)};
}

}  // namespace pom::data
