#include "pom/generate/clip_engine.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/generate/clip_engine_impl.h"
#include "pom/generate/device.h"
#include "pom/generate/engine.h"
#include "pom/generate/folder_parts.h"
#include "pom/generate/metadata.h"
#include "pom/generate/pictures.h"
#include "pom/generate/plan.h"
#include "pom/generate/resolve.h"
#include "pom/generate/tensor_file.h"
#include "pom/generate/text_folder.h"
#include "pom/generate/video_stream.h"
#include "pom/io/clip.h"
#include "pom/models/weights.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

std::uint64_t first_seed(const ClipJob& job) {
  return static_cast<std::uint64_t>(job.request.seed);
}

// Frames of a run as they come, cut where the clip ends.
class Frames {
 public:
  Frames(const ClipJob& job, const ClipObserver& observer) : job_(job), observer_(observer) {}

  // decoded (1, C, t, H, W), of a block.
  void give(const at::Tensor& decoded) {
    for (io::Image& frame : to_frames(decoded[0], job_.request, given_)) {
      if (job_.frames != 0 && given_ == job_.frames) break;
      if (observer_.on_frame) observer_.on_frame(std::move(frame));
      ++given_;
    }
    if (observer_.on_block) observer_.on_block();
  }

 private:
  const ClipJob& job_;
  const ClipObserver& observer_;
  std::int64_t given_ = 0;
};

// Counts the steps of all blocks, and stops where that is asked for.
diffusion::OnStep step_counter(const ClipJob& job, const ClipObserver& observer, std::int64_t block,
                               std::int64_t blocks) {
  const std::int64_t steps = *job.request.steps;
  return [&observer, block, blocks, steps](const diffusion::StepInfo& info) {
    if (observer.on_step) observer.on_step(block * steps + info.step, blocks * steps);
    if (observer.stop != nullptr && observer.stop->load(std::memory_order_relaxed)) throw Stopped();
  };
}

}  // namespace

ClipEngine::Impl::Impl(const fs::path& where, c10::Device on)
    : folder(where), device(on), files(open_model(where)), config(files.config), name(config.name) {
  if (name.empty()) name = folder_name(folder);
  check(config.network.video(), "model folder: ", where.string(),
        ": expected a model for clips, got one for pictures (network.kind is ", config.network.kind, ")");
  codec = codecs::make_codec(config.codec, config.network.channels);
  encoder = open_text(*files.text, config);
  encoder->to(device);
}

models::Weights ClipEngine::Impl::weights() {
  models::Weights weights = files.weights.take();
  if (!device.is_cpu())
    for (auto& [tensor_name, tensor] : weights) tensor = tensor.to(device);
  return weights;
}

ClipSampling ClipEngine::Impl::sampling(const Request& r, std::vector<std::uint64_t> seeds) const {
  return {.height = *r.height / codec->factor(),
          .width = *r.width / codec->factor(),
          .seeds = std::move(seeds),
          .path = path_of(config.diffusion),
          .sampler = *r.sampler,
          .options = sampler_options(r),
          .guidance = guidance_of(r)};
}

// Of each block: tokens (1, blocks, L, width), mask (1, blocks, L).
codecs::EncodedText ClipEngine::Impl::block_texts(const ClipJob& job) const {
  std::vector<std::string> prompts;
  for (const ClipJob::Prompt& prompt : job.prompts) prompts.push_back(prompt.text);
  const codecs::EncodedText all = encoder->encode(prompts);
  at::Tensor which = at::empty({job.blocks}, at::kLong);  // of the prompts
  for (std::size_t i = 0; i < job.prompts.size(); ++i)
    which.slice(0, job.prompts[i].block).fill_(static_cast<std::int64_t>(i));
  which = which.to(all.tokens.device());
  return {all.tokens.index_select(0, which).unsqueeze(0), all.mask.index_select(0, which).unsqueeze(0), {}};
}

ClipWork ClipEngine::Impl::work(const ClipJob& job) const {
  return {.blocks = job.blocks, .stream = job.stream, .on_gpu = !device.is_cpu()};
}

std::int64_t ClipEngine::Impl::stored_bytes() const {
  return files.weights.bytes();
}

