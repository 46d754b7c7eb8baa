// Who watches a live stream, and what they get of it.
#include <algorithm>

#include "pom/base/error.h"
#include "pom/serve/live.h"

namespace pom::serve {
namespace {

void put(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

net::Bytes mjpeg_part(const LiveFrame& frame) {
  return std::make_shared<const std::string>(
      detail::concat("--frame\r\nContent-Type: image/jpeg\r\nContent-Length: ", frame.jpeg->size(),
                     "\r\n\r\n", *frame.jpeg, "\r\n"));
}

}  // namespace

net::Bytes frame_record(const LiveFrame& frame) {
  std::string record;
  record.reserve(20 + frame.png->size());
  put(record, frame.png->size(), 4);
  put(record, static_cast<std::uint64_t>(frame.index), 4);
  put(record, frame.microseconds, 8);
  put(record, static_cast<std::uint64_t>(frame.prompt), 4);
  record += *frame.png;
  return std::make_shared<const std::string>(std::move(record));
}

void Live::show(LiveStream& stream, LiveFrame frame) {
  frame.microseconds = static_cast<std::uint64_t>(now_seconds() * 1e6);
  stream.shown = frame.index + 1;
  for (LiveFrame::Video& video : frame.videos) {
    if (video.pieces.empty())
      video.of->abort();
    else
      video.of->give(std::move(video.pieces), steady_seconds());
  }
  frame.videos.clear();
  stream.newest = std::move(frame);
  net::Bytes record, part;
  for (const auto& viewer : stream.viewers) {
    if (viewer->format == FrameFormat::video) continue;
    if (viewer->body->waiting_bytes() > 0) {  // it gets the newest when it is ready
      if (hooks_.on_dropped) hooks_.on_dropped();
      continue;
    }
    if (viewer->format == FrameFormat::records) {
      if (!record) record = frame_record(stream.newest);
      viewer->body->write(record);
    } else if (stream.newest.jpeg) {
      if (!part) part = mjpeg_part(stream.newest);
      viewer->body->write(part);
    }
    viewer->sent = stream.newest.index;
  }
}

namespace {

const char* type_of(FrameFormat format) {
  if (format == FrameFormat::video) return "video/mp4";
  return format == FrameFormat::records ? "application/octet-stream"
                                        : "multipart/x-mixed-replace; boundary=frame";
}

// The last frame at once, and the newest whenever it is ready for one: a picture stands there from the
// beginning.
void give_newest(const std::shared_ptr<LiveStream>& stream,
                 const std::shared_ptr<LiveStream::Viewer>& viewer) {
  const std::weak_ptr<LiveStream> weak = stream;
  const std::weak_ptr<LiveStream::Viewer> weak_viewer = viewer;
  viewer->body->on_drained([weak, weak_viewer] {
    const auto own = weak.lock();
    const auto who = weak_viewer.lock();
    if (!own || !who || !own->newest.png || who->sent >= own->newest.index) return;
    if (who->format == FrameFormat::mjpeg && !own->newest.jpeg) return;
    who->sent = own->newest.index;
    who->body->write(who->format == FrameFormat::records ? frame_record(own->newest)
                                                         : mjpeg_part(own->newest));
  });
}

}  // namespace

// The encoder of this scale: one that is there, or a new one.
std::shared_ptr<LiveVideo> Live::video_of(LiveStream& stream, std::int64_t scale) const {
  if (io::clip_libraries().empty())
    throw ApiError(400, "not_supported", "video.mp4: this server was built without FFmpeg");
  const generate::Request& r = stream.job.first();
  if (scale < 1 || *r.width * *r.height * scale * scale > limits_.video_pixels)
    throw ApiError(400, "out_of_range",
                   detail::concat("scale: expected 1 or more, and at most ", limits_.video_pixels,
                                  " pixels in all, got ", scale),
                   "scale");
  for (const std::shared_ptr<LiveVideo>& video : stream.videos)
    if (video->scale() == scale) return video;
  constexpr std::size_t most = 2;
  if (stream.videos.size() >= most)
    throw ApiError(503, "queue_full", "scale: expected one of the two that are being watched, got a third",
                   "scale");
  return stream.videos.emplace_back(std::make_shared<LiveVideo>(static_cast<int>(scale), stream.job.fps));
}

void Live::watch(const Pointer& stream, std::shared_ptr<net::Exchange> exchange, FrameFormat format,
                 std::int64_t scale) {
  if (stream->viewers.size() >= limits_.viewers)
    throw ApiError(
        503, "queue_full",
        detail::concat("expected at most ", limits_.viewers, " viewers of a stream, got one more"));
  const bool only_head =
      stream->over() || stream->suspended != Suspended::no || exchange->request().method == "HEAD";
  std::shared_ptr<LiveVideo> video;
  if (format == FrameFormat::video && !only_head) video = video_of(*stream, scale);
  net::Headers headers = {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}};
  headers.set("Content-Type", type_of(format));
  auto viewer = std::make_shared<LiveStream::Viewer>();
  viewer->format = format;
  viewer->body = exchange->stream(200, std::move(headers));
  if (only_head) return viewer->body->end();
  stream->viewers.push_back(viewer);
  if (video)
    video->join(viewer->body);
  else
    give_newest(stream, viewer);
  const std::weak_ptr<LiveStream> weak = stream;
  const std::weak_ptr<LiveStream::Viewer> weak_viewer = viewer;
  exchange->on_gone([this, alive = alive_, weak, weak_viewer] {
    const auto own = weak.lock();
    const auto who = weak_viewer.lock();
    if (!*alive || !own || !who) return;
    for (const std::shared_ptr<LiveVideo>& each : own->videos) each->leave(who->body);
    std::erase_if(own->videos, [](const auto& each) { return each->viewers() == 0; });
    std::erase(own->viewers, who);
    viewers_changed(own);
  });
  viewers_changed(stream);
}

// Who looks decides whether it runs.
void Live::viewers_changed(const Pointer& stream) {
  if (stream->over() || stream->suspended != Suspended::no) return;
  if (stream->state != StreamState::starting) {
    const StreamState next = stream->paused                                  ? StreamState::paused
                             : stream->viewers.empty() && stream->blocks > 0 ? StreamState::resting
                                                                             : StreamState::running;
    if (next == StreamState::running && stream->state != next) stream->due = 0;
    change(*stream, next);
    want_block(stream);
    if (!stream->ticking) tick(stream);
  }
  if (hooks_.on_change) hooks_.on_change(*stream);
  if (!stream->viewers.empty()) {
    stream->unwatched = 0;
    return;
  }
  if (stream->unwatched != 0 && stream->state != StreamState::starting && stream->waits_for_end) return;
  stream->unwatched = steady_seconds(), stream->waits_for_end = true;
  post_after_(std::chrono::milliseconds(static_cast<std::int64_t>(1000 * limits_.rest_seconds) + 50),
              [this, alive = alive_, stream] {
                stream->waits_for_end = false;
                if (!*alive || stream->over() || !stream->viewers.empty()) return;
                if (stream->suspended != Suspended::no || stream->unwatched == 0) return;
                if (steady_seconds() - stream->unwatched >= limits_.rest_seconds) end(*stream);
              });
}

}  // namespace pom::serve
