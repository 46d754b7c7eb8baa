// Clips of many prompts at a time, for whoever measures a model rather than watches its clips. What clip b
// shows depends on its own prompt and seed, not on its neighbours. B clips, t frames of H x W pixels.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/generate/clip_engine.h"

namespace pom::generate {

// Called from the thread that runs. Throwing from any of them ends the run.
struct ManyObserver {
  std::function<void(std::int64_t done, std::int64_t total)> on_step;  // of the sampler, over all blocks
  // Frames `first`, `first` + 1, … of all clips: uint8 (B, 3, t, H, W) on the host. They come in order.
  std::function<void(std::int64_t first, const at::Tensor& frames)> on_frames;
  const std::atomic<bool>* stop = nullptr;  // the run ends with Stopped (engine.h) at the next step
};

class ManyClips {
 public:
  // `request` is complete, as ClipEngine::resolve gives it; its seed is not looked at. `window` is what a
  // block sees while sampling, in blocks (0: all before it), where it is not to be the model's own. The
  // engine must outlive this.
  ManyClips(ClipEngine& engine, Request request, std::optional<std::int64_t> window = {});
  ~ManyClips();

  // At least `frames` frames of each prompt, in whole blocks: block by block where the model is block-causal.
  void run(std::span<const std::string> prompts, std::vector<std::uint64_t> seeds, std::int64_t frames,
           const ManyObserver& observer);
  std::int64_t steps(std::int64_t frames) const;  // of the sampler in such a run

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::generate
