#include "pom/ops/block/inference.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/ops/composed.h"
#include "pom/ops/cpu/dense_run.h"
#include "pom/ops/cuda/inference.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

using cpu::After;
using cpu::Before;
using cpu::Between;

at::ScalarType stream_type(const at::Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_stream(const char* op, const char* name, const at::Tensor& x, std::int64_t width,
                  const at::Tensor& weight) {
  check(x.defined() && (x.dim() == 3 || x.dim() == 2) && x.size(-1) == width, op, ": ", name,
        ": expected (B, N, ", width, "), got ", shape_text(x));
  check(x.scalar_type() == stream_type(weight), op, ": ", name, ": expected ", stream_type(weight),
        " beside weights of ", weight.scalar_type(), ", got ", x.scalar_type());
  check(x.device() == weight.device(), op, ": ", name, ": expected it on ", weight.device(),
        ", where the weights are, got ", x.device());
  check(x.stride(-1) == 1, op, ": ", name, ": expected rows without gaps");
}
void check_dense(const char* op, const Dense& dense) {
  check(dense.weight.defined() && dense.weight.dim() == 2 && dense.weight.stride(1) == 1, op,
        ": weight: expected a matrix (out, in) of rows without gaps, got ", shape_text(dense.weight));
  check(!dense.bias.defined() ||
            (dense.bias.dim() == 1 && dense.bias.size(0) == dense.weight.size(0) &&
             dense.bias.is_contiguous() && dense.bias.scalar_type() == dense.weight.scalar_type()),
        op, ": bias: expected (", dense.weight.size(0), ") like the weight, got ", shape_text(dense.bias));
}
// Two matrices in a row: the kernels read both as the dtype of the first.
void check_alike(const char* op, const Dense& up, const Dense& down) {
  check(down.weight.scalar_type() == up.weight.scalar_type() && down.weight.device() == up.weight.device(),
        op, ": down: expected ", up.weight.scalar_type(), " on ", up.weight.device(),
        " like the first weight, got ", down.weight.scalar_type(), " on ", down.weight.device());
}
void check_rows(const char* op, const char* name, const at::Tensor& values, const at::Tensor& x,
                std::int64_t width) {
  check(values.defined() && values.dim() == 2 && values.size(0) == x.size(0) && values.size(1) == width &&
            values.scalar_type() == x.scalar_type() && values.device() == x.device() && values.stride(1) == 1,
        op, ": ", name, ": expected ", x.scalar_type(), " of shape (", x.size(0), ", ", width, "), got ",
        shape_text(values));
}
void check_modulation(const char* op, const Modulation& m, const at::Tensor& x) {
  check(x.dim() == 3, op, ": x: expected (B, N, d), got ", shape_text(x));
  check_rows(op, "scale", m.scale, x, x.size(-1));
  check_rows(op, "shift", m.shift, x, x.size(-1));
}

bool fused(const at::Tensor& x) {
  return x.is_cpu() && path() != Path::composed;
}
// Whether a GPU may do it in kernels; what these leave is composed, if the caller allows.
bool try_cuda(const at::Tensor& x) {
  return x.is_cuda() && path() != Path::composed;
}
void check_composable(const char* op, const at::Tensor& x, const Fp8& fp8) {
  check(!fp8.asked(), op, ": fp8: expected a GPU with kernels for it, and not the composed path, got ",
        x.device());
  check(!x.is_cuda() || path() != Path::fused, op,
        ": path: fused was asked for, but CUDA has no fused kernel for this order, dtype, width or GPU");
}

cpu::DenseArgs arguments(const at::Tensor& x, const at::Tensor& y, Before before, After after) {
  cpu::DenseArgs a;
  a.before = before, a.after = after;
  a.x = cpu::stream_rows(x), a.y = cpu::stream_rows(y);
  a.sequence_rows = x.dim() == 3 ? std::max<std::int64_t>(x.size(1), 1) : 1;
  a.rows = x.numel() / x.size(-1);
  return a;
}
cpu::DenseArgs modulated(const at::Tensor& x, const at::Tensor& y, const Modulation& m, After after) {
  cpu::DenseArgs a = arguments(x, y, Before::norm, after);
  a.scale = cpu::per_sequence(m.scale), a.shift = cpu::per_sequence(m.shift), a.eps = m.eps;
  return a;
}

// ---- the same in ATen operations ----

at::Tensor modulated_norm(const at::Tensor& x, const Modulation& m, at::ScalarType dtype) {
  const at::Tensor normal = at::layer_norm(x, {x.size(-1)}, {}, {}, m.eps);
  return (normal * (1 + m.scale.unsqueeze(1)) + m.shift.unsqueeze(1)).to(dtype);
}
at::Tensor linear(const at::Tensor& x, const Dense& dense) {
  return at::linear(x.to(dense.weight.scalar_type()), dense.weight, dense.bias);
}
void add_gated(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  x.add_(y.to(x.scalar_type()) * gate.unsqueeze(1));
}

}  // namespace

