// Rows are tokens of the whole batch, and every product is one over all of them: with its neighbours in one
// kernel where products_cuda.h has it, else of cuBLAS, with the kernels of pom/kernels/mixer.h between.
#include "pom/ops/mixer_cuda.h"

#include <ATen/ATen.h>

#include "pom/kernels/mixer.h"
#include "pom/ops/cuda_launch.h"
#include "pom/ops/products_cuda.h"

namespace pom::ops::cuda {
namespace {

using detail::check_launch;
using detail::OnDevice;

kernels::MixerSizes sizes_of(const Problem& p, const at::Tensor& ho, const at::Tensor& se) {
  return {detail::kernel_dtype(ho), ho.size(0), se.size(1), ho.size(1), p.D, static_cast<int>(p.order)};
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}
at::Tensor scratch(const kernels::MixerSizes& s, int parts, const at::Tensor& like) {
  return floats({parts > 1 ? s.batch * parts * s.features() : 0}, like);
}
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt).contiguous();
}
at::Tensor rows(const at::Tensor& x) {  // (B, n, c) -> (B n, c)
  return x.contiguous().view({x.size(0) * x.size(1), x.size(2)});
}

at::Tensor means(const kernels::MixerSizes& s, const at::Tensor& ho, cudaStream_t stream) {
  const at::Tensor H = floats({s.batch, s.features()}, ho), part = scratch(s, context_parts(s), ho);
  check_launch("mixer", kernels::mixer_means({s, ho.const_data_ptr(), part.mutable_data_ptr<float>(),
                                              H.mutable_data_ptr<float>()},
                                             stream));
  return H;
}
at::Tensor gate(const kernels::MixerSizes& s, const at::Tensor& se, const at::Tensor& H,
                cudaStream_t stream) {
  at::Tensor out = at::empty(se.sizes(), se.options());
  check_launch("mixer",
               kernels::mixer_gate(
                   {s, se.const_data_ptr(), H.const_data_ptr<float>(), out.mutable_data_ptr()}, stream));
  return out;
}

// The two halves of the forward, with what the backward needs of them.
Context context(const Problem& problem, const at::Tensor& xc, const LayerWeights& w, cudaStream_t stream) {
  if (const auto made = context_product(xc.contiguous(), w.ho_weight, w.ho_bias, problem.order, stream))
    return *made;
  const at::Tensor ho = linear(xc, w.ho_weight, w.ho_bias);
  return {ho, means(sizes_of(problem, ho, ho), ho, stream)};
}
Queries queries(const Problem& problem, const at::Tensor& xq, const LayerWeights& w, const Context& context,
                cudaStream_t stream) {
  if (const auto made = gate_product(xq.contiguous(), w.se_weight, w.se_bias, context.H, stream))
    return *made;
  const at::Tensor se = linear(xq, w.se_weight, w.se_bias);
  return {se, gate(sizes_of(problem, context.ho, se), se, context.H, stream)};
}

struct ContextGradients {
  at::Tensor dho;       // like ho
  at::Tensor dho_sums;  // (B parts, kD): what the bias's gradient is the sum of
};

// `for_weights`: with what only the gradients of weights need.
GateGradients gate_backward(const kernels::MixerSizes& s, const at::Tensor& dgated, const at::Tensor& se,
                            const at::Tensor& H, bool for_weights, cudaStream_t stream) {
  GateGradients r{at::empty(se.sizes(), se.options()), {}, floats({s.batch, s.features()}, se), {}};
  const at::Tensor part = scratch(s, query_parts(s), se);
  kernels::GateBackwardParams g;
  g.sizes = s;
  g.dout = dgated.const_data_ptr(), g.se = se.const_data_ptr(), g.H = H.const_data_ptr<float>();
  g.scratch = part.mutable_data_ptr<float>(), g.dse = r.dse.mutable_data_ptr();
  g.dH = r.dH.mutable_data_ptr<float>();
  if (for_weights) {
    r.gated = at::empty(se.sizes(), se.options());
    r.dse_sums = floats({s.batch * query_parts(s), s.features()}, se);
    g.gated = r.gated.mutable_data_ptr(), g.dse_sums = r.dse_sums.mutable_data_ptr<float>();
  }
  check_launch("mixer_backward", kernels::mixer_gate_backward(g, stream));
  return r;
}

ContextGradients means_backward(const kernels::MixerSizes& s, const at::Tensor& ho, const at::Tensor& dH,
                                bool for_weights, cudaStream_t stream) {
  ContextGradients r{at::empty(ho.sizes(), ho.options()), {}};
  kernels::MeansBackwardParams m;
  m.sizes = s;
  m.ho = ho.const_data_ptr(), m.dH = dH.const_data_ptr<float>(), m.dho = r.dho.mutable_data_ptr();
  if (for_weights) {
    r.dho_sums = floats({s.batch * context_parts(s), s.features()}, ho);
    m.dho_sums = r.dho_sums.mutable_data_ptr<float>();
  }
  check_launch("mixer_backward", kernels::mixer_means_backward(m, stream));
  return r;
}

}  // namespace

at::Tensor mix_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se) {
  const OnDevice device(se);
  const at::Tensor context = ho.contiguous(), queries = se.contiguous();
  const kernels::MixerSizes s = sizes_of(problem, context, queries);
  return gate(s, queries, means(s, context, device.stream()), device.stream());
}

std::tuple<at::Tensor, at::Tensor> mix_backward(const Problem& problem, const at::Tensor& dout,
                                                const at::Tensor& ho, const at::Tensor& se) {
  const OnDevice device(se);
  const at::Tensor context = ho.contiguous(), queries = se.contiguous();
  const kernels::MixerSizes s = sizes_of(problem, context, queries);
  const at::Tensor H = means(s, context, device.stream());
  const GateGradients g = gate_backward(s, dout.contiguous(), queries, H, false, device.stream());
  return {means_backward(s, context, g.dH, false, device.stream()).dho, g.dse};
}

at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& w, Saved* saved) {
  const OnDevice device(xq);
  const Context c = context(problem, xc, w, device.stream());
  const Queries q = queries(problem, xq, w, c, device.stream());
  if (saved) *saved = {c.ho, q.se, c.H};
  return linear(q.gated, w.ag_weight, w.ag_bias);
}

Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& w, const Saved& saved, bool need_x,
                         bool need_w) {
  const OnDevice device(xq);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);  // dtypes are chosen
  const kernels::MixerSizes s = sizes_of(problem, saved.ho, saved.se);
  const cudaStream_t stream = device.stream();
  const at::Tensor dense = dout.contiguous(), grad = rows(dense);
  std::optional<GateGradients> q =
      gate_backward_product(dense, w.ag_weight, saved.se, saved.H, need_w, stream);
  if (!q) q = gate_backward(s, grad.mm(w.ag_weight), saved.se, saved.H, need_w, stream);
  const ContextGradients c = means_backward(s, saved.ho, q->dH, need_w, stream);
  const at::Tensor dho = rows(c.dho), dse = rows(q->dse);
  Gradients g;
  if (need_x) {
    g.xq = dse.mm(w.se_weight).view(xq.sizes());
    g.xc = dho.mm(w.ho_weight).view(xc.sizes());
  }
  if (need_w) {
    const auto bias = [&](const at::Tensor& sums) { return sums.sum(0).to(xq.scalar_type()); };
    g.weights = {dho.t().mm(rows(xc)),        bias(c.dho_sums), dse.t().mm(rows(xq)), bias(q->dse_sums),
                 grad.t().mm(rows(q->gated)), grad.sum(0)};
  }
  return g;
}

}  // namespace pom::ops::cuda
