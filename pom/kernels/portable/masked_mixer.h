// The Polynomial Mixer between its projections under causal masks, with or without a window, and of packed
// sequences of any lengths: forward and backward. k order, D features of one degree; rows are tokens, one
// sequence after another; arithmetic is fp32, sums have a fixed order and never take anything away again.
//
// A mask is a few integers. A slot is a run of context tokens that every query sees as a whole or not at all:
// a block of a causal mask, or a whole sequence. A query sees one range of its sequence's slots.
//
// Causal masks of single tokens (block 1) are scans: rows are cut into pieces of 16, whose sums are added up
// in order to what comes before each; then a thread walks a piece and keeps the running sums in registers.
// Nothing but a sum for each piece goes through memory. A window is cut into runs as long as it is: what a
// query sees is the end of one run and the beginning of the next, so that windows too are sums of what they
// hold.
//
// With slots of several tokens, the sums of slots are added up the same way in memory, and rows look up
// theirs.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

// Rows of sequences, every sequence cut into runs of `run` rows and every run into pieces of `piece`; the
// last of each may be shorter, and a sequence without rows has one run without pieces.
struct Cut {
  int64_t sequences = 0, rows = 0;
  int64_t length = 0;              // of every sequence, if they are equal
  int64_t run = 1, piece = 1;      // rows
  int64_t runs = 0, pieces = 0;    // of all sequences
  const int32_t* table = nullptr;  // on the device: where those of each sequence are, if they are not equal

  int64_t pieces_of_run() const { return (run + piece - 1) / piece; }  // of a whole one
};

struct MaskedSizes {
  Dtype dtype = Dtype::fp32;  // of everything but the sums, which are fp32
  int64_t D = 0;
  int order = 1;
  int64_t block = 0, window = 0;  // tokens of a slot, 0: a sequence is one; slots seen, 0: all
  int64_t features() const { return order * D; }
};

// Who sees whom in a batch. The lengths decide everything that follows; `table` has to be copied to the
// device, where it is not empty, and its address there given to place().
struct MaskedPlan {
  MaskedSizes sizes;
  Cut keys, queries;  // under a causal mask the same
  Cut slots;          // the keys' runs as rows, where slots are blocks of several tokens
  std::vector<int32_t> table;

  bool scans() const { return sizes.block == 1; }
  int64_t slot_count() const { return keys.runs; }
  void place(const int32_t* on_device);
};
// Of `sequences` with the same number of queries and of keys; or of any numbers, packed.
MaskedPlan masked_plan(const MaskedSizes& sizes, int64_t sequences, int64_t queries, int64_t keys);
MaskedPlan masked_plan(const MaskedSizes& sizes, const std::vector<int64_t>& queries,
                       const std::vector<int64_t>& keys);

// out = sigmoid(se) H, H the mean of [p_1 .. p_k] over what a query sees.
struct MaskedForward {
  const void* ho = nullptr;  // (keys, kD)
  const void* se = nullptr;  // (queries, kD)
  float* scratch = nullptr;  // masked_forward_scratch() floats
  float* sums = nullptr;     // (slots, kD) or null: of what each slot's queries see, for the backward pass
  void* out = nullptr;       // (queries, kD)
};
int64_t masked_forward_scratch(const MaskedPlan& plan);
cudaError_t masked_mixer(const MaskedPlan& plan, const MaskedForward& params, cudaStream_t stream);

struct MaskedBackward {
  const void* dout = nullptr;   // (queries, kD)
  const void* ho = nullptr;     // (keys, kD)
  const void* se = nullptr;     // (queries, kD)
  const float* sums = nullptr;  // of the forward pass, or null: they are made again
  float* scratch = nullptr;     // masked_backward_scratch() floats
  void* dho = nullptr;          // (keys, kD)
  void* dse = nullptr;          // (queries, kD)
  void* gated = nullptr;        // (queries, kD) or null: the forward's result once more
  float* dho_sums = nullptr;    // (keys.pieces, kD) or null: sums of dho over each piece
  float* dse_sums = nullptr;    // (queries.pieces, kD) or null
};
int64_t masked_backward_scratch(const MaskedPlan& plan);
cudaError_t masked_mixer_backward(const MaskedPlan& plan, const MaskedBackward& params, cudaStream_t stream);

}  // namespace pom::kernels
