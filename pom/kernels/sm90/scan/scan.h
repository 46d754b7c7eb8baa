// The causal Polynomial Mixer between its products, in one kernel (ScanMix) or, where that one does not fit,
// in three steps: the context's product with the running sums of each tile of rows, what the tiles carry over
// to each other, and the gate of each row by the mean of all up to it. See gemm.h for rows, weights and
// orders; sizes as there, bf16 and fp16.
#pragma once

#include "pom/kernels/sm90/gemm/gemm.h"

namespace pom::kernels {

// p_i = gelu(c_i) p_{i-1} as in gemm_sums, with weights in that order; then the sums over the rows of a
// tile up to each one, which start anew with each sequence. Columns of the results are in the paper's order.
struct ScanEpilogue {
  int order = 2;
  void* prefix = nullptr;   // (rows, N) in `dtype`; of fp16 a sixteenth, which does not overflow
  float* totals = nullptr;  // (scan_slots, N): of each tile and sequence
};
int64_t scan_slots(const GemmSizes& sizes);
cudaError_t scan(const Gemm& gemm, const ScanEpilogue& epilogue, cudaStream_t stream);

// totals become what all tiles before have, in place.
struct CarryParams {
  GemmSizes sizes;
  float* totals = nullptr;
  const float* sum = nullptr;  // (batch, N) that a sequence goes on from, or null
  float* total = nullptr;      // (batch, N) or null: the sum over all of a sequence
};
cudaError_t scan_carry(const CarryParams& params, cudaStream_t stream);

// out = sigmoid(a w^T + bias) * H, H the mean over the rows of a sequence up to the end of the row's block.
struct ScanGateEpilogue {
  int64_t block = 1;
  const void* prefix = nullptr;    // of scan
  const float* carry = nullptr;    // of scan_carry
  const int64_t* count = nullptr;  // (batch): the rows that `sum` was of, or null
  void* out = nullptr;             // (rows, N) in `dtype`
};
cudaError_t scan_gate(const Gemm& gemm, const ScanGateEpilogue& epilogue, cudaStream_t stream);

// All three in one kernel, which stores nothing but the result: the queries are the context. Order 2 takes
// both weights and biases in the paper's order, N a multiple of 32, and blocks of 1, 2, 4 ... 128 rows that a
// sequence is a multiple of; other orders take them in that of gemm_sums, and blocks of 1. Rows of `a` are
// read up to scan_mix_rows(): what lies beyond rows() may be anything. Tiles of rows wait for each other,
// each only for those begun before it.
struct ScanMix {
  int order = 2;
  int64_t block = 1;
  const void* se = nullptr;        // (N, K) of the gate; the product's own are the context's
  const float* se_bias = nullptr;  // (N) or null
  const float* sum = nullptr;      // (batch, N) that a sequence goes on from, or null
  const int64_t* count = nullptr;  // (batch): the rows that `sum` was of, or null
  float* total = nullptr;          // (batch, N) or null: the sum over all of a sequence
  void* work = nullptr;            // scan_mix_work() bytes
  void* out = nullptr;             // (rows, N) in `dtype`
};
bool scan_mix_supported(const Gemm& gemm, int order, int64_t block);
int64_t scan_mix_rows(const GemmSizes& sizes);  // rows() up to a multiple of 32
int64_t scan_mix_work(const GemmSizes& sizes);
cudaError_t scan_mix(const Gemm& gemm, const ScanMix& mix, cudaStream_t stream);

}  // namespace pom::kernels
