#include "pom/ops/composed.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

namespace pom::ops::composed {
namespace {

constexpr double kEps = 1e-7;

at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// What each block of K tokens sees: (B, n, kD) -> sums (B, blocks, kD), in the sum's dtype.
at::Tensor block_sums(const at::Tensor& p, std::int64_t block, std::int64_t window) {
  const std::int64_t n = p.size(1), blocks = (n + block - 1) / block;
  at::Tensor padded = at::constant_pad_nd(p, {0, 0, 0, blocks * block - n});
  at::Tensor sums = padded.reshape({p.size(0), blocks, block, p.size(2)}).sum(2);
  if (window == 0 || window >= blocks) return sums.cumsum(1);
  return at::constant_pad_nd(sums, {0, 0, window - 1, 0}).unfold(1, window, 1).sum(-1);
}

at::Tensor block_counts(std::int64_t n, std::int64_t block, std::int64_t window,
                        const at::TensorOptions& options) {
  const std::int64_t blocks = (n + block - 1) / block;
  const at::Tensor b = at::arange(blocks, options.dtype(at::kDouble));
  const at::Tensor end = ((b + 1) * block).clamp_max(static_cast<double>(n));
  if (window == 0) return end;
  return end - ((b - window + 1) * block).clamp_min(0);
}

// H for each query: (B, 1, kD) or (B, m, kD), in the sum's dtype.
at::Tensor means(const at::Tensor& p, const Mask& mask) {
  const auto type = sum_type(p);
  if (mask.block > 0) {
    const std::int64_t block = std::min(mask.block, p.size(1));  // a longer one would only be padded
    const at::Tensor counts = block_counts(p.size(1), block, mask.window, p.options()) + kEps;
    const at::Tensor H =
        block_sums(p.to(type), block, mask.window) / counts.to(type).unsqueeze(0).unsqueeze(-1);
    return H.repeat_interleave(block, 1).slice(1, 0, p.size(1));
  }
  if (!mask.visible.defined()) return p.mean(1, /*keepdim=*/true, type);
  const at::Tensor visible = mask.visible.ne(0);
  if (mask.is_keys()) {
    const at::Tensor sum =
        p.to(type).masked_fill(visible.logical_not().unsqueeze(-1), 0).sum(1, /*keepdim=*/true);
    return sum / (visible.sum(1, /*keepdim=*/true).to(type) + kEps).unsqueeze(-1);
  }
  return visible.to(type).matmul(p.to(type)) / (visible.sum(2, /*keepdim=*/true).to(type) + kEps);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

std::vector<std::int64_t> offsets(const at::Tensor& cu) {
  const at::Tensor host = cu.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<std::int64_t>(), host.const_data_ptr<std::int64_t>() + host.numel()};
}

}  // namespace

at::Tensor powers(const at::Tensor& ho, std::int64_t order) {
  std::vector<at::Tensor> h = at::gelu(ho).chunk(order, -1);
  for (std::int64_t i = 1; i < order; ++i) h[i] = h[i] * h[i - 1];
  return at::cat(h, -1);
}

at::Tensor polynomial_mixer(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, const Mask& mask,
                            const Packing& packing) {
  if (!packing.packed()) return at::sigmoid(se) * means(powers(ho, order), mask).to(se.scalar_type());
  const auto q = offsets(packing.cu_q), k = offsets(packing.cu_k);
  std::vector<at::Tensor> parts{se.slice(0, 0, 0)};
  for (std::size_t s = 0; s + 1 < q.size(); ++s)
    if (q[s + 1] > q[s])
      parts.push_back(composed::polynomial_mixer(ho.slice(0, k[s], k[s + 1]).unsqueeze(0),
                                                 se.slice(0, q[s], q[s + 1]).unsqueeze(0), order, mask, {})
                          .squeeze(0));
  return at::cat(parts, 0);
}

at::Tensor mixer_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w, std::int64_t order,
                       const Mask& mask, const Packing& packing) {
  const at::Tensor gated = composed::polynomial_mixer(
      linear(xc, w.ho_weight, w.ho_bias), linear(xq, w.se_weight, w.se_bias), order, mask, packing);
  return linear(gated, w.ag_weight, w.ag_bias);
}

at::Tensor mixer_summary(const at::Tensor& xc, const LayerWeights& w, std::int64_t order,
                         const at::Tensor& keys) {
  at::Tensor p = powers(linear(xc, w.ho_weight, w.ho_bias), order).to(sum_type(xc));
  if (keys.defined()) p = p.masked_fill(keys.eq(0).unsqueeze(-1), 0);
  return p.sum(1);
}

at::Tensor mixer_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& w) {
  const at::Tensor gate = at::sigmoid(linear(xq, w.se_weight, w.se_bias));
  return linear(gate * H.unsqueeze(1).to(gate.scalar_type()), w.ag_weight, w.ag_bias);
}

std::pair<at::Tensor, at::Tensor> mixer_scan(const at::Tensor& x, const LayerWeights& w, std::int64_t order,
                                             const at::Tensor& sum, const at::Tensor& count) {
  const at::Tensor p = powers(linear(x, w.ho_weight, w.ho_bias), order).to(sum.scalar_type());
  const at::Tensor seen = p.cumsum(1) + sum.unsqueeze(1);  // (B, n, kD)
  const at::Tensor counts = count.to(at::kDouble).unsqueeze(1) +
                            at::arange(1, x.size(1) + 1, x.options().dtype(at::kDouble)) + kEps;
  const at::Tensor gate = at::sigmoid(linear(x, w.se_weight, w.se_bias));
  const at::Tensor H = seen / counts.to(sum.scalar_type()).unsqueeze(-1);
  return {linear(gate * H.to(gate.scalar_type()), w.ag_weight, w.ag_bias),
          seen.select(1, x.size(1) - 1).contiguous()};
}

}  // namespace pom::ops::composed
