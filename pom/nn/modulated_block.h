// The block of the diffusion networks: mixing and feed-forward, each behind a layer norm that the condition
// modulates and a gate that it sets.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "pom/nn/attention.h"
#include "pom/nn/pom.h"
#include "pom/ops/block/conditions.h"
#include "pom/ops/block/training_branch.h"

namespace pom::nn {

constexpr double kNormEps = 1e-6;  // of the layer norms, which have no weights of their own

struct BlockOptions {
  std::int64_t dim = 0;
  bool attention = false;  // instead of the Polynomial Mixer
  std::int64_t order = 2, order_expand = 2;
  std::int64_t heads = 6;
  std::int64_t ffw_expand = 3;
  ops::Gelu gelu = ops::Gelu::erf;  // of pictures
};

class ModulatedBlockImpl : public torch::nn::Module {
 public:
  explicit ModulatedBlockImpl(const BlockOptions& options);

  // (B, N, d), (B, d) -> (B, N, d). Rows of c beyond B, as in_eights() gives, are nothing. `split`: these are
  // a rank's tokens of sequences that several ranks have; attention cannot do with them.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& c, const ops::SplitTokens& split = {});
  // The same between blocks: what the one before is yet to add comes in, what this one is to add goes out.
  ops::ResidualStream forward(const ops::ResidualStream& stream, const at::Tensor& c,
                              const ops::SplitTokens& split = {});

  PoM pom{nullptr};  // one of the two
  Attention attn{nullptr};
  torch::nn::Sequential ffw{nullptr}, cond_mlp{nullptr}, gate_mlp{nullptr};

 private:
  ops::ResidualStream mixed(const ops::ResidualStream& stream, const ops::Modulation& modulation,
                            const ops::SplitTokens& split);
  ops::ResidualStream fed_forward(const ops::ResidualStream& stream, const ops::Modulation& modulation);

  ops::Gelu gelu_;
  double gate_base_;  // gates are 1 + g around the mixer, g around attention
};
TORCH_MODULE(ModulatedBlock);

// Conditions (B, d) with rows of zeros up to a multiple of eight where they are on a GPU: the gradient of a
// weight is a product over the batch, which tensor cores take in eights and other kernels slowly.
at::Tensor in_eights(const at::Tensor& rows);

// SiLU, then Linear, so that the matrix is called ".1".
torch::nn::Sequential silu_linear(std::int64_t in, std::int64_t out);
torch::nn::LinearImpl& linear_of(torch::nn::Sequential& silu_linear);
ops::ConditionMatrix condition_matrix(torch::nn::Sequential& silu_linear, std::int64_t parts);

}  // namespace pom::nn
