#include "pom/ops/full_mask.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "pom/ops/composed.h"

namespace pom::ops {
namespace {

constexpr std::int64_t kContextTile = 512;       // tokens
constexpr std::int64_t kQueryBytes = 6LL << 20;  // of one tile's sums

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

// sum over the visible tokens / (1e-7 + their number), for some queries of one sequence: (m, kD).
at::Tensor means(const at::Tensor& xc, const LayerWeights& w, std::int64_t order, const at::Tensor& visible,
                 at::ScalarType type) {
  at::Tensor sums = at::zeros({visible.size(0), w.ho_weight.size(0)}, xc.options().dtype(type));
  at::Tensor counts = at::full({visible.size(0), 1}, 1e-7, xc.options().dtype(at::kDouble));
  for (std::int64_t t = 0; t < xc.size(0); t += kContextTile) {
    const at::Tensor tokens = xc.slice(0, t, t + kContextTile);
    const at::Tensor p = composed::powers(linear(tokens, w.ho_weight, w.ho_bias).to(type), order);
    const at::Tensor seen = visible.slice(1, t, t + kContextTile).to(type);
    sums.addmm_(seen, p);
    counts.add_(seen.sum(1, /*keepdim=*/true));
  }
  return sums.div_(counts.to(type));
}

}  // namespace

at::Tensor full_mask_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w,
                           std::int64_t order, const at::Tensor& visible) {
  at::Tensor out = at::empty(xq.sizes(), xq.options());
  const at::ScalarType type = xq.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::int64_t rows = std::max<std::int64_t>(
      1, kQueryBytes / (w.ho_weight.size(0) * static_cast<std::int64_t>(c10::elementSize(type))));
  for (std::int64_t b = 0; b < xq.size(0); ++b)
    for (std::int64_t q = 0; q < xq.size(1); q += rows) {
      const at::Tensor H = means(xc[b], w, order, visible[b].slice(0, q, q + rows), type);
      const at::Tensor gate = at::sigmoid(linear(xq[b].slice(0, q, q + rows), w.se_weight, w.se_bias));
      out[b].slice(0, q, q + rows).copy_(linear(gate * H.to(gate.scalar_type()), w.ag_weight, w.ag_bias));
    }
  return out;
}

}  // namespace pom::ops
