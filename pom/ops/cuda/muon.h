// Muon's step of many matrices on CUDA but for its GEMMs: pom/kernels/portable/muon.h. Without kernels there
// are no tables, and nothing else of this is called.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/ops/cuda/weight_copies.h"

namespace pom::ops::cuda {

struct MuonMatrix {
  std::int64_t p = 0, g = 0, own = 0, x = 0;  // where it begins, in each of the tensors below
  std::int64_t rows = 0, columns = 0;
  double size = 0;      // of an update, times the learning rate
  CopiedMatrix copies;  // those to be written with the new values
};

// Holds none of the tensors.
struct MuonTable {
  at::Tensor matrices;  // bytes on the device; undefined: none
  int count = 0;
  std::int64_t tiles = 0;
};
MuonTable muon_table(const std::vector<MuonMatrix>& matrices, c10::Device device);

// Square matrices (n, n), one kind after another.
struct MuonGram {
  std::int64_t begin = 0, n = 0;
};
struct MuonGrams {
  at::Tensor grams;
  int count = 0;
  bool eights = false;
};
MuonGrams muon_grams(const std::vector<MuonGram>& grams, c10::Device device);

// m takes the gradient, and x the directions (bf16), those of tall matrices transposed, each of norm 1.
void muon_directions(const MuonTable& table, const at::Tensor& g, const at::Tensor& m,
                     const at::Tensor& scale, double momentum, double least_norm, const at::Tensor& x);
// squares = b gram + c squares, and a on the diagonals.
void muon_polynomial(const MuonGrams& grams, const at::Tensor& gram, const at::Tensor& squares, double a,
                     double b, double c);
// numbers: 1 - lr decay, -lr, and what the average (undefined: none) takes of the new values.
void muon_update(const MuonTable& table, const at::Tensor& p, const at::Tensor& x, const at::Tensor& average,
                 const at::Tensor& numbers);

}  // namespace pom::ops::cuda
