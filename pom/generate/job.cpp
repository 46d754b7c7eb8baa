// What makes an item a clip: frames and blocks, prompts that change, states that are continued.
#include "pom/generate/job.h"

#include <algorithm>
#include <charconv>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/generate/metadata.h"
#include "pom/generate/resolve.h"
#include "pom/io/safetensors.h"

namespace pom::generate {
namespace {

constexpr std::int64_t default_frames = 16, most_frames = 1'000'000'000;
constexpr double default_fps = 8;

// 0 for "inf".
std::int64_t frames_of(const Request& request, const SampleDefaults& sample) {
  if (!request.frames) return sample.frames > 0 ? sample.frames : default_frames;
  if (*request.frames == "inf") return 0;
  const std::optional<std::int64_t> frames = whole_number(*request.frames);
  check(frames && *frames >= 1 && *frames <= most_frames, "sample: frames: expected 1 to ", most_frames,
        ", or inf, got \"", shown(*request.frames), "\"");
  return *frames;
}

Job::Change change_at(const std::string& text, Job& job, std::int64_t block_frames) {
  const std::size_t colon = text.find(':');
  const std::optional<std::int64_t> frame =
      colon == std::string::npos ? std::nullopt : whole_number(std::string_view(text).substr(0, colon));
  check(frame && *frame >= 0,
        "sample: prompt_at: expected N:TEXT, the number of a frame and a prompt, got \"", shown(text), "\"");
  check(job.frames == 0 || *frame < job.frames, "sample: prompt_at: expected a frame below ", job.frames,
        ", got ", *frame);
  const std::int64_t block = *frame / block_frames;
  if (*frame % block_frames != 0)
    job.remarks.push_back(detail::concat("the prompt of frame ", *frame, " begins with its block, at frame ",
                                         block * block_frames));
  return {block, text.substr(colon + 1)};
}

void check_one_a_block(const Job& job, std::int64_t block_frames) {
  for (std::size_t i = 1; i < job.changes.size(); ++i)
    check(job.changes[i].block != job.changes[i - 1].block,
          "sample: prompt_at: expected one prompt for a block, got two for that of frames ",
          job.changes[i].block * block_frames, " to ", (job.changes[i].block + 1) * block_frames - 1);
}

// Those of block 0 become the items' own.
void fill_changes(Job& job, const Request& request, std::int64_t block_frames) {
  const bool begins = !request.prompt.empty();
  if (begins) job.changes.push_back({0, {}});  // so that a second one is found
  for (const std::string& text : request.prompt_at) job.changes.push_back(change_at(text, job, block_frames));
  std::ranges::stable_sort(job.changes, {}, &Job::Change::block);
  check_one_a_block(job, block_frames);
  if (job.changes.empty() || job.changes.front().block > 0) return;
  if (!begins) {
    for (Request& item : job.items) item.prompt = {job.changes.front().prompt};
    job.keeps_text = false;
  }
  job.changes.erase(job.changes.begin());
}

// A state and a stream without end are of one clip.
void check_alone(const Job& job, const Request& request) {
  const char* field = !request.continue_from.empty() ? "continue"
                      : !request.save_state.empty()  ? "save_state"
                      : job.frames == 0              ? "frames"
                                                     : nullptr;
  if (field == nullptr) return;
  check(job.items.size() == 1, "sample: ", field, ": expected one clip at a time, got ", job.items.size());
}

void remark_on_blocks(Job& job, std::int64_t block_frames) {
  const std::int64_t made = job.blocks * block_frames;
  if (!job.clip || made == job.frames) return;
  job.remarks.push_back(detail::concat(
      job.frames, " frames do not fill whole blocks of ", block_frames, ": sampling ", made, ", trimmed to ",
      job.frames, job.save_state.empty() ? "" : "; the state is that after the last sampled block"));
}

// As the items say it of themselves. What begins at block 0 is their prompt by now.
void complete_items(Job& job, const Request& request, std::int64_t block_frames) {
  for (Request& item : job.items) {
    item.frames = job.frames == 0 ? "inf" : std::to_string(job.frames);
    item.fps = job.fps;
    item.stream = job.stream;
    item.prompt_at = request.prompt_at;
    std::erase_if(item.prompt_at, [&](const std::string& text) {
      return whole_number(text.substr(0, text.find(':'))).value_or(block_frames) < block_frames;
    });
    item.continue_from = request.continue_from;
    item.save_state.clear();
  }
}

}  // namespace

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return {};
  return value;
}

Continued read_continued(const std::filesystem::path& path) {
  const io::safetensors::Header header = io::safetensors::read_header(path);
  const auto note = [&](const char* key) { return header.find_metadata(std::string("beside.") + key); };
  Continued saved;
  if (const std::string* text = note(state_note::request)) {
    saved.request = request_from_json(*text, path.string() + ": request");
    fill_shift(saved.request);
  }
  if (const std::string* text = note(state_note::prompt)) saved.prompt = *text;
  if (const std::string* text = note(state_note::fps)) {
    double fps = 0;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, fps);
    check(error == std::errc() && stop == end && fps > 0, path.string(),
          ": fps: expected a number above 0, got \"", shown(*text), "\"");
    saved.fps = fps;
  }
  return saved;
}

void check_state(const std::filesystem::path& path) {
  read_continued(path);
}

void fill_from(Request& r, const Request& saved) {
  const std::int64_t own = saved.seed.empty() ? 0 : saved.own_seed();
  check(r.seed == std::vector<std::int64_t>{0} || r.seed == std::vector{own},
        "sample: seed: a continued clip keeps seed ", own, ", got ", r.seed.empty() ? 0 : r.own_seed());
  r.seed = {own};
  const auto fill = [](auto& open, const auto& stated) {
    if (!open) open = stated;
  };
  fill(r.width, saved.width), fill(r.height, saved.height), fill(r.steps, saved.steps);
  fill(r.sampler, saved.sampler), fill(r.shift, saved.shift), fill(r.eta, saved.eta);
  fill(r.clamp, saved.clamp), fill(r.dtype, saved.dtype), fill(r.window, saved.window);
  if (!r.omega) fill(r.cfg_scale, saved.cfg_scale);
  fill(r.cfg_from, saved.cfg_from), fill(r.cfg_to, saved.cfg_to);
  fill(r.negative_prompt, saved.negative_prompt), fill(r.fps, saved.fps);
}

void resolve_clip(Job& job, const Request& request, const ModelConfig& config, const ModelShape& shape) {
  job.save_state = request.save_state, job.continue_from = request.continue_from;
  job.fps = request.fps.value_or(config.sample.fps > 0 ? config.sample.fps : default_fps);
  check(job.fps > 0 && job.fps <= 1000, "sample: fps: expected above 0 and at most 1000, got ", job.fps);
  job.frames = frames_of(request, config.sample);
  job.clip = job.frames != 1;
  job.blocks = (job.frames + shape.block_frames - 1) / shape.block_frames;
  job.stream = request.stream || job.frames == 0 || !job.save_state.empty() || !job.continue_from.empty();
  check(job.frames != 0 || config.network.block_causal(),
        "sample: frames: expected a block-causal model, got one whose blocks all see each other, which "
        "cannot be streamed");
  check(
      !config.network.needs_length() || (job.frames != 0 && job.continue_from.empty()),
      "sample: ", job.frames == 0 ? "frames" : "continue",
      ": expected a clip whose length is known when it begins, as this model's time code is relative to it");
  check_alone(job, request);
  remark_on_blocks(job, shape.block_frames);
  fill_changes(job, request, shape.block_frames);
  complete_items(job, request, shape.block_frames);
}

}  // namespace pom::generate