at::Tensor means_scales(const at::Tensor& H) {
  constexpr double largest = 448, least = 6e-13;  // of e4m3; so that no scale is zero
  return H.abs().amax(-1).div_(largest).clamp_min_(least);
}

std::string fp8_refusal(c10::Device device) {
  if (device.is_cuda()) return cuda::fp8_refusal(device);
  return "fp8 needs a GPU of compute capability 9.0, got the CPU";
}

// On the CPU one sequence at a time: how a library cuts its products depends on their shape, and with it the
// last bit.
namespace {

template <class Body>
void some_sequences(const at::Tensor& x, const Body& body) {
  const std::int64_t some = x.is_cpu() ? 1 : std::max<std::int64_t>(x.size(0), 1);
  for (std::int64_t b = 0; b < x.size(0); b += some)
    body([&](const at::Tensor& rows) { return rows.narrow(0, b, some); });
}

void check_mixer_half(const char* op, const at::Tensor& x, const Modulation& m, const LayerWeights& weights,
                      const at::Tensor& gate) {
  check_stream(op, "x", x, weights.ho_weight.size(1), weights.ho_weight);
  check_modulation(op, m, x);
  check_rows(op, "gate", gate, x, x.size(-1));
}
void check_means(const char* op, const char* name, const at::Tensor& H, const at::Tensor& x,
                 const LayerWeights& weights) {
  check(weights.se_weight.defined() && weights.se_weight.dim() == 2, op,
        ": se_weight: expected a matrix (features, channels), got ", shape_text(weights.se_weight));
  check_rows(op, name, H, x, weights.se_weight.size(0));
}

// Composed: the sums over each sequence of the normalised stream, and its answer to means.
at::Tensor composed_sums(const at::Tensor& x, const Modulation& m, const LayerWeights& weights,
                         std::int64_t order) {
  std::vector<at::Tensor> sums;
  some_sequences(x, [&](const auto& part) {
    const at::Tensor normal =
        modulated_norm(part(x), {part(m.scale), part(m.shift), m.eps}, weights.ho_weight.scalar_type());
    sums.push_back(composed::mixer_summary(normal, weights, order, {}));
  });
  return at::cat(sums);
}
void composed_selection(at::Tensor& x, const Modulation& m, const at::Tensor& H, const LayerWeights& weights,
                        const at::Tensor& gate) {
  some_sequences(x, [&](const auto& part) {
    at::Tensor stream = part(x);
    const at::Tensor normal =
        modulated_norm(stream, {part(m.scale), part(m.shift), m.eps}, weights.se_weight.scalar_type());
    add_gated(stream, composed::mixer_select(normal, part(H), weights), part(gate));
  });
}

}  // namespace

void add_mixer(at::Tensor& x, const Modulation& m, const LayerWeights& weights, std::int64_t order,
               const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_mixer";
  check_mixer_half(op, x, m, weights, gate);
  if (try_cuda(x) && cuda::add_mixer(x, m, weights, order, gate, fp8)) return;
  check_composable(op, x, fp8);
  if (fused(x) && order <= kMaxFusedOrder) return cpu::mixer_stream(x, m, weights, order, gate);
  some_sequences(x, [&](const auto& part) {
    at::Tensor stream = part(x);
    const at::Tensor normal =
        modulated_norm(stream, {part(m.scale), part(m.shift), m.eps}, weights.ho_weight.scalar_type());
    add_gated(stream, composed::mixer_layer(normal, normal, weights, order, {}, {}), part(gate));
  });
}

