// Live streams: clips without end that viewers watch while they are made, and whose prompt they change. A
// stream keeps to its clock, never far ahead of it, waits for no viewer, and rests when nobody looks. On the
// server's thread, but for what workers do for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pom/net/http_server.h"
#include "pom/serve/live_video.h"
#include "pom/serve/owners.h"
#include "pom/serve/queue.h"

namespace pom::serve {

struct LiveLimits {
  std::size_t streams = 4, viewers = 64;  // of all; of one
  std::int64_t pixels = 512 * 512;
  std::int64_t video_pixels = 1024 * 1024;  // of a frame of an .mp4, enlarged
  double rest_seconds = 60;                 // without a viewer, then it ends
  double keep_seconds = 3600;               // what it was is known for so long, and can be gone on from
  std::filesystem::path state = {};         // folder in which streams outlive the server; empty: they do not
};

enum class StreamState { starting, running, paused, resting, ended, failed };
const char* name_of(StreamState state);

struct StreamPrompt {
  std::int64_t number = 0;
  std::string text;
  std::int64_t frame = 0;  // the first that shows it
};

struct LiveFrame {
  std::int64_t index = 0, prompt = 0;
  std::uint64_t microseconds = 0;  // since 1970, when it was shown
  net::Bytes png, jpeg;            // jpeg where somebody wants it
  struct Video {                   // likewise, with the first frame of a block
    std::shared_ptr<LiveVideo> of;
    std::vector<io::ClipPiece> pieces;
  };
  std::vector<Video> videos = {};
};

// How a viewer gets frames.
enum class FrameFormat { records, mjpeg, video };

struct LiveStream;

class Live {
 public:
  struct Hooks {
    std::function<void(const LiveStream&)> on_change = {};
    std::function<void()> on_block = {}, on_dropped = {};
    std::function<void(double seconds)> on_late = {};
    std::function<std::int64_t()> batches_memory = {};       // bytes, of what runs beside
    std::function<bool()> pictures_wait = {};                // others want the device too
    std::function<void(const std::string&)> on_remark = {};  // for the log
  };
  Live(std::vector<Queue::Device> devices, Pool& pool, Post post, PostAfter post_after, LiveLimits limits,
       QueueLimits request_limits, Hooks hooks);
  ~Live();

  using Pointer = std::shared_ptr<LiveStream>;
  // Throws ApiError.
  Pointer open(std::size_t model, generate::Request request, const std::string& client);
  Pointer find(std::string_view id) const;
  std::vector<Pointer> streams_of(const std::string& client) const;  // newest first
  std::vector<Pointer> all() const;
  StreamPrompt tell(LiveStream& stream, const std::string& prompt);
  void pause(LiveStream& stream, bool paused);
  // A new stream that goes on from where this one is made up to now.
  Pointer fork(LiveStream& stream, const std::string& client, const std::string& prompt);
  void end(LiveStream& stream);

  // Over a restart, where there is a folder for it: streams are written there while they run and when they
  // are suspended; `resume` opens them again. What is no stream of ours is remarked on and left alone.
  bool keeps_state() const { return !limits_.state.empty(); }
  void resume();
  void suspend(LiveStream& stream);
  bool suspended() const;                 // all of them
  void adopt(const std::string& client);  // what was this client's before is again

  void forget_old();  // from time to time
  // `scale`: of an .mp4, whose pixels become so many squared.
  void watch(const Pointer& stream, std::shared_ptr<net::Exchange> exchange, FrameFormat format,
             std::int64_t scale = 1);

  std::size_t running() const;
  std::int64_t memory() const;  // bytes, of those that run
  std::size_t viewers() const;
  Json json(const LiveStream& stream) const;

 private:
  void check_prompt(const std::string& prompt) const;
  void check_job(const generate::Job& job) const;
  void check_memory(const LiveStream& stream) const;
  std::filesystem::path state_path(const LiveStream& stream) const;
  generate::BesideStream captured(LiveStream& stream);
  bool state_is_due(const LiveStream& stream) const;
  void write_state(const Pointer& stream, const generate::BesideStream& beside);
  void keep(const Pointer& stream);
  void resume(const std::filesystem::path& path);
  void restore_request(LiveStream& stream, const std::string& text, const std::filesystem::path& path) const;
  void restore_progress(LiveStream& stream, const Json& json, const generate::BesideStream& beside,
                        const std::filesystem::path& path) const;
  void start(const Pointer& stream);
  void want_block(const Pointer& stream);
  void block_made(const Pointer& stream, std::vector<LiveFrame> frames, double seconds);
  void tell_rate(LiveStream& stream);
  void tick(const Pointer& stream);
  void show(LiveStream& stream, LiveFrame frame);
  std::shared_ptr<LiveVideo> video_of(LiveStream& stream, std::int64_t scale) const;
  void viewers_changed(const Pointer& stream);
  void close(LiveStream& stream, StreamState state);
  void change(LiveStream& stream, StreamState state);
  void fail(const Pointer& stream, const std::string& message);

  std::vector<Queue::Device> devices_;
  Pool& pool_;
  Post post_;
  PostAfter post_after_;
  LiveLimits limits_;
  QueueLimits request_limits_;
  Hooks hooks_;
  std::map<std::string, Pointer, std::less<>> streams_;
  std::filesystem::path scratch_;  // for states
  Owners owners_;
  std::uint64_t opened_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

enum class Suspended { no, asked, done };
inline const std::string not_told = "\xff";  // which no prompt is

struct LiveStream {
  struct Viewer {
    std::shared_ptr<net::BodyStream> body;
    FrameFormat format;
    std::int64_t sent = -1;
  };
  // What the worker's thread has of it.
  struct Making {
    std::unique_ptr<LiveSource> source;
    std::atomic<bool> stop = false;
    std::string told;  // by the last block
  };

  std::string id, client;
  std::string owner;  // of one from before a restart, until its client comes (owners.h)
  std::size_t model = 0;
  Queue::Device device{};
  generate::Job job;
  StreamState state = StreamState::starting;
  std::vector<StreamPrompt> prompts;
  std::optional<std::string> forked_from;
  std::string error;
  std::uint64_t number = 0;
  double created = 0;               // seconds since 1970
  double ended = 0, unwatched = 0;  // by a steady clock, as are all that follow

  std::shared_ptr<Making> making = std::make_shared<Making>();
  bool block_wanted = false;   // one is being made
  bool saving = false;         // of one that has ended
  bool waits_for_end = false;  // as nobody looks
  std::int64_t blocks = 0;     // made
  std::int64_t base = 0;       // frames before those of `making`: before a restart
  double saved = -1e9;         // when its state was written last, by a steady clock
  std::int64_t saved_prompt = -1;
  Suspended suspended = Suspended::no;
  std::int64_t memory = 0;  // bytes
  std::deque<LiveFrame> ready;
  bool ticking = false, paused = false;
  double due = 0;         // the next frame, by the stream's clock
  double rate = 0;        // frames a second that it could make
  double told_rate = 0;   // the one that listeners know of
  double told_at = -1e9;  // since when, by a steady clock
  double next_block = 0;  // not before
  LiveFrame newest;
  std::int64_t shown = 0;  // frames
  std::vector<std::shared_ptr<Viewer>> viewers;
  std::vector<std::shared_ptr<LiveVideo>> videos;  // that somebody watches

  bool over() const { return state == StreamState::ended || state == StreamState::failed; }
};

// A frame as /frames sends it: u32 length of the PNG, u32 index, u64 µs, u32 number of the prompt, the PNG.
net::Bytes frame_record(const LiveFrame& frame);

}  // namespace pom::serve
