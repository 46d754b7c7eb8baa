// A mixer layer without gradients, as an operator: means of what its queries see, the gate, the product back
// to the width; causal layers with running sums.
#include <ATen/ATen.h>

#include "pom/kernels/sm90/scan/scan.h"
#include "pom/ops/cuda/inference.h"
#include "pom/ops/cuda/inference_products.h"

namespace pom::ops::cuda {

using namespace sampling;

namespace {

// Which tokens a causal layer's see. A window as long as the sequence hides nothing.
Visibility visibility(const Problem& p, std::int64_t n) {
  Visibility seen;
  const std::int64_t run = std::min(p.block, n);
  seen.visible = p.visible, seen.causal = p.block > 0, seen.runs.run_tokens = run;
  if (run > 0 && p.window < runs_of(n, run)) seen.window = p.window;
  return seen;
}
// Whether there are kernels for the sums of many rows, and weights for them.
bool has_context(const at::Tensor& xc, const at::Tensor& weight, std::int64_t order) {
  return has_sums(xc.size(0), order, weight.size(0) / order) &&
         has_gemm(xc, weight, detail::kernel_dtype(weight));
}
// Whether means() has a kernel for it: of many rows short runs would be a sum for every few.
bool has_means(const at::Tensor& xc, const at::Tensor& weight, std::int64_t order, const Visibility& seen) {
  if (few_sums(xc, weight, order) && seen.window == 0) return true;
  return (!seen.causal || seen.runs.run_tokens >= std::min(kLeastBlock, xc.size(1))) &&
         has_context(xc, weight, order);
}
bool has_gate(const at::Tensor& xq, const LayerWeights& w) {
  return has_rows(xq, w.se_weight, detail::kernel_dtype(xq));
}
// And for the product behind it.
bool has_last(const at::Tensor& xq, const LayerWeights& w) {
  return has_rows(xq, w.ag_weight, detail::kernel_dtype(xq));
}
bool has_select(const at::Tensor& xq, const LayerWeights& w) {
  return has_gate(xq, w) && has_last(xq, w);
}
// Whether causal() has kernels.
bool has_scan(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w, std::int64_t order) {
  return has_context(xc, w.ho_weight, order) && has_gemm(xq, w.se_weight, detail::kernel_dtype(xq));
}
// Whether mixed() has a kernel.
bool has_mix(const at::Tensor& x, const LayerWeights& w, std::int64_t order, std::int64_t block) {
  kernels::Gemm p;
  p.sizes = {x.size(0), x.size(1), w.ho_weight.size(1), w.ho_weight.size(0)};
  p.dtype = detail::kernel_dtype(x), p.a = p.w = w.ho_weight.const_data_ptr();
  return has_scan(x, x, w, order) && kernels::scan_mix_supported(p, static_cast<int>(order), block);
}
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) || (a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides() &&
                          a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type());
}
Rows plain(const at::Tensor& x) {
  Rows r;
  r.values = x.contiguous();
  if (!aligned(r.values)) r.values = r.values.clone();
  return r;
}
at::Tensor aggregated(const char* op, const Rows& mixed, const LayerWeights& w, Queue& queue) {
  const at::Tensor& values = mixed.values;
  at::Tensor out = at::empty({values.size(0), values.size(1), w.ag_weight.size(0)}, values.options());
  const Matrix ag = matrix({w.ag_weight, w.ag_bias}, dtype_of(values));
  store(op, mixed, ag, kernels::Activation::none, out, nullptr, queue);
  return out;
}
Rows gated_by(const char* op, const Rows& queries, const Means& H, const LayerWeights& w, Queue& queue) {
  return gated(op, queries, matrix({w.se_weight, w.se_bias}, dtype_of(queries.values)), H, queue);
}