void add_mixer(at::Tensor& x, const Modulation& m, const LayerWeights& weights, std::int64_t order,
               const at::Tensor& gate, const PastSums& past, const Fp8& fp8) {
  constexpr const char* op = "add_mixer";
  check_mixer_half(op, x, m, weights, gate);
  check_past(op, past, x.size(0), weights.ho_weight.size(0), x);
  if (x.size(0) == 0) return;
  if (try_cuda(x) && cuda::add_mixer(x, m, weights, order, gate, past, fp8)) return;
  check_composable(op, x, fp8);
  const auto seen = [&](const at::Tensor& sums) { return seen_means(past, sums); };
  if (fused(x) && order <= kMaxFusedOrder) return cpu::mixer_stream(x, m, weights, order, gate, seen);
  composed_selection(x, m, seen(composed_sums(x, m, weights, order)), weights, gate);
}

void add_selection(at::Tensor& x, const Modulation& m, const at::Tensor& H, const LayerWeights& weights,
                   const at::Tensor& gate, const Fp8& fp8) {
  constexpr const char* op = "add_selection";
  check_means(op, "H", H, x, weights);
  check_stream(op, "x", x, weights.se_weight.size(1), weights.se_weight);
  check_modulation(op, m, x);
  check_stream_selection(x, weights);
  check_rows(op, "gate", gate, x, x.size(-1));
  if (x.size(0) == 0) return;
  check(!fp8.means.defined() || (fp8.means.sizes() == H.sizes().slice(0, 1) && fp8.means.is_contiguous() &&
                                 fp8.means.scalar_type() == at::kFloat && fp8.means.device() == H.device()),
        op, ": fp8: expected means in fp32, one for each of ", H.size(0), " rows, got ",
        shape_text(fp8.means));
  if (try_cuda(x) && cuda::add_selection(x, m, H, weights, gate, fp8)) return;
  check_composable(op, x, fp8);
  if (fused(x)) return cpu::selection_stream(x, m, H, weights, gate);
  composed_selection(x, m, H, weights, gate);
}

void add_feed_forward(at::Tensor& x, const Modulation& m, const Dense& up, const Dense& down,
                      const at::Tensor& gate, const Fp8& fp8, Gelu gelu) {
  constexpr const char* op = "add_feed_forward";
  const bool exact = gelu == Gelu::erf;
  check_dense(op, up), check_dense(op, down), check_alike(op, up, down);
  check_stream(op, "x", x, up.weight.size(1), up.weight);
  check(down.weight.size(1) == up.weight.size(0) && down.weight.size(0) == x.size(-1), op,
        ": down: expected a weight (", x.size(-1), ", ", up.weight.size(0), "), got ",
        shape_text(down.weight));
  check_modulation(op, m, x);
  check_rows(op, "gate", gate, x, x.size(-1));
  if (exact && try_cuda(x) && cuda::add_feed_forward(x, m, up, down, gate, fp8)) return;
  check_composable(op, x, fp8);
  if (!fused(x)) {
    const at::Tensor hidden = linear(modulated_norm(x, m, up.weight.scalar_type()), up);
    return add_gated(x, linear(at::gelu(hidden, exact ? "none" : "tanh"), down), gate);
  }
  cpu::DenseArgs a = modulated(x, x, m, After::residual);
  a.gate = cpu::per_sequence(gate);
  a.between = exact ? Between::gelu : Between::gelu_tanh;
  cpu::run_dense(a, up, down);
}

