// YUV4MPEG2: a line of text, then frames, each after a line of its own. 4:4:4, so that no colour is lost.
// What a file says of itself comes last (y4m_text.h).
#include <utility>
#include <vector>

#include "pom/io/clip_sink.h"
#include "pom/io/clip_writers.h"
#include "pom/io/y4m_text.h"
#include "pom/io/yuv.h"

namespace pom::io {
namespace {

constexpr std::string_view frame_line = "FRAME\n";

class Y4mWriter final : public ClipWriter {
 public:
  Y4mWriter(std::unique_ptr<detail::ClipSink> sink, std::string name, const ClipOptions& options)
      : ClipWriter(std::move(name), options), sink_(std::move(sink)) {
    const FrameRate rate = frame_rate(options.fps);
    sink_->write(::pom::detail::concat("YUV4MPEG2 W", options.width, " H", options.height, " F", rate.frames,
                                       ":", rate.seconds, " Ip A1:1 C444 XCOLORRANGE=LIMITED\n"));
    plane_ = static_cast<std::size_t>(options.width) * static_cast<std::size_t>(options.height);
    frame_.assign(frame_line.begin(), frame_line.end());
    frame_.resize(frame_line.size() + 3 * plane_);
  }

 private:
  void put(const Image& image) override {
    std::uint8_t* first = frame_.data() + frame_line.size();
    const detail::YuvPlane planes[3] = {
        {first, image.width}, {first + plane_, image.width}, {first + 2 * plane_, image.width}};
    detail::to_yuv444(image, detail::bt601, planes);
    sink_->write(std::as_bytes(std::span(frame_)));  // in one piece: a reader never waits for half a frame
  }
  void put_out() override {}
  void end() override {
    sink_->write(detail::y4m_ending(options().text, 3 * plane_));
    sink_->finish();
  }

  std::unique_ptr<detail::ClipSink> sink_;
  std::size_t plane_ = 0;
  std::vector<std::uint8_t> frame_;
};

}  // namespace

std::unique_ptr<ClipWriter> open_y4m(int descriptor, const ClipOptions& wanted, std::string name) {
  ClipOptions options = wanted;
  options.growing = true;
  options.text.clear();  // frames alone: a player reads them, and no file
  auto sink = std::make_unique<detail::ClipSink>(descriptor, name);
  return std::make_unique<Y4mWriter>(std::move(sink), std::move(name), options);
}

std::unique_ptr<ClipWriter> detail::open_y4m_file(const std::filesystem::path& path,
                                                  const ClipOptions& options) {
  return std::make_unique<Y4mWriter>(std::make_unique<ClipSink>(path, options.growing), path.string(),
                                     options);
}

}  // namespace pom::io
