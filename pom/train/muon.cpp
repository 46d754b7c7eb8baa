#include "pom/train/muon.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>

namespace pom::train {
namespace {

// Of x ← a·x + b·(x xᵀ) x + c·(x xᵀ)² x, which drives every singular value from (0, 1] towards 1: steep at 0,
// at the price of not settling exactly.
constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
constexpr int iterations = 5;
constexpr double least_norm = 1e-7;

}  // namespace

at::Tensor orthogonal(const at::Tensor& matrices, at::ScalarType dtype) {
  const bool tall = matrices.size(1) > matrices.size(2);  // transposed, so that x xᵀ is the smaller product
  at::Tensor x = tall ? matrices.transpose(1, 2) : matrices;
  const at::Tensor norm = at::linalg_vector_norm(matrices, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true);
  x = (x / norm.clamp_min(least_norm)).to(dtype);
  for (int i = 0; i < iterations; ++i) {
    const at::Tensor gram = at::bmm(x, x.transpose(1, 2));
    x = at::baddbmm(x, at::baddbmm(gram, gram, gram, b, c), x, a, 1);
  }
  return (tall ? x.transpose(1, 2) : x).to(matrices.scalar_type());
}

void muon_step(const MuonNumbers& n, const at::Tensor& scale, const at::Tensor& p, const at::Tensor& g,
               const at::Tensor& m, const at::Tensor& ema) {
  const at::Tensor scaled = g * scale;
  m.lerp_(scaled, 1 - n.momentum);
  // Products in bf16 where there are units for them; the iteration forgives their rounding.
  const bool narrow = p.is_cuda() && p.scalar_type() == at::kFloat;
  const at::ScalarType dtype = narrow ? at::kBFloat16 : p.scalar_type();
  const double size = 0.2 * std::sqrt(static_cast<double>(std::max(p.size(1), p.size(2))));
  const at::Tensor update = orthogonal(scaled.lerp(m, n.momentum), dtype);
  if (!n.there.defined()) {
    if (n.weight_decay > 0) p.mul_(1 - n.lr * n.weight_decay);
    p.add_(update, -n.lr * size);
    if (n.ema_weight > 0) ema.lerp_(p, n.ema_weight);
    return;
  }
  if (n.weight_decay > 0) p.mul_(n.there[0]);
  p.addcmul_(update, n.there[1], size);
  if (n.ema_weight > 0) ema.lerp_(p, n.there[2]);
}

at::Tensor changing_numbers(const MuonNumbers& n) {
  return at::tensor({1 - n.lr * n.weight_decay, -n.lr, n.ema_weight}, at::kDouble);
}

}  // namespace pom::train
