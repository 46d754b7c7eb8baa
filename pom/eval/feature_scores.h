// Scores of generated pictures by their features: the Inception score, the kernel distance, precision,
// recall, density and coverage, and the Fréchet distance without the bias of few samples. Each in the ways in
// which published implementations compute it. N samples, F features.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::eval {

struct ScoreSpread {
  double mean = 0, deviation = 0;  // that of the population
};

// exp of the mean of KL(p ‖ mean p) in each split. Splits are runs of samples in their order, or after
// numpy's permutation of that seed.
struct InceptionScoreOptions {
  std::int64_t splits = 10;    // of about equal size; 0: runs of `run`, the last of which may be short
  std::int64_t run = 5000;     // as ADM does it
  std::int64_t shuffled = -1;  // the seed of the permutation; −1: none
};
ScoreSpread inception_score(const at::Tensor& logits, const InceptionScoreOptions& options);

// The unbiased squared distance between kernel means, (x·y / F + 1)³, over subsets drawn with numpy's
// RandomState as torch-fidelity draws them.
struct KernelOptions {
  std::int64_t subsets = 100, size = 1000, seed = 2020;
  bool cross_diagonal = true;  // pairs (x_i, y_i) count, as everyone has it
};
ScoreSpread kernel_distance(const at::Tensor& a, const at::Tensor& b, const KernelOptions& options);
// Of one pair of subsets of m each, all of them.
double kernel_distance_of_all(const at::Tensor& a, const at::Tensor& b, bool cross_diagonal = true);

struct NeighbourOptions {
  std::int64_t k = 3;
  bool strict = false;                 // a point on the surface of a ball is outside, as prdc has it
  at::ScalarType dtype = at::kDouble;  // of the distances: fp64, fp32, or fp16 as ADM
};
struct Neighbours {
  double precision = 0, recall = 0, density = 0, coverage = 0;
};
Neighbours neighbours(const at::Tensor& real, const at::Tensor& made, const NeighbourOptions& options);

// Of the samples themselves: exact also where there are fewer of them than features.
double frechet_of_samples(const at::Tensor& a, const at::Tensor& b);

}  // namespace pom::eval
