// The mask-free Polynomial Mixer between its projections, one pass over memory each: the means of the running
// products, the gate, and the gradients of both. B batch, m queries, n context tokens, k order, D features of
// one degree; tensors are contiguous, arithmetic is fp32, sums over tokens have a fixed order.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "pom/kernels/common/dtype.h"

namespace pom::kernels {

constexpr int kMaxMixerOrder = 16;

struct MixerSizes {
  Dtype dtype = Dtype::fp32;  // of everything but the sums, which are fp32
  int64_t batch = 0, queries = 0, tokens = 0, D = 0;
  int order = 1;
  int64_t features() const { return order * D; }
};

// Parts in which the sums over context tokens (or over queries) are first taken: the scratch of a sum is
// (B, parts, kD) floats, not needed where parts is 1.
int context_parts(const MixerSizes& sizes);
int query_parts(const MixerSizes& sizes);

// H = mean over tokens of [p_1 .. p_k], p_i = gelu(ho_i) p_{i-1}.
struct MeansParams {
  MixerSizes sizes;
  const void* ho = nullptr;  // (B, n, kD)
  float* scratch = nullptr;  // (B, context_parts, kD)
  float* H = nullptr;        // (B, kD)
};
cudaError_t mixer_means(const MeansParams& params, cudaStream_t stream);

// out = sigmoid(se) H
struct GateParams {
  MixerSizes sizes;
  const void* se = nullptr;  // (B, m, kD)
  const float* H = nullptr;  // (B, kD)
  void* out = nullptr;       // (B, m, kD)
};
cudaError_t mixer_gate(const GateParams& params, cudaStream_t stream);

// dse, dH, and on request the gated values once more and the sums of dse over each part's queries.
struct GateBackwardParams {
  MixerSizes sizes;
  const void* dout = nullptr;  // (B, m, kD)
  const void* se = nullptr;    // (B, m, kD)
  const float* H = nullptr;    // (B, kD)
  float* scratch = nullptr;    // (B, query_parts, kD)
  void* dse = nullptr;         // (B, m, kD)
  float* dH = nullptr;         // (B, kD)
  void* gated = nullptr;       // (B, m, kD) or null
  float* dse_sums = nullptr;   // (B, query_parts, kD) or null
};
cudaError_t mixer_gate_backward(const GateBackwardParams& params, cudaStream_t stream);

// dho from dH, and on request its sums over each part's tokens.
struct MeansBackwardParams {
  MixerSizes sizes;
  const void* ho = nullptr;   // (B, n, kD)
  const float* dH = nullptr;  // (B, kD)
  void* dho = nullptr;        // (B, n, kD)
  float* dho_sums = nullptr;  // (B, context_parts, kD) or null
};
cudaError_t mixer_means_backward(const MeansBackwardParams& params, cudaStream_t stream);

}  // namespace pom::kernels
