// The network for clips made ready to stream: block by block, no gradients, and of all blocks before only the
// states of the mixers (of attention: its keys and values). Every evaluation of a block has states of its
// own, one for each layer: at its evaluation i a block sees what those before it were at theirs.
// Shapes: B clips, C channels, pt frames of a block, H x W the latent, d width, kD features.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/weights.h"

namespace pom::models {

// One evaluation of a block: the diffusion time, and whether the answer without text is wanted too.
struct Evaluation {
  double t = 0;
  bool both = false;
};

class VideoDenoiser {
 public:
  // As Denoiser takes them; a network whose temporal mask is "none" has no stream and is refused.
  VideoDenoiser(const NetworkConfig& config, Weights weights, at::ScalarType dtype = at::kFloat);
  ~VideoDenoiser();
  VideoDenoiser(VideoDenoiser&&) noexcept;
  VideoDenoiser& operator=(VideoDenoiser&&) noexcept;

  const NetworkConfig& config() const;
  at::ScalarType dtype() const;
  at::Device device() const;

  // Begins anew at block 0, with clips whose blocks will be evaluated like this, in this order.
  void plan(std::int64_t batch, std::int64_t height, std::int64_t width, std::vector<Evaluation> evaluations);

  // What the clips are told from the next evaluation on: text (B, L, text_width), mask (B, L) bool. A text of
  // which nothing counts is no text.
  void tell(const at::Tensor& text, const at::Tensor& mask);

  // Evaluation i of the block: x (B, C, pt, H, W) -> (B, …), or (2B, …) where both: the second half without
  // text. What later blocks will see of it waits for advance(). On the CPU row b depends on clip b alone, bit
  // for bit.
  at::Tensor operator()(const at::Tensor& x, std::int64_t evaluation);

  // All evaluations of the block are done: on to the next one. Until here nothing has happened to the states,
  // so that a block that was broken off can be begun again.
  void advance();
  std::int64_t block() const;  // how many have been passed

  // What the clips so far have left: "block", "text", "mask", and of each evaluation i "sums.i" (depth, rows,
  // blocks kept, kD) with "counts" (blocks kept), or "keys.i" and "values.i" (depth, rows, tokens, d).
  // set_state wants the plan to be the one under which the state was made.
  std::map<std::string, at::Tensor> state() const;
  void set_state(const std::map<std::string, at::Tensor>& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::models
