// Rows are tokens of the whole batch; every product is one of cuBLAS over all of them.
#include "pom/ops/mixer_cuda.h"

#include <ATen/ATen.h>

#include "pom/kernels/mixer.h"
#include "pom/ops/cuda_launch.h"

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

struct Backward {
  at::Tensor dho, dse;            // like ho and se
  at::Tensor gated;               // like se
  at::Tensor dho_sums, dse_sums;  // (B parts, kD): what the biases' gradients are sums of
};

// `for_weights`: with what only the gradients of weights need.
Backward backward(const kernels::MixerSizes& s, const at::Tensor& dout, const at::Tensor& ho,
                  const at::Tensor& se, const at::Tensor& H, bool for_weights, cudaStream_t stream) {
  Backward r{at::empty(ho.sizes(), ho.options()), at::empty(se.sizes(), se.options()), {}, {}, {}};
  const at::Tensor dH = floats({s.batch, s.features()}, ho), part = scratch(s, query_parts(s), ho);
  if (for_weights) {
    r.gated = at::empty(se.sizes(), se.options());
    r.dse_sums = floats({s.batch * query_parts(s), s.features()}, se);
    r.dho_sums = floats({s.batch * context_parts(s), s.features()}, ho);
  }
  kernels::GateBackwardParams g;
  g.sizes = s;
  g.dout = dout.const_data_ptr(), g.se = se.const_data_ptr(), g.H = H.const_data_ptr<float>();
  g.scratch = part.mutable_data_ptr<float>(), g.dse = r.dse.mutable_data_ptr();
  g.dH = dH.mutable_data_ptr<float>();
  if (for_weights) g.gated = r.gated.mutable_data_ptr(), g.dse_sums = r.dse_sums.mutable_data_ptr<float>();
  check_launch("mixer_backward", kernels::mixer_gate_backward(g, stream));
  kernels::MeansBackwardParams m;
  m.sizes = s;
  m.ho = ho.const_data_ptr(), m.dH = dH.const_data_ptr<float>(), m.dho = r.dho.mutable_data_ptr();
  if (for_weights) m.dho_sums = r.dho_sums.mutable_data_ptr<float>();
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
  const Backward r = backward(s, dout.contiguous(), context, queries, H, false, device.stream());
  return {r.dho, r.dse};
}

at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& w, Saved* saved) {
  const OnDevice device(xq);
  const at::Tensor ho = linear(xc, w.ho_weight, w.ho_bias), se = linear(xq, w.se_weight, w.se_bias);
  const kernels::MixerSizes s = sizes_of(problem, ho, se);
  const at::Tensor H = means(s, ho, device.stream());
  const at::Tensor gated = gate(s, se, H, device.stream());
  if (saved) *saved = {ho, se, H};
  return linear(gated, w.ag_weight, w.ag_bias);
}

Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& w, const Saved& saved, bool need_x,
                         bool need_w) {
  const OnDevice device(xq);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);  // dtypes are chosen
  const kernels::MixerSizes s = sizes_of(problem, saved.ho, saved.se);
  const at::Tensor grad = rows(dout), dgated = grad.mm(w.ag_weight);
  const Backward r = backward(s, dgated, saved.ho, saved.se, saved.H, need_w, device.stream());
  const at::Tensor dho = rows(r.dho), dse = rows(r.dse);
  Gradients g;
  if (need_x) {
    g.xq = dse.mm(w.se_weight).view(xq.sizes());
    g.xc = dho.mm(w.ho_weight).view(xc.sizes());
  }
  if (need_w) {
    const auto bias = [&](const at::Tensor& sums) { return sums.sum(0).to(xq.scalar_type()); };
    g.weights = {dho.t().mm(rows(xc)), bias(r.dho_sums),           dse.t().mm(rows(xq)),
                 bias(r.dse_sums),     grad.t().mm(rows(r.gated)), grad.sum(0)};
  }
  return g;
}

}  // namespace pom::ops::cuda
