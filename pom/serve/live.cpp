#include "pom/serve/live.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <stdlib.h>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/io/jpeg.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t blocks_ahead = 2;  // of the clock: more, and a new prompt shows late
constexpr double share_of_device = 0.7;   // where pictures wait too

// A server that was killed leaves its folder, which has its process's number, to the next one to remove.
constexpr std::string_view scratch_prefix = "pom-live-";

void remove_stale_scratch(const fs::path& place) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(place, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(scratch_prefix) || entry.is_symlink(ignored)) continue;
    char* end = nullptr;
    const long process = std::strtol(name.c_str() + scratch_prefix.size(), &end, 10);
    if (process > 0 && *end == '-' && ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH)
      fs::remove_all(entry.path(), ignored);
  }
}

// Prompts are in what it holds: a folder that is made here is for nobody else.
const fs::path& made_private(const fs::path& folder) {
  if (!folder.empty() && fs::create_directories(folder)) fs::permissions(folder, fs::perms::owner_all);
  return folder;
}

// On the pool. Pieces of nothing: it cannot be made.
LiveFrame::Video encoded(const std::shared_ptr<LiveVideo>& video, std::span<const io::Image> images) {
  try {
    return {video, video->encode(images)};
  } catch (const std::exception&) {
    return {video, {}};
  }
}

}  // namespace

const char* name_of(StreamState state) {
  constexpr std::array names = {"starting", "running", "paused", "resting", "ended", "failed"};
  return names.at(static_cast<std::size_t>(state));
}

Live::Live(std::vector<Queue::Device> devices, Pool& pool, Post post, PostAfter post_after, LiveLimits limits,
           QueueLimits request_limits, Hooks hooks)
    : devices_(std::move(devices)),
      pool_(pool),
      post_(std::move(post)),
      post_after_(std::move(post_after)),
      limits_(limits),
      request_limits_(request_limits),
      hooks_(std::move(hooks)),
      owners_(made_private(limits_.state)) {
  remove_stale_scratch(fs::temp_directory_path());
  std::string name =
      (fs::temp_directory_path() / detail::concat(scratch_prefix, ::getpid(), "-XXXXXX")).string();
  check(::mkdtemp(name.data()) != nullptr, "serve: expected to make a folder in ",
        fs::temp_directory_path().string());
  scratch_ = name;
}

Live::~Live() {
  *alive_ = false;
  for (auto& [id, stream] : streams_) stream->making->stop = true;
  std::error_code ignored;
  fs::remove_all(scratch_, ignored);
}

// ---- streams ----

Live::Pointer Live::open(std::size_t model, generate::Request request, const std::string& client) {
  const Queue::Device& device = devices_[opened_ % devices_.size()];
  const ModelInfo& info = device.backend->models().at(model);
  if (!info.streams)
    throw ApiError(400, "not_supported", "model: expected one that streams, got " + info.id, "model");
  forget_old();
  if (running() >= limits_.streams) {
    ApiError error(503, "queue_full",
                   detail::concat("expected at most ", limits_.streams, " streams at a time, got one more"));
    error.retry_after = limits_.rest_seconds;
    throw error;
  }
  auto stream = std::make_shared<LiveStream>();
  if (request.seed.size() == 1 && request.seed.front() < 0 && !request.continue_from.empty())
    request.seed = {};
  request.frames = "inf";
  request.count = 1;
  try {
    stream->job = device.backend->resolve(model, request);
  } catch (const Error& error) {
    throw field_error(error.what());
  }
  check_job(stream->job);
  stream->memory = device.backend->memory(model, stream->job, 1);
  check_memory(*stream);
  const generate::Request& r = stream->job.first();
  stream->id = random_id(), stream->client = client, stream->model = model, stream->device = device;
  stream->number = opened_++;
  stream->created = now_seconds(), stream->unwatched = steady_seconds();
  stream->prompts = {{0, r.subject(), 0}};
  stream->making->told = r.subject();
  streams_[stream->id] = stream;
  start(stream);
  return stream;
}

void Live::check_job(const generate::Job& job) const {
  const generate::Request& r = job.first();
  const auto most = [](const char* field, std::int64_t limit, std::int64_t got) {
    if (got > limit)
      throw ApiError(400, "too_expensive", detail::concat(field, ": expected at most ", limit, ", got ", got),
                     field);
  };
  most("prompt", 1, std::ssize(job.items));
  most("steps", request_limits_.steps, *r.steps);
  most("width", limits_.pixels, *r.width * *r.height);
  most("prompt", request_limits_.prompt_bytes, std::ssize(r.subject()));
}

