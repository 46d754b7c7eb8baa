#include "pom/generate/clip_request.h"

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

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return {};
  return value;
}

// 0 for "inf".
std::int64_t frames_of(const ClipRequest& clip, const SampleDefaults& sample) {
  if (!clip.frames) return sample.frames > 0 ? sample.frames : default_frames;
  if (*clip.frames == "inf") return 0;
  const std::optional<std::int64_t> frames = whole_number(*clip.frames);
  check(frames && *frames >= 1 && *frames <= most_frames, "sample: frames: expected 1 to ", most_frames,
        ", or inf, got \"", shown(*clip.frames), "\"");
  return *frames;
}

// What the file of a stream says of its request; what is not there stays open.
struct Saved {
  Request request;
  std::string prompt;
  std::optional<double> fps;
};

Saved read_saved(const std::filesystem::path& path) {
  const io::safetensors::Header header = io::safetensors::read_header(path);
  const auto note = [&](const char* key) { return header.find_metadata(std::string("beside.") + key); };
  Saved saved;
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

Request filled(Request r, const Request& saved) {
  check(r.seed == 0 || r.seed == saved.seed, "sample: seed: a clip that is continued keeps its own, ",
        saved.seed, ", got ", r.seed);
  r.seed = saved.seed;
  const auto fill = [](auto& open, const auto& own) {
    if (!open) open = own;
  };
  fill(r.width, saved.width), fill(r.height, saved.height), fill(r.steps, saved.steps);
  fill(r.sampler, saved.sampler), fill(r.shift, saved.shift), fill(r.eta, saved.eta),
      fill(r.clamp, saved.clamp);
  if (!r.omega) fill(r.cfg_scale, saved.cfg_scale);
  fill(r.cfg_from, saved.cfg_from), fill(r.cfg_to, saved.cfg_to), fill(r.dtype, saved.dtype);
  return r;
}

void check_streaming(const ClipRequest& clip, const ModelConfig& config, bool endless) {
  const char* flag = clip.stream                   ? "stream"
                     : !clip.save_state.empty()    ? "save_state"
                     : !clip.continue_from.empty() ? "continue"
                     : endless                     ? "frames"
                                                   : nullptr;
  if (flag == nullptr) return;
  check(config.network.block_causal(), "sample: ", flag,
        ": expected a block-causal model, got one whose blocks all see each other, which cannot go block by "
        "block");
}

ClipJob::Prompt prompt_at(const std::string& text, ClipJob& job, std::int64_t block_frames) {
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

void fill_prompts(const ClipRequest& clip, ClipJob& job, std::int64_t block_frames) {
  if (clip.prompt) job.prompts.push_back({0, *clip.prompt});
  for (const std::string& text : clip.prompt_at) job.prompts.push_back(prompt_at(text, job, block_frames));
  std::ranges::stable_sort(job.prompts, {}, &ClipJob::Prompt::block);
  for (std::size_t i = 1; i < job.prompts.size(); ++i)
    check(job.prompts[i].block != job.prompts[i - 1].block,
          "sample: prompt_at: expected one prompt for a block, got two for that of frames ",
          job.prompts[i].block * block_frames, " to ", (job.prompts[i].block + 1) * block_frames - 1);
  const bool begins = !job.prompts.empty() && job.prompts.front().block == 0;
  check(begins || !job.continue_from.empty(),
        "sample: prompt: expected what the clip shows, got nothing (\"\" is a clip without text)");
}

}  // namespace

void check_state(const std::filesystem::path& path) {
  read_saved(path);
}

ClipJob resolve_clip(const ClipRequest& clip, const Request& request, const ModelConfig& config,
                     std::int64_t factor, std::int64_t block_frames) {
  ClipJob job;
  job.save_state = clip.save_state, job.continue_from = clip.continue_from;
  Request r = request;
  std::optional<double> fps = clip.fps;
  if (!clip.continue_from.empty()) {
    const Saved saved = read_saved(clip.continue_from);
    r = filled(r, saved.request);
    job.saved_prompt = saved.prompt;
    if (!fps) fps = saved.fps;
  }
  r.class_name = "none";
  r.count = 1;
  job.request = resolve(r, config, factor).front();
  check(job.request.dtype != "fp8", "sample: dtype: expected fp32, bf16, fp16 or fp64 of a clip, got fp8");
  job.fps = fps.value_or(config.sample.fps > 0 ? config.sample.fps : default_fps);
  check(job.fps > 0 && job.fps <= 1000, "sample: fps: expected above 0 and at most 1000, got ", job.fps);
  job.frames = frames_of(clip, config.sample);
  job.blocks = (job.frames + block_frames - 1) / block_frames;
  check_streaming(clip, config, job.frames == 0);
  job.stream = clip.stream || job.frames == 0 || !clip.save_state.empty() || !clip.continue_from.empty();
  const std::int64_t made = job.blocks * block_frames;
  if (made != job.frames)
    job.remarks.push_back(
        detail::concat(job.frames, " frames are no whole number of blocks of ", block_frames, ": ", made,
                       " are made, and the clip is trimmed",
                       clip.save_state.empty() ? "" : "; the state stands after the last one made"));
  if (const std::string remark = size_remark(job.request, config); !remark.empty())
    job.remarks.push_back(remark);
  fill_prompts(clip, job, block_frames);
  return job;
}

}  // namespace pom::generate
