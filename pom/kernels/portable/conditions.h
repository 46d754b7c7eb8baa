// The rows that modulate a block, out of its condition: s W^T + bias for the few rows of s that a batch on a
// GPU has, and the gradients of it. The time goes into reading and writing fp32 weights, which each of the
// two passes does once. B rows, K inputs, d width of a part; sums are taken in a fixed order.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace pom::kernels {

constexpr int64_t kMaxConditionBatch = 8, kMaxConditionInputs = 2048;
constexpr int kMaxConditionMatrices = 2, kMaxConditionParts = 12;

struct ConditionMatrix {
  int64_t outputs = 0;                        // whole parts
  const float *w = nullptr, *bias = nullptr;  // (outputs, K), (outputs)
  float *dw = nullptr, *dbias = nullptr;      // of the backward pass
};

struct ConditionParams {
  int64_t batch = 0, inputs = 0, width = 0;
  int matrices = 0;
  ConditionMatrix each[kMaxConditionMatrices];
  const float* s = nullptr;                    // (B, K)
  float* out[kMaxConditionParts] = {};         // (B, d), of all matrices one after another
  const float* dout[kMaxConditionParts] = {};  // of the backward pass; null: zeros
  float* scratch = nullptr;                    // (B, condition_slots(), K)
  float* ds = nullptr;                         // (B, K)

  int64_t outputs() const {
    int64_t sum = 0;
    for (int i = 0; i < matrices; ++i) sum += each[i].outputs;
    return sum;
  }
};

// Whether there are kernels for it: sizes, and pointers aligned to 16 bytes.
bool condition_supported(const ConditionParams& params);
int64_t condition_slots(const ConditionParams& params);
cudaError_t condition(const ConditionParams& params, cudaStream_t stream);
cudaError_t condition_backward(const ConditionParams& params, cudaStream_t stream);

}  // namespace pom::kernels
