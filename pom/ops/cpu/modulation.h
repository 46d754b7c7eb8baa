// The residual stream between two products of a training network: what comes out of a branch is added through
// a gate, and what goes into the next one is normalised and modulated. No torch, no instruction set.
//
//   sum = x + y * (base + gate)                        where there is a y
//   out = layer_norm(sum) * (1 + scale) + shift        where there is an out
//
// Letters: B pictures, N tokens of a picture, d width. Sums over tokens are kept for every block of kSub
// tokens of a picture and added up in order, so that threads change no bit.
#pragma once

#include "pom/ops/cpu/kernels.h"

namespace pom::ops::cpu {

// Rows of d without gaps. x, sum, dsum, dx: dtype of the stream; y, out, dout, dy: dtype of the branches; all
// else in arithmetic type.
struct ModulationArgs {
  std::int64_t pictures = 0, tokens = 0, d = 0;
  double base = 0, eps = 0;
  const void *y = nullptr, *gate = nullptr;  // (B, N, d), (B, d)
  const void* x = nullptr;                   // without a y: what is normalised
  void* sum = nullptr;
  const void *scale = nullptr, *shift = nullptr;  // (B, d)
  void* out = nullptr;
  void *mean = nullptr, *rstd = nullptr;  // (B, N); forward: null where nobody needs them

  // Backward: the gradients of `sum` (may be null beside dout) and of `out` (null: no norm), with x standing
  // for the stream that was normalised. Where there is no norm, dx is dsum itself and not written.
  const void *dsum = nullptr, *dout = nullptr;
  void *dx = nullptr, *dy = nullptr;
  void* sums = nullptr;                                         // blocks() rows of kSums * d
  void *dscale = nullptr, *dshift = nullptr, *dgate = nullptr;  // (B, d)

  static constexpr std::int64_t kSums = 3;
  std::int64_t blocks_each() const { return (tokens + kSub - 1) / kSub; }
  std::int64_t blocks() const { return pictures * blocks_each(); }
};

struct ModulationKernels {
  void (*forward)(const ModulationArgs&, std::int64_t block);
  void (*backward)(const ModulationArgs&, std::int64_t block);
  void (*fold)(const ModulationArgs&, std::int64_t picture);
};

// For a stream and branches in fp32 or bf16, each of its own, or both in fp64.
const ModulationKernels& modulation_table(DType stream, DType branch);

}  // namespace pom::ops::cpu