void ClipEngine::Impl::run_whole(const ClipJob& job, const ClipObserver& observer) {
  const at::NoGradGuard no_gradients;
  const auto network = models::Denoiser::make(config.network, weights(), dtype_of(job.request));
  VideoStream clip(*network, sampling(job.request, {first_seed(job)}));
  const codecs::EncodedText text = block_texts(job);
  clip.tell(text.tokens, text.mask);
  const at::Tensor latents = clip.next_blocks(job.blocks, step_counter(job, observer, 0, 1));
  const std::unique_ptr<codecs::ClipDecoder> decoder = codec->clip_decoder();
  Frames frames(job, observer);
  const std::int64_t pt = config.network.patch_time;
  for (std::int64_t block = 0; block < job.blocks; ++block)
    frames.give(decoder->next(latents.narrow(2, block * pt, pt).to(at::kCPU)));
}

void ClipEngine::Impl::run_stream(const ClipJob& job, const ClipObserver& observer) {
  const auto network = models::Denoiser::make(config.network, weights(), dtype_of(job.request));
  VideoStream stream(*network, sampling(job.request, {first_seed(job)}),
                     {files.weights.hash(), encoder->hash(), encoder->limit()});
  const std::unique_ptr<codecs::ClipDecoder> decoder = codec->clip_decoder();
  if (!job.continue_from.empty()) decoder->set_state(stream.restore(job.continue_from).tensors);
  std::string prompt = job.saved_prompt;
  const auto save = [&] {
    if (job.save_state.empty() || stream.block() == 0) return;
    stream.save(job.save_state, {.notes = {{state_note::request, request_json(job.request)},
                                           {state_note::prompt, prompt},
                                           {state_note::fps, number_text(job.fps)}},
                                 .tensors = decoder->state()});
  };
  Frames frames(job, observer);
  auto next_prompt = job.prompts.begin();
  try {
    for (std::int64_t block = 0; job.blocks == 0 || block < job.blocks; ++block) {
      if (next_prompt != job.prompts.end() && next_prompt->block == block) {
        prompt = (next_prompt++)->text;
        const codecs::EncodedText text = encoder->encode({&prompt, 1});
        stream.tell(text.tokens, text.mask);
      }
      const at::Tensor latents = stream.next_block(step_counter(job, observer, block, job.blocks));
      frames.give(decoder->next(latents.to(at::kCPU)));
    }
  } catch (const Stopped&) {
    save();
    throw;
  } catch (const io::ClosedPipe&) {
    save();
    throw;
  }
  save();
}

ClipEngine::ClipEngine(const fs::path& folder, std::string_view device)
    : impl_(std::make_unique<Impl>(folder, device_named(device, "sample"))) {}
ClipEngine::~ClipEngine() = default;
ClipEngine::ClipEngine(ClipEngine&&) noexcept = default;
ClipEngine& ClipEngine::operator=(ClipEngine&&) noexcept = default;

const ModelConfig& ClipEngine::config() const {
  return impl_->config;
}
const fs::path& ClipEngine::folder() const {
  return impl_->folder;
}
const std::string& ClipEngine::name() const {
  return impl_->name;
}
std::string ClipEngine::device() const {
  return impl_->device.str();
}
const std::string& ClipEngine::weights_hash() const {
  return impl_->files.weights.hash();
}
const std::string& ClipEngine::text_hash() const {
  return impl_->encoder->hash();
}
std::int64_t ClipEngine::block_frames() const {
  return impl_->config.network.patch_time * impl_->codec->time_factor();
}

ClipJob ClipEngine::resolve(const ClipRequest& clip, const Request& request) const {
  ClipJob job = resolve_clip(clip, request, impl_->config, impl_->codec->factor(), block_frames());
  for (const ClipJob::Prompt& prompt : job.prompts)
    for (const std::string& warning : impl_->encoder->encode({&prompt.text, 1}).warnings)
      job.remarks.push_back(
          job.prompts.size() == 1
              ? warning
              : detail::concat("from frame ", prompt.block * block_frames(), " on: ", warning));
  return job;
}

void ClipEngine::Impl::sample(const ClipJob& job, const ClipObserver& observer) {
  if (job.stream)
    run_stream(job, observer);
  else
    run_whole(job, observer);
}

void ClipEngine::run(const ClipJob& job, const ClipObserver& observer, const Limits& limits) {
  const ClipWork work = impl_->work(job);
  const Plan plan =
      make_clip_plan(impl_->config, *impl_->codec, job.request, work, limits, impl_->stored_bytes());
  if (!plan.fits)
    fail(clip_refusal(
        work, plan,
        clip_advice(impl_->config, *impl_->codec, job.request, work, plan, impl_->stored_bytes())));
  impl_->sample(job, observer);
}

}  // namespace pom::generate