void Live::check_memory(const LiveStream& stream) const {
  const std::int64_t others = memory() + (hooks_.batches_memory ? hooks_.batches_memory() : 0);
  if (request_limits_.memory == 0 || stream.memory + others <= request_limits_.memory) return;
  constexpr std::int64_t mib = 1 << 20;
  ApiError error(503, "out_of_memory",
                 detail::concat("expected at most ", request_limits_.memory / mib,
                                " MiB of work at a time (pom serve --most-memory), got ", stream.memory / mib,
                                " MiB beside ", others / mib, " MiB"));
  error.retry_after = limits_.rest_seconds;
  throw error;
}

std::int64_t Live::memory() const {
  std::int64_t all = 0;
  for (const auto& [id, stream] : streams_) all += stream->over() ? 0 : stream->memory;
  return all;
}

void Live::start(const Pointer& stream) {
  stream->block_wanted = true;
  stream->device.worker->add_urgent([this, alive = alive_, stream] {
    if (stream->making->stop) return;
    std::string failed;
    try {
      stream->making->source = stream->device.backend->open(stream->model, stream->job);
    } catch (const std::exception& error) {
      failed = error.what();
    }
    std::error_code ignored;
    if (stream->job.continue_from.parent_path() == scratch_) fs::remove(stream->job.continue_from, ignored);
    post_([this, alive, stream, failed] {
      if (!*alive || stream->over()) return;
      stream->block_wanted = false;
      if (!failed.empty()) return fail(stream, failed);
      if (stream->suspended == Suspended::asked) return keep(stream);
      change(*stream, StreamState::running);
      viewers_changed(stream);
      want_block(stream);
    });
  });
  if (hooks_.on_change) hooks_.on_change(*stream);
}

void Live::fail(const Pointer& stream, const std::string& message) {
  stream->error = message;
  if (stream->base > 0 && hooks_.on_remark) hooks_.on_remark("stream " + stream->id + ": " + message);
  close(*stream, StreamState::failed);
}

void Live::change(LiveStream& stream, StreamState state) {
  if (stream.over() || stream.state == state) return;
  stream.state = state;
  if (hooks_.on_change) hooks_.on_change(stream);
}

void Live::close(LiveStream& stream, StreamState state) {
  if (stream.over()) return;
  change(stream, state);
  stream.ended = steady_seconds();
  stream.ready.clear();
  for (const auto& viewer : stream.viewers) viewer->body->end();
  stream.viewers.clear(), stream.videos.clear();
  // Its state stays, to go on from; the network goes. Where the worker is at a block, that ends first.
  stream.making->stop = true;
  stream.saving = true;
  stream.device.worker->add_urgent([this, alive = alive_, own = find(stream.id),
                                    path = scratch_ / (stream.id + ".safetensors"),
                                    ends = state == StreamState::ended] {
    std::error_code ignored;
    if (keeps_state() && ends) fs::remove(state_path(*own), ignored);
    if (own->making->source) {
      try {
        own->making->source->save(path, {});
      } catch (const std::exception&) {  // then nobody goes on from it
      }
      own->making->source.reset();
    }
    post_([alive, own] {
      if (*alive) own->saving = false;
    });
  });
  forget_old();
}

// Of one that failed, or could not be gone on with, the file goes too.
void Live::end(LiveStream& stream) {
  if (stream.over() && keeps_state()) {
    std::error_code ignored;
    fs::remove(state_path(stream), ignored);
  }
  close(stream, StreamState::ended);
}

void Live::forget_old() {
  constexpr std::size_t most_ended = 32;
  std::vector<Pointer> ended;
  for (const auto& [id, stream] : streams_)
    if (stream->over() && !stream->saving) ended.push_back(stream);
  std::ranges::sort(ended, {}, [](const Pointer& stream) { return stream->ended; });
  const double now = steady_seconds();
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (ended.size() - i <= most_ended && ended[i]->ended + limits_.keep_seconds > now) continue;
    std::error_code ignored;
    fs::remove(scratch_ / (ended[i]->id + ".safetensors"), ignored);
    streams_.erase(ended[i]->id);
  }
}

