// AdamW with decoupled weight decay, the clip of the gradient and the average of weights, in one pass over
// the flat parameters; with kind "muon" the matrices between layers take another step (muon.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/ops/cuda/graphs.h"
#include "pom/ops/weight_copies.h"
#include "pom/train/muon.h"
#include "pom/train/parameters.h"
#include "pom/train/recipe.h"
#include "pom/train/shares.h"

namespace pom::train {

class Optimizer {
 public:
  // Keeps moments and average of what is this rank's own, of which every step changes the weights; then it
  // gathers those of the others, unless the parameters are divided. `one_by_one`: muon takes each matrix by
  // itself, because a GPU's products of several at once have other bits for other numbers of them. `copies`,
  // if there are any, are those of the parameters: where a kernel takes the step, it writes them too.
  Optimizer(Parameters& parameters, const OptimizerConfig& config, const Shares& shares,
            bool one_by_one = false, ops::WeightCopies* copies = nullptr);

  // One update, the `update`-th (from 1), with gradients scaled by min(1, clip/(norm + 1e-6)). The average
  // becomes decay·average + (1 − decay)·weights, or stays where average is false. The gradients are like the
  // parameters, or the own parts of them.
  void step(const at::Tensor& gradients, const at::Tensor& norm, double lr, std::int64_t update, bool average,
            double decay);

  at::Tensor moment1, moment2, ema;  // of the own parts; muon leaves its part of moment2 at 0

 private:
  // Matrices at equal distances, in the parameters and among the own parts.
  struct OwnMatrices {
    MatrixGroup flat, own;
  };
  at::Tensor clip_scale(const at::Tensor& norm) const;  // a scalar on the device
  void find_own_matrices(bool one_by_one);
  void step_matrices(const MuonNumbers& numbers, const at::Tensor& scale, const at::Tensor& gradients);
  void step_matrices_again(MuonNumbers numbers, const at::Tensor& scale, const at::Tensor& gradients);

  Parameters& parameters_;
  OptimizerConfig config_;
  const Shares& shares_;
  ops::WeightCopies* copies_;
  std::vector<OwnMatrices> matrices_;
  // On a GPU, where muon's many small products take less time than their launches: a step of all matrices as
  // a graph, and what it reads beside the parameters and the moments.
  struct Again {
    at::Tensor numbers, scale, gradients;
    std::vector<const void*> places;                        // of what it was captured with
    std::unique_ptr<ops::cuda::GraphedEvaluations> graphs;  // goes before the buffers
  };
  Again again_;
};

}  // namespace pom::train
