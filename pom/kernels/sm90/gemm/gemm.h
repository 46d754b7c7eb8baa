// Products of rows with a weight matrix on Hopper's tensor cores (sm_90a), with what follows each of them in
// the same kernel. Row r = (sequence r / tokens, token r % tokens); K values go in, N come out; the weights
// are (N, K) as torch::nn::Linear has them. Sums are fp32 and have a fixed order: the same bits on every run,
// whatever the tile.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

struct GemmSizes {
  int64_t batch = 0, tokens = 0;  // rows = batch * tokens
  int64_t inputs = 0, outputs = 0;
  int64_t rows() const { return batch * tokens; }
};

// K in splits, for products of fewer tiles than the GPU has processors: as many blocks work on a tile at the
// same time, and add up in the order of K. The sums are in an order of their own for each number of splits,
// which therefore has to depend on shapes alone (gemm_splits()), not on what is fastest somewhere; for one
// number they are the same bits with every tile, as without. gemm_store() without `before` and
// gemm_residual() split, the others do not look at it.
//
// The counters are of one product at a time: those of a stream, or of a graph, are not for another that may
// run beside it. They are zeros before and after.
struct GemmSplits {
  int count = 1;                 // at most the steps along K, of 128 bytes each
  uint32_t* counters = nullptr;  // on the device
  int64_t counters_bytes = 0;    // at least those of gemm_split_bytes()
  void* sums = nullptr;          // for gemm_store(): what it holds before and after does not matter
  int64_t sums_bytes = 0;        // likewise
};

// What all of them take. fp8 (e4m3) values stand for value * scale.
struct Gemm {
  GemmSizes sizes;
  Dtype dtype = Dtype::bf16;       // of a and w: bf16, fp16 or e4m3
  const void* a = nullptr;         // (rows, K)
  const void* w = nullptr;         // (N, K)
  const float* bias = nullptr;     // (N) or null
  const float* a_scale = nullptr;  // (rows / scale_rows), e4m3 only
  int64_t scale_rows = 1;          // neighbouring rows of a that share a scale
  const float* w_scale = nullptr;  // (N), e4m3 only
  // Of gemm_sums (order 2, 16 bits) and gemm_context: 0, or the order if w, and the bias of gemm_sums, stand
  // in the paper's layout: the copies bring the rows into the kernel's order.
  int factors = 0;
  int tile = 0;  // 0: chosen by the sizes; else 1 + an index of gemm_tile()
  GemmSplits splits;
  bool steady = false;  // w was written before the kernel before this one was launched: it is read early
};

// Whether this GPU and these sizes have a kernel: compute capability 9.0, K a multiple of 16 bytes, pointers
// of 16 bytes.
bool gemm_supported(const Gemm& gemm);
bool gemm_device();  // the current device

struct GemmTile {
  int rows, columns;  // of a block
  int above, beside;  // blocks of a cluster
};
int gemm_tiles();
GemmTile gemm_tile(int index);
bool gemm_tile_fits(const GemmSizes& sizes, int index);  // N a multiple of 32 but for one of them
// An index; of tiles at most so wide, for a product in so many splits.
int choose_gemm_tile(const GemmSizes& sizes, int processors, int widest = 256, int splits = 1);

// In how many splits a product back to the width should go, 1: in none.
int gemm_splits(const GemmSizes& sizes, Dtype dtype);
// What splits of these sizes need, whatever their number, tile and dtype.
struct GemmSplitBytes {
  int64_t counters, sums;
};
GemmSplitBytes gemm_split_bytes(const GemmSizes& sizes);

// Rows in runs that share a value: run(r) = (r / tokens) * runs + (r % tokens) / run_tokens, with
// runs = ceil(tokens / run_tokens) of a sequence.
struct Runs {
  int64_t run_tokens = 0;  // 0: a sequence is one run
};

enum class Activation { none, gelu };

// out = activation(a w^T + bias), in the dtype of a, or of e4m3 in bf16 or in e4m3 divided by *out_scale.
// before, where given, gets what the activation was applied to, as all outputs so called in the dtype of a,
// of e4m3 in bf16.
struct StoreEpilogue {
  Activation activation = Activation::none;
  Dtype out_dtype = Dtype::bf16;
  void* out = nullptr;               // (rows, N)
  const float* out_scale = nullptr;  // e4m3 only: one value on the device
  void* before = nullptr;            // (rows, N) or null
};
cudaError_t gemm_store(const Gemm& gemm, const StoreEpilogue& epilogue, cudaStream_t stream);