Live::Pointer Live::find(std::string_view id) const {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

std::vector<Live::Pointer> Live::streams_of(const std::string& client) const {
  std::vector<Pointer> own;
  for (const auto& [id, stream] : streams_)
    if (stream->client == client) own.push_back(stream);
  std::ranges::sort(own, std::greater(), [](const Pointer& stream) { return stream->number; });
  return own;
}

std::vector<Live::Pointer> Live::all() const {
  std::vector<Pointer> streams;
  for (const auto& [id, stream] : streams_) streams.push_back(stream);
  return streams;
}

void Live::check_prompt(const std::string& prompt) const {
  if (std::ssize(prompt) > request_limits_.prompt_bytes)
    throw ApiError(400, "too_expensive",
                   detail::concat("prompt: expected at most ", request_limits_.prompt_bytes, " bytes, got ",
                                  prompt.size()),
                   "prompt");
  if (prompt.find('\0') != std::string::npos)
    throw ApiError(400, "invalid_value", "prompt: expected text, got a byte 0", "prompt");
}

StreamPrompt Live::tell(LiveStream& stream, const std::string& prompt) {
  if (stream.over()) throw ApiError(409, "ended", "the stream has ended");
  check_prompt(prompt);
  // The block that is being made has begun with the last one.
  const bool begun = stream.block_wanted && stream.state != StreamState::starting;
  const std::int64_t block = stream.blocks + (begun ? 1 : 0);
  const std::int64_t frame = block * stream.device.backend->models().at(stream.model).block_frames;
  StreamPrompt next{stream.prompts.back().number + 1, prompt, frame};
  if (stream.prompts.back().frame == frame && stream.prompts.size() > 1)
    stream.prompts.back() = next;  // nobody will see the last one
  else
    stream.prompts.push_back(next);
  constexpr std::size_t most = 200;
  if (stream.prompts.size() > most) stream.prompts.erase(stream.prompts.begin());
  if (hooks_.on_change) hooks_.on_change(stream);
  return next;
}

void Live::pause(LiveStream& stream, bool paused) {
  if (stream.over()) throw ApiError(409, "ended", "the stream has ended");
  stream.paused = paused;
  const Pointer own = find(stream.id);
  if (stream.state != StreamState::starting) viewers_changed(own);
}

Live::Pointer Live::fork(LiveStream& stream, const std::string& client, const std::string& prompt) {
  check_prompt(prompt);
  // The state is written by the worker after the block it is at; whoever opens the new stream comes after it.
  const fs::path path = scratch_ / (random_id() + ".safetensors");
  if (stream.blocks == 0) throw ApiError(409, "too_early", "the stream has no frames yet to go on from");
  if (stream.over() && !stream.saving && !fs::exists(scratch_ / (stream.id + ".safetensors")))
    throw ApiError(409, "ended", "the stream has ended, and its state is gone");
  forget_old();
  if (running() >= limits_.streams)
    throw ApiError(503, "queue_full",
                   detail::concat("expected at most ", limits_.streams, " streams at a time, got one more"));
  auto fork = std::make_shared<LiveStream>();
  fork->id = random_id(), fork->client = client, fork->model = stream.model, fork->device = stream.device;
  fork->number = opened_++;
  fork->created = now_seconds(), fork->unwatched = steady_seconds();
  fork->job = stream.job;
  fork->job.continue_from = path, fork->job.keeps_text = true, fork->job.changes.clear();
  fork->forked_from = stream.id;
  fork->memory = stream.memory;
  check_memory(*fork);
  const std::string text = prompt.empty() ? stream.prompts.back().text : prompt;
  fork->prompts = {{0, text, 0}};
  fork->making->told = not_told;  // it is told anew
  streams_[fork->id] = fork;
  const fs::path ended = scratch_ / (stream.id + ".safetensors");
  stream.device.worker->add_urgent([making = stream.making, path, ended] {
    try {
      if (making->source)
        making->source->save(path, {});
      else if (fs::exists(ended))
        fs::copy_file(ended, path);
    } catch (const std::exception&) {  // who opens it says what is missing
    }
  });
  start(fork);
  return fork;
}

// ---- blocks ----

void Live::want_block(const Pointer& stream) {
  const std::int64_t each = stream->device.backend->models().at(stream->model).block_frames;
  const bool wanted = stream->state == StreamState::running && stream->suspended == Suspended::no &&
                      !stream->block_wanted && std::ssize(stream->ready) <= (blocks_ahead - 1) * each;
  if (!wanted) return;
  const double now = steady_seconds();
  if (now < stream->next_block) {
    const auto wait =
        std::chrono::milliseconds(1 + static_cast<std::int64_t>(1000 * (stream->next_block - now)));
    return post_after_(wait, [this, alive = alive_, stream] {
      if (*alive) want_block(stream);
    });
  }
  std::optional<generate::BesideStream> state;
  if (state_is_due(*stream)) state = captured(*stream);
  stream->block_wanted = true;
  const std::string prompt = stream->prompts.back().text;
  const bool jpeg = std::ranges::any_of(
      stream->viewers, [](const auto& viewer) { return viewer->format == FrameFormat::mjpeg; });
  const std::vector<std::shared_ptr<LiveVideo>> videos = stream->videos;
  const std::int64_t number = stream->prompts.back().number;
  stream->device.worker->add_urgent([this, alive = alive_, stream, prompt, jpeg, number, videos, state] {
    LiveStream::Making& making = *stream->making;
    if (making.stop || !making.source) return;
    if (state) write_state(stream, *state);
    const double began = steady_seconds();
    generate::Frames made;
    try {
      if (making.told != prompt) making.source->tell(prompt), making.told = prompt;
      made = making.source->next(making.stop, {});
    } catch (const generate::Stopped&) {
      return;
    } catch (const std::exception& error) {
      return post_([this, alive, stream, message = std::string(error.what())] {
        if (*alive) fail(stream, message);
      });
    }
    const double seconds = steady_seconds() - began;
    pool_.add([this, alive, stream, jpeg, number, videos, seconds, made = std::move(made)] {
      std::vector<LiveFrame> frames;
      for (std::size_t i = 0; i < made.images.size(); ++i) {
        LiveFrame& frame = frames.emplace_back();
        frame.index = stream->base + made.first + static_cast<std::int64_t>(i), frame.prompt = number;
        frame.png = shared_bytes(io::encode_png(made.images[i]));
        if (jpeg) frame.jpeg = shared_bytes(io::encode_jpeg(io::to_rgb8(made.images[i]), 92));
      }
      for (const std::shared_ptr<LiveVideo>& video : videos)  // with the first frame of its block
        frames.front().videos.push_back(encoded(video, made.images));
      post_([this, alive, stream, seconds, frames = std::move(frames)]() mutable {
        if (*alive) block_made(stream, std::move(frames), seconds);
      });
    });
  });
}

void Live::block_made(const Pointer& stream, std::vector<LiveFrame> frames, double seconds) {
  stream->block_wanted = false;
  ++stream->blocks;
  if (stream->over()) return;
  const double rate = static_cast<double>(frames.size()) / std::max(seconds, 1e-6);
  stream->rate = stream->rate == 0 ? rate : 0.8 * stream->rate + 0.2 * rate;
  tell_rate(*stream);
  if (hooks_.pictures_wait && hooks_.pictures_wait())
    stream->next_block = steady_seconds() + seconds * (1 - share_of_device) / share_of_device;
  for (LiveFrame& frame : frames) stream->ready.push_back(std::move(frame));
  if (hooks_.on_block) hooks_.on_block();
  if (stream->suspended == Suspended::asked) return keep(stream);
  if (stream->viewers.empty() && !stream->paused) change(*stream, StreamState::resting);
  if (!stream->ticking) tick(stream);
  want_block(stream);
}

// The first rate at once, another one after two seconds or more.
void Live::tell_rate(LiveStream& stream) {
  constexpr double period = 2, least = 0.05;
  const double now = steady_seconds();
  if (now - stream.told_at < period || std::abs(stream.rate - stream.told_rate) < least) return;
  stream.told_rate = stream.rate, stream.told_at = now;
  if (hooks_.on_change) hooks_.on_change(stream);
}

// Shows the frame that is due, and comes again when the next one is. A clock that finds nothing waits.
void Live::tick(const Pointer& stream) {
  stream->ticking = false;
  if (stream->state != StreamState::running || stream->ready.empty()) return;
  const double now = steady_seconds(), period = 1 / stream->job.fps;
  if (stream->due == 0 || now - stream->due > period) {
    if (stream->due != 0 && hooks_.on_late) hooks_.on_late(now - stream->due);
    stream->due = now;  // slower, and not in leaps
  }
  if (now >= stream->due - 0.0005) {
    LiveFrame frame = std::move(stream->ready.front());
    stream->ready.pop_front();
    stream->due += period;
    show(*stream, std::move(frame));
    want_block(stream);
    if (stream->ready.empty()) return;
  }
  stream->ticking = true;
  const double wait = std::max(0.0, stream->due - steady_seconds());
  post_after_(std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(wait * 1000))),
              [this, alive = alive_, stream] {
                if (*alive) tick(stream);
              });
}

