// Products of rows with one or two matrices, as the sampling networks need them: no torch, no instruction
// set.
//
//   one matrix:   y = pre(x) W1 + b1
//   two matrices: y = act(pre(x) W1 + b1) W2 + b2
//
// pre is nothing, SiLU, or a layer norm with modulation; y is stored, or added to the residual stream through
// a gate. x and the stream are rows in arithmetic type (fp32, for fp64 products fp64).
#pragma once

#include "pom/ops/cpu/kernels.h"

namespace pom::ops::cpu {

enum class Before { nothing, silu, norm };
enum class Between { gelu, gelu_tanh, silu };
enum class After { store, store_arithmetic, residual };

struct DenseArgs {
  std::int64_t in = 0, hidden = 0, out = 0;  // hidden 0: one matrix
  std::int64_t group = 0;                    // features taken together
  int tile = 0;                              // tokens of a tile at most; a multiple of a panel
  Before before = Before::nothing;
  Between between = Between::gelu;
  After after = After::store;
  Rows x, y;
  Matrix w1, w2;
  const void *b1 = nullptr, *b2 = nullptr;  // dtype of the weights, or null
  PerSequence scale, shift, gate;
  double eps = 0;
  std::int64_t rows = 0, sequence_rows = 1;  // rows in all, and of each sequence
};

struct DenseKernels {
  int panel;  // tokens of a panel
  std::size_t (*scratch)(const DenseArgs&);
  // Rows r0 .. r1 (at most a tile) and, of one matrix, the features f0 .. f1.
  void (*run)(const DenseArgs&, void* scratch, std::int64_t r0, std::int64_t r1, std::int64_t f0,
              std::int64_t f1);
};

const DenseKernels& dense_table(DType dtype);

}  // namespace pom::ops::cpu
