// Private to CUDA builds: training's products with what stands around them
// (pom/kernels/sm90/gemm/gemm_backward.h, compute capability 9.0, bf16 and fp16). Each gives nothing where
// there is no kernel, or where bringing the weights into the kernel's form would cost more than it saves: a
// matter of sizes alone, so that a run always takes the same way. Who has the weights in that form already
// hands them in. B sequences, n tokens, d width, k order, D
// features of one degree.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <optional>

#include <ATen/core/Tensor.h>

namespace pom::ops::cuda {

// Whether forward and backward of a mixer of queries x (B, n, d), or of a feed-forward, consist of these
// products in `dtype`: then none of them gives nothing, if their tensors are contiguous and made by torch.
bool has_mixer_gemms(const at::Tensor& x, std::int64_t features, std::int64_t order, at::ScalarType dtype);
bool has_feed_forward_gemms(const at::Tensor& x, std::int64_t hidden, at::ScalarType dtype);

// x (B, n, d) times the context's weight: ho (B, n, kD), and H (B, kD) in fp32, its means.
struct Context {
  at::Tensor ho, H;
};
std::optional<Context> context_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    std::int64_t order, cudaStream_t stream, const at::Tensor& in_order = {});

// se = x times the queries' weight, and sigmoid(se) H: both (B, m, kD).
struct Queries {
  at::Tensor se, gated;
};
std::optional<Queries> gate_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                 const at::Tensor& H, cudaStream_t stream);

// From dout (B, m, d), the gradient of gated times `weight` (d, kD), and what the forward kept.
struct GateGradients {
  at::Tensor dse, gated;  // (B, m, kD); the second only for gradients of weights
  at::Tensor dH;          // (B, kD), fp32
  at::Tensor dse_sums;    // (parts, kD), fp32: what the bias's gradient is the sum of; likewise
};
std::optional<GateGradients> gate_backward_gemm(const at::Tensor& dout, const at::Tensor& weight,
                                                const at::Tensor& se, const at::Tensor& H, bool for_weights,
                                                cudaStream_t stream, const at::Tensor& transposed = {});

// before = x times a weight (hidden, d), and its GELU; `before` only where asked for.
struct Activated {
  at::Tensor before, after;
};
bool has_gelu_gemm(const at::Tensor& x, const at::Tensor& weight);
Activated gelu_gemm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool keep,
                    cudaStream_t stream);

// From dout, the gradient of gelu(before) times `weight` (out, hidden).
struct GeluGradients {
  at::Tensor dbefore, after;  // like before
  at::Tensor sums;            // (parts, hidden), fp32
};
std::optional<GeluGradients> gelu_backward_gemm(const at::Tensor& dout, const at::Tensor& weight,
                                                const at::Tensor& before, cudaStream_t stream,
                                                const at::Tensor& transposed = {});

}  // namespace pom::ops::cuda