std::size_t Live::running() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(streams_, [](const auto& entry) { return !entry.second->over(); }));
}

std::size_t Live::viewers() const {
  std::size_t all = 0;
  for (const auto& [id, stream] : streams_) all += stream->viewers.size();
  return all;
}

Json Live::json(const LiveStream& stream) const {
  Json prompts = Json::array();
  for (const StreamPrompt& prompt : stream.prompts)
    prompts.push_back({{"number", prompt.number}, {"text", prompt.text}, {"frame", prompt.frame}});
  const ModelInfo& model = stream.device.backend->models().at(stream.model);
  const generate::Request& r = stream.job.first();
  return {{"id", stream.id},
          {"model", model.id},
          {"state", name_of(stream.state)},
          {"width", *r.width},
          {"height", *r.height},
          {"fps", stream.job.fps},
          {"rate", std::round(stream.rate * 100) / 100},
          {"block_frames", model.block_frames},
          {"frame", stream.shown},
          {"viewers", stream.viewers.size()},
          {"seed", r.own_seed()},
          {"prompts", std::move(prompts)},
          {"forked_from", stream.forked_from ? Json(*stream.forked_from) : Json(nullptr)},
          {"error", stream.error.empty() ? Json(nullptr) : Json(stream.error)}};
}

}  // namespace pom::serve
