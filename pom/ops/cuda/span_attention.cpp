#include "pom/ops/cuda/span_attention.h"

#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_flash_attention_forward.h>

#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {

bool has_span_attention(c10::Device device, at::ScalarType dtype, std::int64_t head) {
  constexpr std::int64_t most = 256;
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || head % 8 != 0 || head > most) return false;
  static const bool there = [] {  // in this build of torch
    const auto op = c10::Dispatcher::singleton().findSchema({"aten::_flash_attention_forward", ""});
    return op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  }();
  if (!there) return false;
  int major = 0;
  detail::check_launch("span_attention",
                       cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  return major >= 8;
}

// As many sequences of different lengths: what it calls their cumulative lengths are where they begin, and
// how much of each counts is said apart.
at::Tensor span_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          std::int64_t heads, const Spans& spans) {
  const auto in_heads = [&](const at::Tensor& x) { return x.unflatten(-1, {heads, -1}); };
  const std::int64_t K = queries.size(1);
  const at::Tensor answer = std::get<0>(at::_flash_attention_forward(
      in_heads(queries.flatten(0, 1)), in_heads(keys), in_heads(values), spans.queries, spans.first, K,
      spans.most, /*dropout_p=*/0, /*is_causal=*/false, /*return_debug_mask=*/false, std::optional<double>(),
      std::optional<std::int64_t>(), std::optional<std::int64_t>(), spans.rows));
  return answer.flatten(1).view(queries.sizes());
}

}  // namespace pom::ops::cuda