// Each row sees those before it, to the end of its own short block: their running sums are kept in 16 bits,
// tile by tile.
Rows causal(const char* op, const Rows& xq, const Rows& xc, const LayerWeights& w, std::int64_t order,
            std::int64_t block, const Running& state, Queue& queue) {
  queue.settled = false;
  const Dtype dtype = dtype_of(xq.values);
  const Matrix ho = matrix({w.ho_weight, w.ho_bias}, dtype, order);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype);
  const kernels::Gemm context = gemm_of(xc, ho), queries = gemm_of(xq, se);
  const kernels::GemmSizes& sizes = context.sizes;
  const at::Tensor prefix = at::empty({sizes.rows(), sizes.outputs}, xc.values.options());
  const at::Tensor totals = floats({kernels::scan_slots(sizes), sizes.outputs}, xc.values);
  const kernels::ScanEpilogue scan{static_cast<int>(order), prefix.mutable_data_ptr(),
                                   totals.mutable_data_ptr<float>()};
  check_launch(op, kernels::scan(context, scan, queue.stream));
  kernels::CarryParams carry;
  carry.sizes = sizes, carry.totals = scan.totals, carry.sum = floats_of(state.sum);
  if (state.total.defined()) carry.total = state.total.mutable_data_ptr<float>();
  check_launch(op, kernels::scan_carry(carry, queue.stream));
  Rows mixed;
  mixed.values = at::empty({sizes.batch, sizes.tokens, sizes.outputs}, xq.values.options());
  kernels::ScanGateEpilogue gate;
  gate.block = block, gate.prefix = scan.prefix, gate.carry = scan.totals;
  if (state.count.defined()) gate.count = state.count.const_data_ptr<std::int64_t>();
  gate.out = mixed.values.mutable_data_ptr();
  check_launch(op, kernels::scan_gate(queries, gate, queue.stream));
  return mixed;
}

// The same in one kernel and nothing rounded on the way, where the queries are the context.
Rows mixed(const char* op, const Rows& x, const LayerWeights& w, std::int64_t order, std::int64_t block,
           const Running& state, Queue& queue) {
  queue.settled = false;
  const Dtype dtype = dtype_of(x.values);
  const std::int64_t prepared = order == 2 ? 0 : order;
  const Matrix ho = matrix({w.ho_weight, w.ho_bias}, dtype, prepared);
  const Matrix se = matrix({w.se_weight, w.se_bias}, dtype, prepared);
  kernels::Gemm context = gemm_of(x, ho);
  const kernels::GemmSizes& sizes = context.sizes;
  at::Tensor padded;  // the kernel takes rows by 32
  if (const std::int64_t rows = kernels::scan_mix_rows(sizes); rows != sizes.rows()) {
    padded = at::empty({rows, sizes.inputs}, x.values.options());
    padded.narrow(0, 0, sizes.rows()).copy_(x.values.view({sizes.rows(), sizes.inputs}));
    context.a = padded.const_data_ptr();
  }
  const at::Tensor work = at::empty({kernels::scan_mix_work(sizes)}, x.values.options().dtype(at::kByte));
  Rows r;
  r.values = at::empty({sizes.batch, sizes.tokens, sizes.outputs}, x.values.options());
  kernels::ScanMix mix;
  mix.order = static_cast<int>(order), mix.block = block;
  mix.se = se.weight.values.const_data_ptr(), mix.se_bias = floats_of(se.bias.values);
  mix.sum = floats_of(state.sum);
  if (state.count.defined()) mix.count = state.count.const_data_ptr<std::int64_t>();
  if (state.total.defined()) mix.total = state.total.mutable_data_ptr<float>();
  mix.work = work.mutable_data_ptr(), mix.out = r.values.mutable_data_ptr();
  check_launch(op, kernels::scan_mix(context, mix, queue.stream));
  return r;
}

// Of many rows and several blocks that are shorter than a tile, or cross its edges, a running sum of each row
// is less work than a sum of each block; nothing where it is not.
std::optional<Rows> running_layer(const char* op, const at::Tensor& xq, const at::Tensor& xc,
                                  const LayerWeights& w, std::int64_t order, const Visibility& seen,
                                  Queue& queue) {
  constexpr std::int64_t tile = 128;
  const std::int64_t block = seen.runs.run_tokens;
  const bool one = block >= xc.size(1) && block > 1;
  if (!seen.causal || seen.window > 0 || seen.visible.defined() || one) return {};
  if (few_sums(xc, w.ho_weight, order)) return {};
  if (block <= tile && same(xq, xc) && has_mix(xq, w, order, block))
    return mixed(op, plain(xq), w, order, block, {}, queue);
  if (block >= tile || !has_scan(xq, xc, w, order)) return {};
  const Rows queries = plain(xq);
  return causal(op, queries, same(xq, xc) ? queries : plain(xc), w, order, block, {}, queue);
}

