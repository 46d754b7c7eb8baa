// A network made ready to sample: no gradients, everything that does not depend on the latents computed
// before the first step, the rest in fused operations. Images and clips are sampled the same way: in blocks,
// which an image has one of. Shapes: B items of a batch, C channels, H x W the latent, T latent frames, L
// tokens of text, d width, kD features.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/weights.h"
#include "pom/parallel/ranks.h"

namespace pom::models {

// One evaluation of a block: the diffusion time, and whether the answer that guidance leads away from is
// wanted too.
struct Evaluation {
  double t = 0;
  bool both = false;
};

// What a batch is sampled with: latents of height x width, whose blocks are evaluated like this, in this
// order.
struct SamplingPlan {
  std::int64_t batch = 1, height = 0, width = 0;
  std::vector<Evaluation> evaluations;
  // Of clips whose time code is relative: all the blocks that will come, at once or one after another.
  std::int64_t blocks = 0;
  // Each rank evaluates its rows of the picture, or its blocks of a clip that is made whole: all call alike,
  // with the same x, and get the same answers.
  parallel::Ranks ranks = {};
};

// What the items of a batch are to show; and what guidance leads away from, nothing in particular unless
// given.
struct Condition {
  // Of a network with classes: one for each item; NetworkConfig::classes is "no class".
  std::vector<std::int64_t> classes = {}, away_classes = {};
  // Of a network that reads text: (B, L, text_width) and (B, L) bool; or of each of the blocks that are
  // evaluated together, (B, blocks, L, text_width) and (B, blocks, L). A text of which nothing counts is no
  // text.
  at::Tensor text = {}, mask = {};
  at::Tensor away_text = {}, away_mask = {};
};

class Denoiser {
 public:
  // Weights as read_weights gives them, in any dtype; products run in `dtype` (fp32, bf16, fp16, fp64, on a
  // GPU also fp8, Float8_e4m3fn), on the weights' device, the residual stream in fp32 (fp64). In
  // fp8 those of the blocks do; what is around them is bf16. Move the weights in, and each is given back to
  // the system as soon as its conversion is there; what is not converted must not change any more.
  static std::unique_ptr<Denoiser> make(const NetworkConfig& config, Weights weights,
                                        at::ScalarType dtype = at::kFloat);
  virtual ~Denoiser() = default;

  virtual const NetworkConfig& config() const = 0;
  virtual at::ScalarType dtype() const = 0;
  virtual at::Device device() const = 0;

  // Begins anew at block 0. Position codes, time embeddings and modulations are made here or when first
  // needed (those of many steps at once, a bounded number at a time).
  virtual void plan(const SamplingPlan& plan) = 0;
  // Needed before the first evaluation; holds from the next one on.
  virtual void tell(const Condition& condition) = 0;

  // Evaluation i of the next block, or blocks of a clip: x (B, C, H, W), of clips (B, C, T, H, W) with whole
  // blocks of frames, fp32 -> the same shape, or with 2B rows where both: the second half is what guidance
  // leads away from. The result is a buffer that the next call may overwrite. What later blocks will see of
  // these waits for advance(). On the CPU row b depends on item b alone, bit for bit. On a GPU evaluations
  // become graphs (pom/ops/cuda/graphs.h), and nobody waits for the device but in the first ones; in fp8 the
  // first evaluation after plan() runs in bf16 and measures what scales the others take (of clips it is then
  // made again with these).
  virtual at::Tensor operator()(const at::Tensor& x, std::int64_t evaluation) = 0;

  // All evaluations of these blocks are done: on to the next ones. Until here nothing has happened to what
  // the blocks before have left, so that blocks that were broken off can be begun again. An image has no next
  // one.
  virtual void advance() = 0;
  virtual std::int64_t block() const = 0;  // how many have been passed

  // What the blocks so far have left, of clips whose network is block-causal: "block", "text", "mask" (and
  // "away_text", "away_mask"), and of each evaluation i "sums.i" (depth, rows, blocks kept, kD) with "counts"
  // (blocks kept), or "keys.i" and "values.i" (depth, rows, tokens, d); in fp8 "hidden_scales" (depth), which
  // are measured anew from where a state has none. set_state wants the plan to be the
  // one under which it was made.
  virtual std::map<std::string, at::Tensor> state() const = 0;
  virtual void set_state(const std::map<std::string, at::Tensor>& state) = 0;
};

}  // namespace pom::models
