// One recurrent step of a whole stack of blocks in one kernel, bound by reading the weights once: one token
// of each sequence goes through `layers` times mixer and feed-forward. A row is a sequence; d is the width, k
// the order, D the features of one factor, h the width between the two layers of the feed-forward. Weights
// stand in the paper's layout (row i D + j is factor i of feature j). Compute capability 9.0. Sums are fp32
// and have a fixed order: the same bits on every run.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

constexpr int64_t kMostStackRows = 8;
constexpr int kMostStackOrder = 4;

// y = norm(x) (1 + scale) + shift;  sum += products of gelu(y context^T);  H = sum / (1e-7 + count + 1)
// x += gate * (sigmoid(y gate^T) H) out^T;  x += gate * gelu(norm(x) (1 + scale) + shift) up^T) down^T
struct StackLayer {
  const void *context = nullptr, *gate = nullptr;                                  // (k D, d)
  const void* out = nullptr;                                                       // (d, k D)
  const void* up = nullptr;                                                        // (h, d)
  const void* down = nullptr;                                                      // (d, h)
  const float *context_bias = nullptr, *gate_bias = nullptr, *out_bias = nullptr;  // null: none
  const float *up_bias = nullptr, *down_bias = nullptr;
  const float* modulation = nullptr;  // (rows, 6 d): scale, shift, gate of the mixer, then the feed-forward's
  float* sum = nullptr;               // (rows, k D), goes on in place
  const int64_t* count = nullptr;     // (rows): tokens in the sum before this one
  int64_t* next_count = nullptr;      // (rows) or null: gets count + 1; may be `count`
};

struct StackStep {
  Dtype dtype = Dtype::bf16;                              // of the weights: bf16 or fp16
  int64_t rows = 0, width = 0, features = 0, hidden = 0;  // d, D, h
  int order = 2;
  int64_t modulation_stride = 0;  // from row to row
  float eps = 0;
  const StackLayer* layers = nullptr;  // on the host; not needed after the call
  int64_t layer_count = 0;
  float* x = nullptr;         // (rows, d), in place
  void* workspace = nullptr;  // stack_step_workspace() bytes on the device, for one step at a time
};

// 1 to kMostStackRows rows; d at most 2304, k D and h at most 9216, all multiples of 8; orders up to
// kMostStackOrder; weights, x, modulation and workspace start at 16 bytes. Where it is not so, the products
// of few_rows_gemm.h do the same.
bool stack_step_supported(const StackStep& step);
int64_t stack_step_workspace(const StackStep& step);
cudaError_t stack_step(const StackStep& step, cudaStream_t stream);

}  // namespace pom::kernels
