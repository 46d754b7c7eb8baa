#include "pom/ops/block/stack_step.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

constexpr const char* kStackStep = "stack_step";

// ---- what came ----

void check_operand(const char* name, const at::Tensor& t, at::IntArrayRef shape, at::ScalarType dtype,
                   const at::Tensor& x) {
  if (t.defined() && t.sizes() == shape && t.scalar_type() == dtype && t.device() == x.device() &&
      t.is_contiguous())
    return;
  const std::string got = t.defined()
                              ? pom::detail::concat(t.scalar_type(), " of shape ", t.sizes(), " on ",
                                                    t.device(), t.is_contiguous() ? "" : ", not contiguous")
                              : "nothing";
  fail(kStackStep, ": ", name, ": expected contiguous ", dtype, " of shape ", shape, " on ", x.device(),
       ", got ", got);
}
void check_dense(const char* name, const at::Tensor& weight, const at::Tensor& bias, std::int64_t out,
                 std::int64_t in, at::ScalarType dtype, const at::Tensor& x) {
  check_operand(name, weight, {out, in}, dtype, x);
  if (bias.defined()) check_operand("bias", bias, {out}, x.scalar_type(), x);
}

void check_step(const at::Tensor& x, std::span<const SteppedBlock> blocks, const at::Tensor& modulation,
                const at::Tensor& sums, const at::Tensor& count, std::int64_t order) {
  check(x.dim() == 2 && x.is_contiguous(), kStackStep, ": x: expected contiguous (batch, width), got ",
        shape_text(x));
  check(!blocks.empty(), kStackStep, ": blocks: expected at least one");
  check(order >= 1, kStackStep, ": order: expected at least 1, got ", order);
  const SteppedBlock& first = blocks.front();
  check(first.mixer.ho_weight.defined() && first.mixer.ho_weight.dim() == 2 && first.up.weight.defined() &&
            first.up.weight.dim() == 2,
        kStackStep, ": weights: expected matrices");
  const std::int64_t B = x.size(0), d = x.size(1), L = static_cast<std::int64_t>(blocks.size());
  const std::int64_t kD = first.mixer.ho_weight.size(0), h = first.up.weight.size(0);
  const at::ScalarType dtype = first.mixer.ho_weight.scalar_type();
  check(x.scalar_type() == (dtype == at::kDouble ? at::kDouble : at::kFloat), kStackStep, ": x: expected ",
        dtype == at::kDouble ? at::kDouble : at::kFloat, " beside weights of ", dtype, ", got ",
        x.scalar_type());
  check(kD % order == 0, kStackStep, ": ho_weight: expected a multiple of order ", order, " rows, got ", kD);
  for (const SteppedBlock& b : blocks) {
    check_dense("ho_weight", b.mixer.ho_weight, b.mixer.ho_bias, kD, d, dtype, x);
    check_dense("se_weight", b.mixer.se_weight, b.mixer.se_bias, kD, d, dtype, x);
    check_dense("ag_weight", b.mixer.ag_weight, b.mixer.ag_bias, d, kD, dtype, x);
    check_dense("up", b.up.weight, b.up.bias, h, d, dtype, x);
    check_dense("down", b.down.weight, b.down.bias, d, h, dtype, x);
  }
  check_operand("modulation", modulation, {L, B, 6 * d}, x.scalar_type(), x);
  check_operand("sums", sums, {L, B, kD}, x.scalar_type(), x);
  check_operand("count", count, {B}, at::kLong, x);
}

// ---- block by block ----

at::Tensor like_weights(const at::Tensor& bias, const at::Tensor& weight) {
  return bias.defined() ? bias.to(weight.scalar_type()) : bias;
}

void step_by_blocks(at::Tensor& x, std::span<const SteppedBlock> blocks, const at::Tensor& modulation,
                    at::Tensor& sums, at::Tensor& count, std::int64_t order, double eps) {
  const std::int64_t d = x.size(1);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const SteppedBlock& b = blocks[i];
    const std::int64_t layer = static_cast<std::int64_t>(i);
    const std::vector<at::Tensor> m = modulation.select(0, layer).chunk(6, 1);
    const auto normed = [&](const at::Tensor& scale, const at::Tensor& shift, const at::Tensor& weight) {
      return at::addcmul(shift, at::layer_norm(x, {d}, {}, {}, eps), scale + 1).to(weight.scalar_type());
    };
    LayerWeights w = b.mixer;
    w.ho_bias = like_weights(w.ho_bias, w.ho_weight), w.se_bias = like_weights(w.se_bias, w.se_weight);
    w.ag_bias = like_weights(w.ag_bias, w.ag_weight);
    at::Tensor sum = sums.select(0, layer);
    const auto [mixed, next] = mixer_scan(normed(m[0], m[1], w.ho_weight).unsqueeze(1), w, order, sum, count);
    sum.copy_(next);
    x.addcmul_(m[2], mixed.squeeze(1).to(x.scalar_type()));
    const at::Tensor hidden = at::gelu(
        at::linear(normed(m[3], m[4], b.up.weight), b.up.weight, like_weights(b.up.bias, b.up.weight)));
    const at::Tensor fed = at::linear(hidden, b.down.weight, like_weights(b.down.bias, b.down.weight));
    x.addcmul_(m[5], fed.to(x.scalar_type()));
  }
  count.add_(1);
}

}  // namespace

bool stack_step(at::Tensor& x, std::span<const SteppedBlock> blocks, const at::Tensor& modulation,
                at::Tensor& sums, at::Tensor& count, std::int64_t order, double eps) {
  check_step(x, blocks, modulation, sums, count, order);
  const c10::AutoGradMode no_gradients(false);
  if (x.size(0) == 0) return false;
  if (path() != Path::composed && cuda::stack_step(x, blocks, modulation, sums, count, order, eps))
    return true;
  check(!x.is_cuda() || path() != Path::fused, kStackStep,
        ": path: fused was asked for, but there is no kernel for this");
  step_by_blocks(x, blocks, modulation, sums, count, order, eps);
  return false;
}

}  // namespace pom::ops
