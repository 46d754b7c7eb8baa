// Live streams over a restart: each in a file, written whole or not at all, from which it goes on with the
// frames that it would have had.
#include <algorithm>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/generate/metadata.h"
#include "pom/io/atomic_file.h"
#include "pom/serve/live.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;

constexpr double seconds_between = 5;  // of two states of a stream that runs
constexpr std::size_t most_prompts = 200, most_ready = 256;

std::string id_of(const fs::path& path) {
  const std::string id = path.stem().string();
  check(path.extension() == ".safetensors" && is_id(id), path.string(),
        ": expected a name of 32 hexadecimal digits, got another");
  return id;
}

}  // namespace

fs::path Live::state_path(const LiveStream& stream) const {
  return limits_.state / (stream.id + ".safetensors");
}

// Frames that are made and not shown are in it: none is left out.
generate::BesideStream Live::captured(LiveStream& stream) {
  stream.saved = steady_seconds(), stream.saved_prompt = stream.prompts.back().number;
  generate::BesideStream beside;
  Json ready = Json::array(), prompts = Json::array();
  for (const LiveFrame& frame : stream.ready) {
    ready.push_back({{"index", frame.index}, {"prompt", frame.prompt}});
    beside.files.push_back(*frame.png);
  }
  for (const StreamPrompt& prompt : stream.prompts)
    prompts.push_back({{"number", prompt.number}, {"text", prompt.text}, {"frame", prompt.frame}});
  const ModelInfo& model = stream.device.backend->models().at(stream.model);
  const Json json = {{"format", 1},
                     {"id", stream.id},
                     {"owner", stream.owner.empty() ? owners_.of(stream.client) : stream.owner},
                     {"sha256", model.sha256},
                     {"request", Json::parse(generate::request_json(stream.job.first()))},
                     {"blocks", stream.blocks},
                     {"shown", stream.shown},
                     {"paused", stream.paused},
                     {"created", stream.created},
                     {"forked_from", stream.forked_from ? Json(*stream.forked_from) : Json(nullptr)},
                     {"told", stream.making->told == not_told ? Json(nullptr) : Json(stream.making->told)},
                     {"prompts", std::move(prompts)},
                     {"ready", std::move(ready)}};
  beside.text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return beside;
}

// Before a block is made: now and then, and always where a new prompt begins.
bool Live::state_is_due(const LiveStream& stream) const {
  return keeps_state() && stream.blocks > 0 &&
         (steady_seconds() - stream.saved >= seconds_between ||
          stream.saved_prompt != stream.prompts.back().number);
}

// On the worker.
void Live::write_state(const Pointer& stream, const generate::BesideStream& beside) {
  try {
    stream->making->source->save(state_path(*stream), beside);
  } catch (const std::exception& error) {
    post_([this, alive = alive_, message = std::string(error.what())] {
      if (*alive && hooks_.on_remark) hooks_.on_remark(message);
    });
  }
}

void Live::suspend(LiveStream& stream) {
  if (stream.over() || stream.suspended != Suspended::no) return;
  change(stream, StreamState::resting);
  for (const auto& viewer : stream.viewers) viewer->body->end();
  stream.viewers.clear(), stream.videos.clear();
  stream.suspended = Suspended::asked;
  if (!stream.block_wanted) keep(find(stream.id));
}

void Live::keep(const Pointer& stream) {
  if (stream->blocks == 0) {
    stream->suspended = Suspended::done;
    return;
  }
  stream->device.worker->add_urgent([this, alive = alive_, stream, beside = captured(*stream)] {
    if (stream->making->source) write_state(stream, beside);
    post_([alive, stream] {
      if (*alive) stream->suspended = Suspended::done;
    });
  });
}

bool Live::suspended() const {
  return std::ranges::all_of(streams_, [](const auto& entry) {
    return entry.second->over() ? !entry.second->saving : entry.second->suspended == Suspended::done;
  });
}

// ---- after the restart ----

void Live::resume() {
  if (!keeps_state()) return;
  io::remove_temporaries(limits_.state);
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(limits_.state))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::ranges::sort(files);
  for (const fs::path& path : files) {
    std::string wrong;
    try {
      resume(path);
      continue;
    } catch (const Json::exception&) {
      wrong = path.string() + ": expected what this server writes of a stream, got something else";
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    if (hooks_.on_remark) hooks_.on_remark(wrong + "; the stream is not gone on with, the file stays");
  }
}

