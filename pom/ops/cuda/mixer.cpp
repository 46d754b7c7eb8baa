// Rows are tokens of the whole batch, and every product is one over all of them: with its neighbours in one
// kernel where training_gemms.h has it, else of cuBLAS, with the kernels of pom/kernels/portable/mixer.h
// between; under the other masks, and of packed sequences, with those of masked_mixer.h.
#include "pom/ops/cuda/mixer.h"

#include <ATen/ATen.h>

#include "pom/kernels/portable/mixer.h"
#include "pom/ops/block_means.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/masked_mixer.h"
#include "pom/ops/cuda/training_gemms.h"

namespace pom::ops::cuda {
namespace {

// Blocks are worth sequences of their own where there are many tokens in each and not too many of them.
bool whole_blocks(std::int64_t block, std::int64_t n) {
  constexpr std::int64_t least = 32, most = 512;
  return block >= least && n > 0 && n % block == 0 && n / block <= most;
}
bool covers_blocks(const Mask& mask, const at::Tensor& x) {
  if (x.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || x.dim() != 3) return false;
  return whole_blocks(mask.block, x.size(1));
}

// Whether this is for the kernels of masked_mixer.h.
bool has_slots(const Problem& p) {
  return p.packed || (p.block > 0 && (p.queries.empty() || !whole_blocks(p.block, p.queries[0])));
}

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
  const auto like_x = [&] { return std::optional<at::Tensor>(bias.to(x.scalar_type())); };
  return at::linear(x, weight, bias.defined() ? like_x() : std::nullopt).contiguous();
}
at::Tensor rows(const at::Tensor& x) {  // (B, n, c) or packed -> (B n, c)
  return x.dim() == 2 ? x.contiguous() : x.contiguous().view({x.size(0) * x.size(1), x.size(2)});
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

// ---- masks ----
// With blocks the tokens of each are a sequence of their own, and what a block sees is a mean of the means.
// With a mask of keys, tokens that do not count become 0, whose powers are all 0, and the mean over all
// tokens is made one over those that do.

at::Tensor in_blocks(const Problem& p, const at::Tensor& x) {
  if (p.block == 0) return x;
  return x.contiguous().view({x.size(0) * (x.size(1) / p.block), p.block, x.size(2)});
}

at::Tensor by_sequence(const Problem& p, const at::Tensor& x) {  // (B blocks, c) -> (B, blocks, c)
  const std::int64_t blocks = p.queries.empty() ? 1 : p.queries[0] / p.block;
  return x.view({x.size(0) / blocks, blocks, x.size(1)});
}

// (B, 1): tokens there are for each that counts.
at::Tensor tokens_each(const Problem& p) {
  constexpr double eps = 1e-7;
  return static_cast<double>(p.visible.size(1)) / (p.visible.sum(1, /*keepdim=*/true, at::kFloat) + eps);
}

at::Tensor unseen(const Problem& p) {  // (B, n, 1)
  return p.visible.eq(0).unsqueeze(-1);
}

// From the means over all tokens of every sequence to those over what its queries see.
at::Tensor over_seen(const Problem& p, const at::Tensor& means) {
  if (p.visible.defined()) return means * tokens_each(p);
  return p.block == 0 ? means : seen_means(by_sequence(p, means), p.window).view(means.sizes());
}
// And back, of gradients.
at::Tensor over_all(const Problem& p, const at::Tensor& dH) {
  if (p.visible.defined()) return dH * tokens_each(p);
  return p.block == 0 ? dH : seen_means_backward(by_sequence(p, dH), p.window).view(dH.sizes());
}

// The two halves of the forward, with what the backward needs of them.
Context all_context(const Problem& problem, const at::Tensor& xc, const LayerWeights& w,
                    const at::Tensor& ho_context, cudaStream_t stream) {
  if (!problem.visible.defined())
    if (const auto made =
            context_gemm(xc.contiguous(), w.ho_weight, w.ho_bias, problem.order, stream, ho_context))
      return *made;
  at::Tensor ho = linear(xc, w.ho_weight, w.ho_bias);
  if (problem.visible.defined()) ho.masked_fill_(unseen(problem), 0);
  return {ho, means(sizes_of(problem, ho, ho), ho, stream)};
}
Context context(const Problem& problem, const at::Tensor& xc, const LayerWeights& w,
                const BetweenMeans* between, const at::Tensor& ho_context, cudaStream_t stream) {
  const Context all = all_context(problem, in_blocks(problem, xc), w, ho_context, stream);
  return {all.ho, between ? (*between)(all.H).contiguous() : over_seen(problem, all.H)};
}
Queries queries(const Problem& problem, const at::Tensor& xq, const LayerWeights& w, const Context& context,
                cudaStream_t stream) {
  if (const auto made = gate_gemm(xq.contiguous(), w.se_weight, w.se_bias, context.H, stream)) return *made;
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

ContextGradients means_backward(const Problem& problem, const kernels::MixerSizes& s, const at::Tensor& ho,
                                const at::Tensor& dmeans, bool for_weights, cudaStream_t stream) {
  ContextGradients r{at::empty(ho.sizes(), ho.options()), {}};
  kernels::MeansBackwardParams m;
  m.sizes = s;
  m.ho = ho.const_data_ptr(), m.dH = dmeans.const_data_ptr<float>(), m.dho = r.dho.mutable_data_ptr();
  if (for_weights) {
    r.dho_sums = floats({s.batch * context_parts(s), s.features()}, ho);
    m.dho_sums = r.dho_sums.mutable_data_ptr<float>();
  }
  check_launch("mixer_backward", kernels::mixer_means_backward(m, stream));
  if (!problem.visible.defined()) return r;
  r.dho.masked_fill_(unseen(problem), 0);
  if (for_weights) r.dho_sums = at::sum(rows(r.dho), 0, /*keepdim=*/true, at::kFloat);
  return r;
}

}  // namespace

bool covers(const Mask& mask, const Packing& packing, std::int64_t order, const at::Tensor& x) {
  if (order > kMaxFusedOrder || x.scalar_type() == at::kDouble) return false;
  return !mask.visible.defined() || (mask.is_keys() && mask.block == 0 && !packing.packed());
}

bool covers_whole(const Mask& mask, std::int64_t order, const at::Tensor& x) {
  return covers(mask, {}, order, x) && (mask.block == 0 || covers_blocks(mask, x));
}

namespace {

// ho as the kernels take it.
at::Tensor counted(const Problem& problem, const at::Tensor& ho) {
  return problem.visible.defined() ? ho.masked_fill(unseen(problem), 0).contiguous()
                                   : in_blocks(problem, ho.contiguous());
}

}  // namespace

at::Tensor mix_forward(const Problem& problem, const at::Tensor& ho, const at::Tensor& se) {
  const OnDevice device(se);
  if (has_slots(problem))
    return masked_forward(problem, ho.contiguous(), se.contiguous(), nullptr, device.stream());
  const at::Tensor context = counted(problem, ho), queries = in_blocks(problem, se.contiguous());
  const kernels::MixerSizes s = sizes_of(problem, context, queries);
  const at::Tensor H = over_seen(problem, means(s, context, device.stream()));
  return gate(s, queries, H, device.stream()).view(se.sizes());
}

std::tuple<at::Tensor, at::Tensor> mix_backward(const Problem& problem, const at::Tensor& dout,
                                                const at::Tensor& ho, const at::Tensor& se) {
  const OnDevice device(se);
  if (has_slots(problem)) {
    const MaskedGradients g =
        masked_backward(problem, dout.contiguous(), ho.contiguous(), se.contiguous(), {},
                        /*for_weights=*/false, device.stream());
    return {g.dho, g.dse};
  }
  const at::Tensor context = counted(problem, ho), queries = in_blocks(problem, se.contiguous());
  const kernels::MixerSizes s = sizes_of(problem, context, queries);
  const at::Tensor H = over_seen(problem, means(s, context, device.stream()));
  const GateGradients g =
      gate_backward(s, in_blocks(problem, dout.contiguous()), queries, H, false, device.stream());
  const at::Tensor dmeans = over_all(problem, g.dH);
  return {means_backward(problem, s, context, dmeans, false, device.stream()).dho.view(ho.sizes()),
          g.dse.view(se.sizes())};
}

at::Tensor layer_gated(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                       const LayerWeights& w, Saved* saved, const BetweenMeans* between,
                       const LayerCopies& copies) {
  const OnDevice device(xq);
  if (!between && has_slots(problem)) {
    const at::Tensor ho = linear(xc, w.ho_weight, w.ho_bias), se = linear(xq, w.se_weight, w.se_bias);
    at::Tensor sums;
    const at::Tensor gated = masked_forward(problem, ho, se, saved ? &sums : nullptr, device.stream());
    if (saved) *saved = {ho, se, sums};
    return gated;
  }
  const Context c = context(problem, xc, w, between, copies.ho_context, device.stream());
  const Queries q = queries(problem, in_blocks(problem, xq), w, c, device.stream());
  const auto wide = [&](const at::Tensor& x, const at::Tensor& like) {
    return x.view({like.size(0), like.size(1), problem.kD()});
  };
  if (saved) *saved = {wide(c.ho, xc), wide(q.se, xq), c.H};
  return wide(q.gated, xq);
}

at::Tensor layer_forward(const Problem& problem, const at::Tensor& xq, const at::Tensor& xc,
                         const LayerWeights& w, Saved* saved, const BetweenMeans* between,
                         const LayerCopies& copies) {
  return linear(layer_gated(problem, xq, xc, w, saved, between, copies), w.ag_weight, w.ag_bias);
}

ProjectionGradients projection_gradients(const Problem& problem, const at::Tensor& dout,
                                         const at::Tensor& ag_weight, const Saved& saved, bool for_weights,
                                         const BetweenMeans* between, const LayerCopies& copies) {
  const OnDevice device(dout);
  if (!between && has_slots(problem)) {
    const MaskedGradients g = masked_backward(problem, rows(dout).mm(ag_weight), saved.ho, saved.se, saved.H,
                                              for_weights, device.stream());
    return {rows(g.dho), rows(g.dse), g.dho_sums, g.dse_sums, for_weights ? rows(g.gated) : at::Tensor()};
  }
  const at::Tensor ho = in_blocks(problem, saved.ho), se = in_blocks(problem, saved.se);
  const kernels::MixerSizes s = sizes_of(problem, ho, se);
  const cudaStream_t stream = device.stream();
  const at::Tensor dense = in_blocks(problem, dout.contiguous());
  std::optional<GateGradients> q =
      gate_backward_gemm(dense, ag_weight, se, saved.H, for_weights, stream, copies.ag_transposed);
  if (!q) q = gate_backward(s, rows(dense).mm(ag_weight), se, saved.H, for_weights, stream);
  const at::Tensor dmeans = between ? (*between)(q->dH).contiguous() : over_all(problem, q->dH);
  const ContextGradients c = means_backward(problem, s, ho, dmeans, for_weights, stream);
  return {rows(c.dho), rows(q->dse), c.dho_sums, q->dse_sums, for_weights ? rows(q->gated) : at::Tensor()};
}

Gradients layer_backward(const Problem& problem, const at::Tensor& dout, const at::Tensor& xq,
                         const at::Tensor& xc, const LayerWeights& w, const Saved& saved, bool need_x,
                         bool need_w, const BetweenMeans* between) {
  const OnDevice device(xq);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);  // dtypes are chosen
  const ProjectionGradients p = projection_gradients(problem, dout, w.ag_weight, saved, need_w, between);
  Gradients g;
  if (need_x) {
    g.xq = p.dse.mm(w.se_weight).view(xq.sizes());
    g.xc = p.dho.mm(w.ho_weight).view(xc.sizes());
  }
  if (need_w) {
    const auto bias = [&](const at::Tensor& sums) { return sums.sum(0).to(xq.scalar_type()); };
    const at::Tensor grad = rows(dout);
    g.weights = {p.dho.t().mm(rows(xc)), bias(p.dho_sums),     p.dse.t().mm(rows(xq)),
                 bias(p.dse_sums),       grad.t().mm(p.gated), grad.sum(0)};
  }
  return g;
}

}  // namespace pom::ops::cuda
