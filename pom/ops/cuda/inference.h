// Private to the room: sampling on CUDA through the fused products of pom/kernels/sm90/gemm/gemm.h (compute
// capability 9.0, bf16, fp16 and fp8). Each function says whether it did the work: where no kernel is for a
// shape, an order, a dtype or a GPU, the caller composes. In a build without kernels none ever does.
// B sequences, N tokens, d width, k order, D features of one degree.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "pom/ops/block/inference.h"
#include "pom/ops/problem.h"

namespace pom::ops::cuda {

// As in inference.h, arguments checked.
bool add_mixer(at::Tensor& x, const Modulation& modulation, const LayerWeights& weights, std::int64_t order,
               const at::Tensor& gate, const Fp8& fp8);
bool add_mixer(at::Tensor& x, const Modulation& modulation, const LayerWeights& weights, std::int64_t order,
               const at::Tensor& gate, const PastSums& past, const Fp8& fp8);
bool add_selection(at::Tensor& x, const Modulation& modulation, const at::Tensor& H,
                   const LayerWeights& weights, const at::Tensor& gate, const Fp8& fp8);
bool add_feed_forward(at::Tensor& x, const Modulation& modulation, const Dense& up, const Dense& down,
                      const at::Tensor& gate, const Fp8& fp8);
bool modulated_linear(const at::Tensor& x, const Modulation& modulation, const Dense& dense, at::Tensor& y,
                      const Fp8& fp8);
bool add_linear(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate,
                const Fp8& fp8);

// mixer_layer, mixer_summary, mixer_select and mixer_scan without gradients, arguments checked; not packed.
// Masks: none, keys, causal and block-causal, with a window where blocks have kLeastBlock tokens and more.
constexpr std::int64_t kLeastBlock = 16;  // shorter ones would be a sum for every few rows
std::optional<at::Tensor> inference_layer(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                                          const LayerWeights& weights);
// The same up to the last product, whose weights are not asked for: sigmoid(se) H, (B, m, kD).
std::optional<at::Tensor> inference_gated(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                                          const LayerWeights& weights);
std::optional<at::Tensor> inference_summary(const Problem& problem, const at::Tensor& xc,
                                            const at::Tensor& ho_weight, const at::Tensor& ho_bias);
std::optional<at::Tensor> inference_select(const at::Tensor& xq, const at::Tensor& H,
                                           const LayerWeights& weights);
std::optional<std::tuple<at::Tensor, at::Tensor>> inference_scan(const Problem& problem, const at::Tensor& x,
                                                                 const LayerWeights& weights,
                                                                 const at::Tensor& sum,
                                                                 const at::Tensor& count);

std::string fp8_refusal(c10::Device device);

}  // namespace pom::ops::cuda
