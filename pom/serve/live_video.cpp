#include "pom/serve/live_video.h"

#include <algorithm>
#include <utility>

#include "pom/base/error.h"
#include "pom/io/mp4_fragment.h"

namespace pom::serve {
namespace {

// Each pixel as a square of them: 4:2:0 has one colour for four pixels, which at 1:1 are not alike.
io::Image enlarged(const io::Image& image, int scale) {
  io::Image large = io::make_image("serve", image.width * scale, image.height * scale, 3);
  for (int y = 0; y < large.height; ++y) {
    const std::uint8_t* const from = image.row(y / scale).data();
    std::uint8_t* const to = large.row(y).data();
    for (int x = 0; x < large.width; ++x) std::copy_n(from + 3 * (x / scale), 3, to + 3 * x);
  }
  return large;
}

}  // namespace

std::vector<io::ClipPiece> LiveVideo::encode(std::span<const io::Image> frames) {
  for (const io::Image& frame : frames) {
    const io::Image image = enlarged(io::to_rgb8(frame), scale_);
    if (!writer_)
      writer_ = io::open_clip_stream({.width = image.width, .height = image.height, .fps = fps_},
                                     [this](io::ClipPiece&& piece) { made_.push_back(std::move(piece)); });
    writer_->add(image);
  }
  if (writer_) writer_->flush();
  return std::exchange(made_, {});
}

void LiveVideo::join(std::shared_ptr<net::BodyStream> body) {
  viewers_.push_back({.body = std::move(body)});
  begin(viewers_.back());
}

void LiveVideo::leave(const std::shared_ptr<net::BodyStream>& body) {
  std::erase_if(viewers_, [&](const Viewer& viewer) { return viewer.body == body; });
}

void LiveVideo::abort() {
  for (const Viewer& viewer : viewers_) viewer.body->abort();
  viewers_.clear();
}

// What is held begins with a key.
void LiveVideo::begin(Viewer& viewer) const {
  if (!head_ || held_.empty()) return;
  viewer.begun = true;
  viewer.begin = io::fragment_time(*held_.front()).value_or(0);
  viewer.body->write(head_);
  for (const net::Bytes& fragment : held_) send(viewer, fragment);
}

void LiveVideo::send(const Viewer& viewer, const net::Bytes& fragment) {
  if (viewer.begin == 0) {
    viewer.body->write(fragment);
    return;
  }
  std::string own = *fragment;
  io::set_fragment_time(own, io::fragment_time(own).value_or(viewer.begin) - viewer.begin);
  viewer.body->write(std::make_shared<const std::string>(std::move(own)));
}

bool LiveVideo::too_slow(Viewer& viewer, double now) {
  const std::size_t waiting = viewer.body->waiting_bytes();
  if (waiting == 0)
    viewer.behind_since = -1;
  else if (viewer.behind_since < 0)
    viewer.behind_since = now;
  return waiting > most_behind_bytes ||
         (viewer.behind_since >= 0 && now - viewer.behind_since > most_behind_seconds);
}

void LiveVideo::give(std::vector<io::ClipPiece> pieces, double now) {
  std::erase_if(viewers_, [&](Viewer& viewer) {
    const bool slow = too_slow(viewer, now);
    if (slow) viewer.body->abort();  // who comes again begins at a key frame
    return slow;
  });
  for (io::ClipPiece& piece : pieces) {
    const bool fragment = io::fragment_time(piece.bytes).has_value(), key = piece.key;
    const auto bytes = std::make_shared<const std::string>(std::move(piece.bytes));
    if (!fragment) {
      head_ = bytes;
      continue;
    }
    if (key || held_bytes_ + bytes->size() > most_behind_bytes) held_.clear(), held_bytes_ = 0;
    if (key || !held_.empty()) held_.push_back(bytes), held_bytes_ += bytes->size();
    for (Viewer& viewer : viewers_)
      if (viewer.begun)
        send(viewer, bytes);
      else
        begin(viewer);
  }
}

}  // namespace pom::serve
