// Samples a batch block after block: each call makes the next blocks of all items, at the same cost and in
// the same memory however many came before. An image is one block. How many blocks are made at a time does
// not matter: a block's noise is its own, and it sees what it would see in the whole clip. B items, C
// channels, pt latent frames of a block, H x W the latent, L tokens of text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/guidance.h"
#include "pom/diffusion/path.h"
#include "pom/diffusion/sampler.h"
#include "pom/models/denoiser.h"

namespace pom::generate {

struct BatchSampling {
  std::int64_t height = 0, width = 0;  // of the latent
  std::vector<std::uint64_t> seeds;    // one for each item
  diffusion::Path path = diffusion::Path::flow();
  std::string sampler = "euler";
  diffusion::SamplerOptions options;
  diffusion::Guidance guidance;
  std::int64_t blocks = 0;  // of an item in all; 0: not known
  parallel::Ranks ranks;    // who evaluate the network together
};

// Called while blocks are made. Throwing leaves the sampler where it was before them.
struct SamplingHooks {
  std::function<void()> before = {}, after = {};  // each evaluation of the network
  // Whether nobody wants an item of the batch any more, asked before each evaluation: of images on a CPU it
  // is not evaluated from then on, and what comes of it means nothing. The others are what they would have
  // been.
  std::function<bool(std::int64_t item)> left = {};
  diffusion::OnStep on_step = {};
};

// Latents that a block begins with, shaped as it; where undefined, noise of the items' seeds.
struct BlockStart {
  at::Tensor noise = {};  // in place of the seeds'
  at::Tensor init = {};   // clean: hidden in noise as far as the options' t_start asks, unless that is 1
};

class BlockSampler {
 public:
  // Begins at block 0. The network is the sampler's as long as it lasts: a plan for another one ends this
  // one.
  BlockSampler(models::Denoiser& network, BatchSampling sampling);

  // What the items show, from the next block on. Needed before the first block.
  void tell(const models::Condition& condition);

  // So many blocks at once, denoised: of images (B, C, H, W), of clips (B, C, blocks * pt, H, W).
  at::Tensor next(std::int64_t blocks = 1, const SamplingHooks& hooks = {}, const BlockStart& start = {});

  std::int64_t block() const { return network_->block(); }  // the number of the next one
  const BatchSampling& sampling() const { return sampling_; }
  const std::vector<models::Evaluation>& evaluations() const { return evaluations_; }
  models::Denoiser& network() const { return *network_; }
  void set_seeds(std::vector<std::uint64_t> seeds);  // those of a stream that goes on from elsewhere

 private:
  at::Tensor noise_of(std::int64_t blocks) const;
  void plan(std::int64_t items);
  bool may_leave() const;
  void let_go(std::vector<std::int64_t>& rows, const SamplingHooks& hooks);
  at::Tensor evaluated(const at::Tensor& noisy, std::span<const std::int64_t> rows, std::size_t evaluation);
  template <class Draw>
  void each_block(at::Tensor& latents, Draw&& draw) const;

  models::Denoiser* network_;
  BatchSampling sampling_;
  std::vector<models::Evaluation> evaluations_;
  models::Condition told_;
};

}  // namespace pom::generate