// Everything but the last product.
std::optional<Rows> gated_layer(const char* op, const Problem& p, const at::Tensor& xq, const at::Tensor& xc,
                                const LayerWeights& w, Queue& queue) {
  if (!has_gate(xq, w)) return {};
  Visibility seen = visibility(p, xc.size(1));
  if (auto rows = running_layer(op, xq, xc, w, p.order, seen, queue)) return rows;
  if (!has_means(xc, w.ho_weight, p.order, seen)) return {};
  seen.gated_here = same(xq, xc);
  const Rows queries = plain(xq), context = seen.gated_here ? queries : plain(xc);
  const Means H =
      means(op, context, {w.ho_weight, w.ho_bias}, detail::kernel_dtype(xq), p.order, seen, queue);
  return gated_by(op, queries, H, w, queue);
}
bool takes(const Problem& p, const at::Tensor& xq) {
  return !p.packed && !p.full && half_precision(xq);
}

}  // namespace

std::optional<at::Tensor> inference_layer(const Problem& p, const at::Tensor& xq, const at::Tensor& xc,
                                          const LayerWeights& w) {
  constexpr const char* op = "mixer_layer";
  if (!takes(p, xq)) return {};
  const OnDevice device(xq);
  Queue queue{device.stream()};
  if (!has_last(xq, w)) return {};
  const auto rows = gated_layer(op, p, xq, xc, w, queue);
  return rows ? std::optional(aggregated(op, *rows, w, queue)) : std::nullopt;
}

std::optional<at::Tensor> inference_gated(const Problem& p, const at::Tensor& xq, const at::Tensor& xc,
                                          const LayerWeights& w) {
  if (!takes(p, xq)) return {};
  const OnDevice device(xq);
  Queue queue{device.stream()};
  const auto rows = gated_layer("mixer_gated", p, xq, xc, w, queue);
  return rows ? std::optional(rows->values) : std::nullopt;
}

std::optional<at::Tensor> inference_summary(const Problem& p, const at::Tensor& xc,
                                            const at::Tensor& ho_weight, const at::Tensor& ho_bias) {
  constexpr const char* op = "mixer_summary";
  if (!half_precision(xc)) return {};
  const OnDevice device(xc);
  Visibility seen;
  seen.visible = p.visible, seen.sums = true;
  if (!has_means(xc, ho_weight, p.order, seen)) return {};
  Queue queue{device.stream()};
  return sums_of(op, plain(xc), {ho_weight, ho_bias}, detail::kernel_dtype(xc), p.order, p.visible, queue);
}

std::optional<at::Tensor> inference_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& w) {
  if (!half_precision(xq) || H.scalar_type() != at::kFloat) return {};
  const OnDevice device(xq);
  if (!has_select(xq, w)) return {};
  Queue queue{device.stream()};
  constexpr const char* op = "mixer_select";
  return aggregated(op, gated_by(op, plain(xq), means_from(H, detail::kernel_dtype(xq)), w, queue), w, queue);
}

std::optional<std::tuple<at::Tensor, at::Tensor>> inference_scan(const Problem& p, const at::Tensor& x,
                                                                 const LayerWeights& w, const at::Tensor& sum,
                                                                 const at::Tensor& count) {
  constexpr const char* op = "mixer_scan";
  if (!half_precision(x) || sum.scalar_type() != at::kFloat) return {};
  const OnDevice device(x);
  const bool fews = few_sums(x, w.ho_weight, p.order) && has_select(x, w);
  if (!fews && !(has_scan(x, x, w, p.order) && has_last(x, w))) return {};
  Queue queue{device.stream()};
  const Rows rows = plain(x);
  const Running state{sum.contiguous(), count.to(x.device()).contiguous(), floats(sum.sizes(), sum)};
  if (!fews) {
    const Rows run = has_mix(x, w, p.order, 1) ? mixed(op, rows, w, p.order, 1, state, queue)
                                               : causal(op, rows, rows, w, p.order, 1, state, queue);
    return std::tuple{aggregated(op, run, w, queue), state.total};
  }
  const auto context = rows_of(rows, matrix({w.ho_weight, w.ho_bias}, detail::kernel_dtype(x)), false);
  Visibility seen;
  seen.causal = true, seen.runs.run_tokens = 1;
  const Means H = few_means(op, *context, p.order, seen, state, x, queue);
  return std::tuple{aggregated(op, gated_by(op, rows, H, w, queue), w, queue), state.total};
}

}  // namespace pom::ops::cuda