void modulated_linear(const at::Tensor& x, const Modulation& m, const Dense& dense, at::Tensor& y,
                      const Fp8& fp8) {
  constexpr const char* op = "modulated_linear";
  check_dense(op, dense);
  check_stream(op, "x", x, dense.weight.size(1), dense.weight);
  check_modulation(op, m, x);
  check(y.defined() && y.dim() == 3 && y.size(0) == x.size(0) && y.size(1) == x.size(1) &&
            y.size(2) == dense.weight.size(0) && y.stride(2) == 1,
        op, ": y: expected (", x.size(0), ", ", x.size(1), ", ", dense.weight.size(0), "), got ",
        shape_text(y));
  const bool arithmetic = y.scalar_type() == x.scalar_type();
  check(arithmetic || y.scalar_type() == dense.weight.scalar_type(), op, ": y: expected ", x.scalar_type(),
        " or ", dense.weight.scalar_type(), ", got ", y.scalar_type());
  if (try_cuda(x) && cuda::modulated_linear(x, m, dense, y, fp8)) return;
  check_composable(op, x, fp8);
  if (!fused(x)) {
    y.copy_(linear(modulated_norm(x, m, dense.weight.scalar_type()), dense));
    return;
  }
  cpu::run_dense(modulated(x, y, m, arithmetic ? After::store_arithmetic : After::store), dense, {});
}

void add_linear(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate,
                const Fp8& fp8) {
  constexpr const char* op = "add_linear";
  check_dense(op, dense);
  check_stream(op, "x", x, dense.weight.size(0), dense.weight);
  // A GPU attends in the weights' dtype.
  if (!y.is_cuda() || y.scalar_type() != dense.weight.scalar_type())
    check_stream(op, "y", y, dense.weight.size(1), dense.weight);
  check(y.dim() == 3 && x.dim() == 3 && y.size(0) == x.size(0) && y.size(1) == x.size(1) &&
            y.size(2) == dense.weight.size(1),
        op, ": y: expected as many rows as x, ", shape_text(x), ", of ", dense.weight.size(1),
        " channels, got ", shape_text(y));
  check_rows(op, "gate", gate, x, x.size(-1));
  if (try_cuda(x) && cuda::add_linear(x, y, dense, gate, fp8)) return;
  check_composable(op, x, fp8);
  if (!fused(x)) return add_gated(x, linear(y, dense), gate);
  cpu::DenseArgs a = arguments(y, x, Before::nothing, After::residual);
  a.gate = cpu::per_sequence(gate);
  cpu::run_dense(a, dense, {});
}

namespace {

void rows_through(const char* op, const at::Tensor& x, const Dense& first, const Dense& second, bool silu,
                  at::Tensor& out) {
  check_dense(op, first);
  check_stream(op, "x", x, first.weight.size(1), first.weight);
  const Dense& last = second.weight.defined() ? second : first;
  check(out.defined() && out.dim() == 2 && x.dim() == 2 && out.size(0) == x.size(0) &&
            out.size(1) == last.weight.size(0) && out.scalar_type() == x.scalar_type() && out.stride(1) == 1,
        op, ": out: expected (", x.size(0), ", ", last.weight.size(0), ") like x, got ", shape_text(out));
  const bool two = second.weight.defined();
  if (!fused(x)) {
    const at::Tensor before = silu && !two ? at::silu(x) : x;
    const at::Tensor hidden = linear(before, first);
    out.copy_(two ? linear(at::silu(hidden), second) : hidden);
    return;
  }
  cpu::DenseArgs a =
      arguments(x, out, silu && !two ? Before::silu : Before::nothing, After::store_arithmetic);
  a.between = Between::silu;
  cpu::run_dense(a, first, second);
}

}  // namespace

void linear_rows(const at::Tensor& x, const Dense& dense, at::Tensor& out) {
  rows_through("linear_rows", x, dense, {}, false, out);
}
void silu_linear_rows(const at::Tensor& x, const Dense& dense, at::Tensor& out) {
  rows_through("silu_linear_rows", x, dense, {}, true, out);
}
void silu_mlp_rows(const at::Tensor& x, const Dense& up, const Dense& down, at::Tensor& out) {
  check_dense("silu_mlp_rows", up), check_dense("silu_mlp_rows", down);
  check_alike("silu_mlp_rows", up, down);
  check(down.weight.size(1) == up.weight.size(0), "silu_mlp_rows: down: expected a weight (out, ",
        up.weight.size(0), "), got ", shape_text(down.weight));
  rows_through("silu_mlp_rows", x, up, down, true, out);
}

}  // namespace pom::ops
