#include "pom/generate/many_clips.h"

#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/generate/clip_engine_impl.h"
#include "pom/generate/engine.h"
#include "pom/generate/plan.h"
#include "pom/generate/video_stream.h"

namespace pom::generate {
namespace {

// decoded (B, C, t, H, W) in [-1, 1] -> uint8 (B, 3, t, H, W), rounded as pictures.h rounds.
at::Tensor to_levels(const at::Tensor& decoded, std::int64_t first) {
  check(at::isfinite(decoded).all().item<bool>(), "sample: frames ", first, " to ",
        first + decoded.size(2) - 1,
        " of the clips: expected finite values from the network, got NaN or infinite ones; the weights, or a "
        "guidance far too strong, may be why");
  const at::Tensor levels =
      (decoded.to(at::kFloat) * 127.5 + 127.5).round_().clamp_(0, 255).to(at::kByte).to(at::kCPU);
  return (levels.size(1) == 1 ? levels.expand({-1, 3, -1, -1, -1}) : levels).contiguous();
}

models::NetworkConfig with_window(models::NetworkConfig network, std::optional<std::int64_t> window) {
  if (window) network.window = *window;
  models::check_config(network, "sample: ");
  return network;
}

}  // namespace

struct ManyClips::Impl {
  ClipEngine::Impl& engine;
  Request request;
  std::int64_t block_frames;
  models::NetworkConfig network;
  std::unique_ptr<models::Denoiser> denoiser = {};

  void run(const codecs::EncodedText& text, std::vector<std::uint64_t> seeds, std::int64_t blocks,
           const ManyObserver& observer);
  diffusion::OnStep counter(const ManyObserver& observer, std::int64_t block, std::int64_t blocks) const;
};

// Counts the steps of all blocks, and stops where that is asked for.
diffusion::OnStep ManyClips::Impl::counter(const ManyObserver& observer, std::int64_t block,
                                           std::int64_t blocks) const {
  return [&observer, block, blocks, steps = *request.steps](const diffusion::StepInfo& info) {
    if (observer.on_step) observer.on_step(block * steps + info.step, blocks * steps);
    if (observer.stop != nullptr && observer.stop->load(std::memory_order_relaxed)) throw Stopped();
  };
}

// Block by block where the model is block-causal, else all at once.
void ManyClips::Impl::run(const codecs::EncodedText& text, std::vector<std::uint64_t> seeds,
                          std::int64_t blocks, const ManyObserver& observer) {
  VideoStream stream(*denoiser, engine.sampling(request, std::move(seeds)));
  stream.tell(text.tokens, text.mask);
  const std::unique_ptr<codecs::ClipDecoder> decoder = engine.codec->clip_decoder();
  const std::int64_t at_once = network.block_causal() ? 1 : blocks;
  for (std::int64_t block = 0; block < blocks; block += at_once) {
    const at::Tensor latents =
        stream.next_blocks(at_once, counter(observer, block / at_once, blocks / at_once));
    const std::int64_t first = block * block_frames;
    observer.on_frames(first, to_levels(decoder->next(latents), first));
  }
}

ManyClips::ManyClips(ClipEngine& engine, Request request, std::optional<std::int64_t> window)
    : impl_(new Impl{.engine = *engine.impl_,
                     .request = std::move(request),
                     .block_frames = engine.block_frames(),
                     .network = with_window(engine.config().network, window)}) {
  impl_->denoiser = models::Denoiser::make(impl_->network, impl_->engine.weights(), dtype_of(impl_->request));
}
ManyClips::~ManyClips() = default;

void ManyClips::run(std::span<const std::string> prompts, std::vector<std::uint64_t> seeds,
                    std::int64_t frames, const ManyObserver& observer) {
  const at::NoGradGuard no_gradients;
  check(!prompts.empty() && prompts.size() == seeds.size(),
        "sample: prompts: expected as many as seeds, at least one, got ", prompts.size(), " and ",
        seeds.size());
  check(frames >= 1, "sample: frames: expected at least one, got ", frames);
  const std::int64_t blocks = (frames + impl_->block_frames - 1) / impl_->block_frames;
  const ClipWork work{.blocks = blocks,
                      .stream = impl_->network.block_causal(),
                      .clips = static_cast<std::int64_t>(prompts.size()),
                      .on_gpu = !impl_->engine.device.is_cpu()};
  const Plan plan = make_clip_plan(impl_->engine.config, *impl_->engine.codec, impl_->request, work, {}, 0);
  check(plan.fits, clip_refusal(work, plan, "fewer or shorter clips might fit"));
  const codecs::EncodedText text = impl_->engine.encoder->encode(prompts);
  impl_->run(text, std::move(seeds), blocks, observer);
}

std::int64_t ManyClips::steps(std::int64_t frames) const {
  const std::int64_t blocks = (frames + impl_->block_frames - 1) / impl_->block_frames;
  return (impl_->network.block_causal() ? blocks : 1) * *impl_->request.steps;
}

}  // namespace pom::generate
