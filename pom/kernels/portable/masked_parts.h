// Private to the masked mixer: what its passes over memory are made of. All tensors have kD columns.
#pragma once

#include "pom/kernels/portable/masked_mixer.h"

namespace pom::kernels::masked {

constexpr int64_t kScanPiece = 16, kSlotPiece = 32;  // rows of a piece

// ---- masked_sums.cu: sums of rows of floats, added up in order ----

// (pieces, kD) -> (runs, kD): over the pieces of each run.
cudaError_t add_pieces(const Cut& cut, int64_t columns, const float* pieces, float* runs,
                       cudaStream_t stream);

// (pieces, kD) -> (pieces, kD): over those before each in its run, or after it; with or without its own.
// `other` (pieces, kD) is what the neighbouring run gave the other way round, own included: with it a piece
// gets all of the `run` pieces up to its own, or from it on.
struct Walk {
  bool backward = false, own = false;
  const float* other = nullptr;
};
cudaError_t walk_pieces(const Cut& cut, int64_t columns, const Walk& how, const float* in, float* out,
                        cudaStream_t stream);

// ---- masked_scan.cu, masked_slots.cu ----

struct Sizes {
  Dtype dtype;
  int64_t D;
  int order;
  int64_t columns() const { return order * D; }
};

// (pieces, kD): the sums of p over the rows of each piece.
cudaError_t sum_powers(const Cut& cut, const Sizes& sizes, const void* ho, float* out, cudaStream_t stream);

// Each row sees the `cut.run` rows up to itself. `before` and `after`: sums over the pieces before and after
// each of its run, null if runs are single pieces; `after` is of no use where sequences are single runs.
struct ScanForward {
  const void *ho, *se;
  const float *before, *after;
  void* out;
};
cudaError_t scan_forward(const Cut& cut, const Sizes& sizes, const ScanForward& p, cudaStream_t stream);

// (pieces, kD): the sums over the rows of each piece of g = dout sigmoid(se) / what the row sees.
cudaError_t scan_gate_sums(const Cut& cut, const Sizes& sizes, const void* dout, const void* se, float* out,
                           cudaStream_t stream);

struct ScanBackward {
  const void *dout, *ho, *se;
  const float *before, *after;               // of p, as above
  const float *g_sums, *g_before, *g_after;  // of g: of each piece, and of those before and after it
  void *dho, *dse, *gated;                   // the last may be null
  float *dho_sums, *dse_sums;                // (pieces, kD) or null
};
cudaError_t scan_backward(const Cut& cut, const Sizes& sizes, const ScanBackward& p, cudaStream_t stream);

// How many tokens a slot's queries see: of the keys' sequence, or of `block` tokens each in the last
// `window`.
struct Seen {
  Cut keys;
  int64_t window = 0;
  bool causal = false;
};
struct SlotGate {
  const void* se;
  const float* sums;  // (slots, kD)
  void* out;
};
cudaError_t slot_gate(const Cut& queries, const Sizes& sizes, const Seen& seen, const SlotGate& p,
                      cudaStream_t stream);

struct SlotGateBackward {
  const void *dout, *se;
  const float* sums;
  void *dse, *gated;
  float *dsums, *dse_sums;  // (queries' pieces, kD); the second may be null
};
cudaError_t slot_gate_backward(const Cut& queries, const Sizes& sizes, const Seen& seen,
                               const SlotGateBackward& p, cudaStream_t stream);

struct SlotContextBackward {
  const void* ho;
  const float* dsums;  // (slots, kD): the gradients of the slots' own sums
  void* dho;
  float* dho_sums;  // (keys' pieces, kD) or null
};
cudaError_t slot_context_backward(const Cut& keys, const Sizes& sizes, const SlotContextBackward& p,
                                  cudaStream_t stream);

}  // namespace pom::kernels::masked