void Live::resume(const fs::path& path) {
  check(!fs::is_symlink(path) && fs::is_regular_file(path), path.string(), ": expected a file, got another");
  const std::string id = id_of(path);
  check(running() < limits_.streams, path.string(), ": expected at most ", limits_.streams,
        " streams (--most-streams), got one more");
  const generate::BesideStream beside = generate::read_beside(path);
  const Json json = Json::parse(beside.text);
  check(json.at("format") == 1 && json.at("id") == id, path.string(),
        ": expected the stream of its name, got another");
  const Queue::Device& device = devices_[opened_ % devices_.size()];
  const std::vector<ModelInfo>& models = device.backend->models();
  const auto model = std::ranges::find(models, json.at("sha256").get<std::string>(), &ModelInfo::sha256);
  check(model != models.end() && model->streams, path.string(),
        ": expected a stream of a model that is served, got one of another");
  auto stream = std::make_shared<LiveStream>();
  stream->id = id, stream->owner = json.at("owner"), stream->device = device;
  stream->model = static_cast<std::size_t>(model - models.begin());
  restore_request(*stream, json.at("request").dump(), path);
  restore_progress(*stream, json, beside, path);
  stream->memory = device.backend->memory(stream->model, stream->job, 1);
  check_memory(*stream);
  stream->number = opened_++;
  streams_[id] = stream;
  start(stream);
}

void Live::restore_request(LiveStream& stream, const std::string& text, const fs::path& path) const {
  generate::Request request = generate::request_from_json(text, path.string());
  generate::check_no_writing(request, path.string());
  check(request.init.empty() && request.continue_from.empty(), path.string(),
        ": request: expected no other files, got one");
  request.frames = "inf", request.count = 1;
  stream.job = stream.device.backend->resolve(stream.model, request);
  check_job(stream.job);
  stream.job.continue_from = path, stream.job.keeps_text = true, stream.job.changes.clear();
}

void Live::restore_progress(LiveStream& stream, const Json& json, const generate::BesideStream& beside,
                            const fs::path& path) const {
  stream.blocks = json.at("blocks"), stream.shown = json.at("shown"), stream.paused = json.at("paused");
  stream.created = json.at("created");
  if (!json.at("forked_from").is_null()) stream.forked_from = json.at("forked_from").get<std::string>();
  stream.making->told = json.at("told").is_null() ? not_told : json.at("told").get<std::string>();
  const std::int64_t each = stream.device.backend->models().at(stream.model).block_frames;
  constexpr std::int64_t most_blocks = std::int64_t{1} << 31;
  check(stream.blocks >= 1 && stream.blocks < most_blocks && is_id(stream.owner), path.string(),
        ": expected the blocks and the owner of a stream, got ", stream.blocks, " and \"",
        shown(stream.owner), "\"");
  stream.base = stream.blocks * each;
  const Json &prompts = json.at("prompts"), &ready = json.at("ready");
  check(prompts.is_array() && !prompts.empty() && prompts.size() <= most_prompts && ready.is_array() &&
            ready.size() == beside.files.size() && ready.size() <= most_ready,
        path.string(), ": expected prompts and the frames that wait, got others");
  for (const Json& prompt : prompts) {
    stream.prompts.push_back({prompt.at("number"), prompt.at("text"), prompt.at("frame")});
    check_prompt(stream.prompts.back().text);
  }
  for (std::size_t i = 0; i < ready.size(); ++i) {
    check(beside.files[i].starts_with("\x89PNG"), path.string(), ": frame ", i, ": expected a PNG");
    LiveFrame& frame = stream.ready.emplace_back();
    frame.index = ready[i].at("index"), frame.prompt = ready[i].at("prompt");
    frame.png = std::make_shared<const std::string>(beside.files[i]);
  }
}

// Whoever owned a stream before the restart is known when it comes again.
void Live::adopt(const std::string& client) {
  for (const auto& [id, stream] : streams_)
    if (!stream->owner.empty() && stream->owner == owners_.of(client))
      stream->client = client, stream->owner.clear();
}

}  // namespace pom::serve