// Whether a gate may add up the few sums of tiles by itself: sequences of whole tiles, one run each, and then
// only of a context of the same tokens without a mask, and not for e4m3.
bool gate_takes_sums(const GemmSizes& sizes, const Runs& runs);

// How many runs the 128 rows of a tile may have. Each has kernels of its own: a tile's time says nothing of
// the same tile's with another kind.
enum class GateRuns { one, two, any };
GateRuns gate_runs(const GemmSizes& sizes, const Runs& runs);

// out = sigmoid(a w^T + bias) * H[run of the row]
struct GateEpilogue {
  Runs runs;
  const float* H = nullptr;  // (batch * runs, N)
  Dtype out_dtype = Dtype::bf16;
  void* out = nullptr;               // (rows, N)
  const float* out_scale = nullptr;  // e4m3 only: one value of each sequence (batch), on the device
  void* before = nullptr;            // (rows, N): a w^T + bias, or null
  const float* partial = nullptr;    // instead of H, where gate_takes_sums(): what gemm_sums left
};
cudaError_t gemm_gate(const Gemm& gemm, const GateEpilogue& epilogue, cudaStream_t stream);

// x += gate[sequence] * (a w^T + bias), in place.
struct ResidualEpilogue {
  float* x = nullptr;           // (rows, N)
  const float* gate = nullptr;  // (batch, N), rows gate_stride apart
  int64_t gate_stride = 0;
};
cudaError_t gemm_residual(const Gemm& gemm, const ResidualEpilogue& epilogue, cudaStream_t stream);

// The Polynomial Mixer's context: p_i = gelu(c_i) p_{i-1} of the k factors c of each feature, summed over the
// rows of each run. Nothing else is stored. The rows of w and bias stand in the order of sums_row(): the
// k factors of a feature in one thread.
constexpr int kSumsOrders[] = {1, 2, 3, 4, 6, 8};
bool sums_order(int order);  // whether it is one of them
// Which row i * D + j of the paper's layout (factor i of feature j) stands in row r of the kernel's; D must
// be a multiple of 8.
int64_t sums_row(int64_t r, int order, int64_t D);

// Its tiles have at most 192 columns: a wider one that is asked for is one of these.
struct SumsEpilogue {
  int order = 2;
  Runs runs;
  const uint8_t* visible = nullptr;  // (rows) or null: rows that count
  float* partial = nullptr;          // (sums_slots, N)
};
int64_t sums_slots(const GemmSizes& sizes, const Runs& runs);
cudaError_t gemm_sums(const Gemm& gemm, const SumsEpilogue& epilogue, cudaStream_t stream);

// partial -> H (batch * runs, N): the mean over the rows that a run sees: its own, or with `causal` those of
// all runs of its sequence up to it, or of the last `window` of them. Divided by their number, of several
// runs plus 1e-7; or where `counts` is given by 1e-7 + counts[run], the visible rows of each run (batch *
// runs).
//
// With `causal` a sequence may go on from another one, of which sums are left: without a window the sum over
// all of its rows, else those of its last `window` runs, oldest first (zeros where there were fewer). H is
// divided by seen[run of the sequence] then, and the same sums after these rows are written to `left`, which
// is not `past`. No counts.
struct FoldParams {
  GemmSizes sizes;
  Runs runs;
  const float* partial = nullptr;
  bool causal = false;
  int64_t window = 0;
  const float* counts = nullptr;
  float* H = nullptr;
  float* largest = nullptr;      // (batch), the greatest |H| of a sequence / 448, at least 6e-13, or null
  bool largest_of_runs = false;  // (batch * runs) instead, one of each run
  const float* past = nullptr;   // (batch, max(window, 1), N) or null
  float* left = nullptr;         // likewise, with past
  const float* seen = nullptr;   // (runs), with past
};
cudaError_t fold_sums(const FoldParams& params, cudaStream_t stream);

}  // namespace pom::kernels
