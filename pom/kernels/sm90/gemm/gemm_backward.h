// The products of training (sm_90a; see gemm.h for rows, sizes and order of sums): the context's forward,
// which keeps what its backward needs, and the two products of the backward pass whose result is
// differentiated at once. 16-bit values only, N a multiple of 32. Row tiles are of 128 rows.
#pragma once

#include "pom/kernels/sm90/gemm/gemm.h"

namespace pom::kernels {

int64_t gemm_row_tiles(int64_t rows);

// ---- forward ----

// As gemm_sums over whole sequences, and ho = a w^T + bias is stored, in the paper's layout: factor i of
// feature j in column i D + j. The rows of w stand in the order of context_row(), made by context_rows(), or
// with Gemm::factors in the paper's; the bias stands in the paper's.
struct ContextEpilogue {
  int order = 2;
  float* partial = nullptr;  // (sums_slots(sizes, {}), N), for fold_sums
  void* ho = nullptr;        // (rows, N)
};
bool context_order(int order, int64_t D);  // whether there is a kernel: 1, 2, 3, 4 or 6, D a multiple of 32
int64_t context_row(int64_t r, int order, int64_t D);  // which row of the paper's layout stands in row r
cudaError_t gemm_context(const Gemm& gemm, const ContextEpilogue& epilogue, cudaStream_t stream);

// ---- backward: a (rows, K) times a weight that is used transposed, so w (N, K) is its transpose; no bias
// ----

// dgated = a w^T, never stored, and from it, with s = sigmoid(se):
//   dse = dgated H s (1 - s); gated = s H; sums over the rows of a tile of dgated s and of dse.
struct GateBackwardEpilogue {
  const void* se = nullptr;   // (rows, N)
  const float* H = nullptr;   // (batch, N)
  void* dse = nullptr;        // (rows, N)
  void* gated = nullptr;      // (rows, N) or null
  float* dH = nullptr;        // (sums_slots(sizes, {}), N), for add_slots
  float* dse_sums = nullptr;  // (gemm_row_tiles, N) or null
};
cudaError_t gemm_gate_backward(const Gemm& gemm, const GateBackwardEpilogue& epilogue, cudaStream_t stream);

// dafter = a w^T, never stored, and from it dbefore = dafter gelu'(before); after = gelu(before) once more.
struct GeluBackwardEpilogue {
  const void* before = nullptr;   // (rows, N)
  void* dbefore = nullptr;        // (rows, N)
  void* after = nullptr;          // (rows, N) or null
  float* dbefore_sums = nullptr;  // (gemm_row_tiles, N) or null
};
cudaError_t gemm_gelu_backward(const Gemm& gemm, const GeluBackwardEpilogue& epilogue, cudaStream_t stream);

// The sums of tiles become those of sequences: out (batch, N).
struct AddSlotsParams {
  GemmSizes sizes;
  const float* partial = nullptr;  // (sums_slots(sizes, {}), N)
  float* out = nullptr;
};
cudaError_t add_slots(const AddSlotsParams& params, cudaStream_t stream);

// ---- weights as these products read them; values of 16 bits, rows and columns even ----

struct WeightParams {
  int64_t rows = 0, columns = 0;
  const void* from = nullptr;  // (rows, columns)
  void* to = nullptr;
};
cudaError_t transpose(const WeightParams& params, cudaStream_t stream);  // (columns, rows)
cudaError_t context_rows(const WeightParams& params, int order,
                         cudaStream_t stream);  // row r: context_row(r)

}  // namespace pom::kernels
