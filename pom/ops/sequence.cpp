#include "pom/ops/sequence.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "pom/base/error.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/composed.h"
#include "pom/ops/cpu/layer.h"
#include "pom/ops/cuda/mixer.h"
#include "pom/ops/dispatcher/operators.h"
#include "pom/ops/dispatcher/second_order.h"
#include "pom/ops/sequence_reach.h"

namespace pom::ops {
namespace {

using detail::sum_type;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "mixer_layer_split";
constexpr double kMaskedEps = 1e-7;

Problem check_split(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w, std::int64_t order,
                    const Mask& mask, const SplitTokens& split) {
  check(!mask.is_full(), kOp, ": mask: expected none, keys (B, n) or a causal mask over split tokens, got a ",
        "full mask of shape ", shape_text(mask.visible));
  Problem problem = check_layer(kOp, xq, xc, w, order, mask, {});
  check(xc.size(1) == split.mine().count, kOp, ": xc: expected the ", split.mine().count, " tokens of rank ",
        split.ranks().rank(), " (from ", split.mine().first, " on, of ", split.total(), "), got ",
        xc.size(1));
  return problem;
}

// 1 / count of what a query of each row sees: (1, R, 1). Known to all ranks, but for keys.
at::Tensor scales(const SplitBlocks& blocks, bool masked, const at::Tensor& like) {
  std::vector<double> scale;
  for (const std::int64_t count : blocks.seen())
    scale.push_back(1.0 / ((masked ? kMaskedEps : 0.0) + static_cast<double>(count)));
  return at::tensor(scale, at::kDouble).to(like.options()).view({1, -1, 1});
}

// Of the keys that this rank has: (B, 1, 1), in the dtype of sums.
at::Tensor visible_count(const at::Tensor& visible, const at::Tensor& sums) {
  return visible.ne(0).sum(1).to(sums.scalar_type()).view({-1, 1, 1});
}
// Sums with a count behind them, over all ranks -> the mean.
at::Tensor mean_of_keys(const at::Tensor& all) {
  const std::int64_t kD = all.size(2) - 1;
  return all.narrow(2, 0, kD) / (all.narrow(2, kD, 1) + kMaskedEps);
}

// ---- composed ----

// (B, n, kD) -> (B, R, kD)
at::Tensor row_sums(const at::Tensor& p, const SplitBlocks& blocks) {
  if (blocks.rows() == 1) return p.sum(1, /*keepdim=*/true);
  const std::int64_t K = blocks.block(), rows = blocks.rows();
  const at::Tensor padded =
      at::constant_pad_nd(p, {0, 0, blocks.lead(), rows * K - blocks.lead() - p.size(1)});
  return padded.reshape({p.size(0), rows, K, p.size(2)}).sum(2);
}

// (B, R, kD) -> (B, m, kD), or (B, 1, kD) where one row is for all.
at::Tensor for_tokens(const at::Tensor& H, const SplitBlocks& blocks, std::int64_t tokens) {
  if (blocks.rows() == 1) return H;
  return H.repeat_interleave(blocks.block(), 1).narrow(1, blocks.lead(), tokens);
}

at::Tensor composed_split(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w,
                          std::int64_t order, const Mask& mask, const SplitTokens& split) {
  const auto optional = [](const at::Tensor& t) { return t.defined() ? OptTensor(t) : std::nullopt; };
  const SplitBlocks blocks(split, mask.block, mask.window);
  at::Tensor p = composed::powers(at::linear(xc, w.ho_weight, optional(w.ho_bias)), order);
  p = p.to(sum_type(p));
  at::Tensor H;
  if (mask.visible.defined()) {
    p = p.masked_fill(mask.visible.eq(0).unsqueeze(-1), 0);
    const at::Tensor sums = row_sums(p, blocks);
    H = mean_of_keys(reach(at::cat({sums, visible_count(mask.visible, sums)}, 2), split, blocks));
  } else {
    H = reach(row_sums(p, blocks), split, blocks) * scales(blocks, mask.block > 0, p);
  }
  const at::Tensor gate = at::sigmoid(at::linear(xq, w.se_weight, optional(w.se_bias)));
  const at::Tensor gated = gate * for_tokens(H, blocks, xq.size(1)).to(gate.scalar_type());
  return at::linear(gated, w.ag_weight, optional(w.ag_bias));
}

// ---- fused: the kernels' sums of each row, the exchange, the kernels' queries ----
// On a GPU the kernels have means of the rows, which then are whole blocks of equal length.

struct FusedCall : torch::CustomClassHolder {
  FusedCall(SplitTokens split, SplitBlocks blocks, Problem problem, Mask mask)
      : split(std::move(split)),
        blocks(std::move(blocks)),
        problem(std::move(problem)),
        mask(std::move(mask)) {}
  SplitTokens split;
  SplitBlocks blocks;
  Problem problem;  // as the kernels take it
  Mask mask;        // of the call

  at::Tensor in_rows(const at::Tensor& sums) const { return sums.view({-1, blocks.rows(), sums.size(1)}); }
  double row_tokens() const { return static_cast<double>(blocks.lengths().front()); }
};

// Rows are sequences to the kernels: where there are several, packed ones, or on a GPU blocks.
Problem in_rows(const Problem& whole, const SplitBlocks& blocks, bool cpu) {
  Problem p = whole;
  p.block = p.window = 0;
  if (blocks.rows() == 1) return p;
  if (!cpu) {
    p.block = blocks.block();
    return p;
  }
  p.packed = true;
  p.queries.clear();
  for (std::int64_t b = 0; b < whole.sequences(); ++b)
    p.queries.insert(p.queries.end(), blocks.lengths().begin(), blocks.lengths().end());
  p.keys = p.queries;
  p.query_start = {0};
  for (const std::int64_t count : p.queries) p.query_start.push_back(p.query_start.back() + count);
  p.key_start = p.query_start;
  return p;
}

// 1 / count once more, where the counts of keys came with the sums: kept beside H for the backward pass.
struct Means {
  at::Tensor H, scale;  // (S, kD); (1, R, 1) or (B, 1, 1)
};

Means fused_means(const at::Tensor& sums, const FusedCall& call) {
  const at::Tensor rows = call.in_rows(sums);
  if (!call.problem.visible.defined()) {
    const at::Tensor scale = scales(call.blocks, call.mask.block > 0, sums);
    return {(reach_of(rows, call.split, call.blocks, false) * scale).view_as(sums), scale};
  }
  const at::Tensor count = visible_count(call.problem.visible, sums);
  const at::Tensor all = reach_of(at::cat({rows, count}, 2), call.split, call.blocks, false);
  const std::int64_t kD = sums.size(1);
  const at::Tensor scale = (all.narrow(2, kD, 1) + kMaskedEps).reciprocal();
  return {(all.narrow(2, 0, kD) * scale).reshape(sums.sizes()), scale};
}

// Tokens as the kernels take them here: (B, n, d), or packed (B n, d).
at::Tensor packed(const at::Tensor& x, const Problem& problem) {
  return problem.packed ? x.reshape({-1, x.size(-1)}) : x;
}

class FusedSplitFunction : public torch::autograd::Function<FusedSplitFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS,
                            const c10::intrusive_ptr<FusedCall>& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const LayerWeights w = weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias);
    cpu::Saved saved;
    at::Tensor scale;
    const at::Tensor out = run(xq, xc, w, *call, &saved, scale);
    ctx->save_for_backward({xq, xc, ho_weight, tensor_of(ho_bias), se_weight, tensor_of(se_bias), ag_weight,
                            tensor_of(ag_bias), saved.ho, saved.se, saved.H, scale});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static at::Tensor run(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w,
                        const FusedCall& call, cpu::Saved* saved, at::Tensor& scale) {
    if (!xq.is_cpu()) return run_cuda(xq, xc, w, call, saved, scale);
    const cpu::BetweenSums between = [&](const at::Tensor& sums) {
      const Means means = fused_means(sums, call);
      scale = means.scale;
      return means.H;
    };
    return cpu::layer_forward(call.problem, packed(xq, call.problem), packed(xc, call.problem), w, saved,
                              &between)
        .view_as(xq);
  }

  static at::Tensor run_cuda(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w,
                             const FusedCall& call, cpu::Saved* saved, at::Tensor& scale) {
    const cuda::BetweenMeans between = [&](const at::Tensor& row_means) {
      const Means means = fused_means(row_means * call.row_tokens(), call);
      scale = means.scale;
      return means.H;
    };
    cuda::Saved kept;
    const at::Tensor out = cuda::layer_forward(call.problem, xq, xc, w, saved ? &kept : nullptr, &between);
    if (saved) *saved = {kept.ho, kept.se, kept.H};
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list v = ctx->get_saved_variables();
    const auto call = c10::static_intrusive_pointer_cast<FusedCall>(ctx->saved_data["call"].toCapsule());
    if (at::GradMode::is_enabled()) {
      const variable_list in = detail::aliases({v.begin(), v.begin() + 8});
      const at::Tensor out = composed_split(in[0], in[1], {in[2], in[3], in[4], in[5], in[6], in[7]},
                                            call->problem.order, call->mask, call->split);
      return detail::composed_gradients({out}, grads, in, 9);
    }
    bool need_x = false, need_w = false;
    for (std::size_t i = 0, edge = 0; i < 8; ++i)  // edges are counted over defined inputs only
      if (v[i].defined()) (i < 2 ? need_x : need_w) |= ctx->needs_input_grad(edge++);
    const auto between = [&](const at::Tensor& sums) {
      return reach_of(call->in_rows(sums) * v[11], call->split, call->blocks, true).view_as(sums);
    };
    const Problem& p = call->problem;
    const LayerWeights w{v[2], v[3], v[4], v[5], v[6], v[7]};
    at::Tensor dxq, dxc;
    LayerWeights dw;
    if (v[0].is_cpu()) {
      const cpu::BetweenSums exchange = between;
      const cpu::Gradients g = cpu::layer_backward(p, packed(grads[0], p), packed(v[0], p), packed(v[1], p),
                                                   w, {v[8], v[9], v[10]}, need_x, need_w, &exchange);
      dxq = g.xq, dxc = g.xc, dw = g.weights;
    } else {
      const cuda::BetweenMeans exchange = [&](const at::Tensor& dH) {
        return between(dH) * call->row_tokens();
      };
      const cuda::Gradients g =
          cuda::layer_backward(p, grads[0], v[0], v[1], w, {v[8], v[9], v[10]}, need_x, need_w, &exchange);
      dxq = g.xq, dxc = g.xc, dw = g.weights;
    }
    variable_list result(9);
    if (need_x) result[0] = dxq.view_as(v[0]), result[1] = dxc.view_as(v[1]);
    if (!need_w) return result;
    const variable_list weights{dw.ho_weight, dw.ho_bias, dw.se_weight, dw.se_bias, dw.ag_weight, dw.ag_bias};
    for (std::size_t i = 0; i < 6; ++i)
      if (v[2 + i].defined()) result[2 + i] = weights[i];
    return result;
  }
};

at::Tensor fused_split(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w,
                       const Problem& problem, const Mask& mask, const SplitTokens& split) {
  const SplitBlocks blocks(split, problem.block, problem.window);
  const auto call =
      c10::make_intrusive<FusedCall>(split, blocks, in_rows(problem, blocks, xq.is_cpu()), mask);
  bool graph = false;
  for (const at::Tensor& t : {xq, xc, w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias})
    graph = graph || (at::GradMode::is_enabled() && t.defined() && t.requires_grad());
  if (graph)
    return FusedSplitFunction::apply(xq, xc, w.ho_weight, optional_of(w.ho_bias), w.se_weight,
                                     optional_of(w.se_bias), w.ag_weight, optional_of(w.ag_bias), call);
  at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor scale;
  return FusedSplitFunction::run(xq, xc, w, *call, nullptr, scale);
}

// Whether a GPU's kernels take the rows that this rank has. Ranks may differ in it: both ways exchange the
// same, but for keys, whose rows are one on all of them.
bool cuda_covers(const at::Tensor& xq, const Problem& problem, const Mask& mask, const SplitTokens& split) {
  const SplitBlocks blocks(split, mask.block, mask.window);
  const bool even =
      std::ranges::all_of(blocks.lengths(), [&](std::int64_t n) { return n == blocks.block(); });
  Mask rows;
  rows.visible = mask.visible;
  if (blocks.rows() > 1) rows.block = blocks.block();
  return xq.is_cuda() && (blocks.rows() == 1 || even) && cuda::covers_whole(rows, problem.order, xq);
}

bool use_kernels(const at::Tensor& xq, const Problem& problem, const Mask& mask, const SplitTokens& split) {
  if (path() == Path::composed) return false;
  const bool covered =
      xq.is_cpu() ? cpu::covers(problem) : xq.size(0) > 0 && cuda_covers(xq, problem, mask, split);
  check(covered || path() != Path::fused, kOp,
        ": path: fused was asked for, but there is no kernel for this ",
        "order, dtype, device or mask over split tokens");
  return covered;
}

// As the plain layer has it: tokens and weights in the lower precision, sums as they are.
at::Tensor lowered(const at::Tensor& t, const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  if (!t.defined() || !at::autocast::is_autocast_enabled(device) || !t.is_floating_point() ||
      t.scalar_type() == at::kDouble)
    return t;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

at::Tensor split_op(const at::Tensor& xq, const at::Tensor& xc, POM_WEIGHT_ARGS, std::int64_t order,
                    const OptTensor& mask, std::int64_t block, std::int64_t window, const std::string& group,
                    at::IntArrayRef counts, bool exact) {
  return mixer_layer(xq, xc, weights_of(ho_weight, ho_bias, se_weight, se_bias, ag_weight, ag_bias), order,
                     mask_of(mask, block, window),
                     SplitTokens(parallel::Ranks::of_group(group), counts.vec(), exact));
}

}  // namespace

at::Tensor mixer_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& weights,
                       std::int64_t order, const Mask& mask, const SplitTokens& split) {
  if (!split.split()) return mixer_layer(xq, xc, weights, order, mask);
  const auto low = [&](const at::Tensor& t) { return lowered(t, xq); };
  const at::Tensor q = low(xq), c = xc.is_same(xq) ? q : low(xc);
  const LayerWeights w{low(weights.ho_weight), low(weights.ho_bias),   low(weights.se_weight),
                       low(weights.se_bias),   low(weights.ag_weight), low(weights.ag_bias)};
  const detail::NoAutocast guard;
  const Problem problem = check_split(q, c, w, order, mask, split);
  if (use_kernels(q, problem, mask, split)) return fused_split(q, c, w, problem, mask, split);
  return composed_split(q, c, w, order, mask, split);
}

}  // namespace pom::ops

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.def("mixer_layer_split(Tensor xq, Tensor xc, " POM_WEIGHTS
        ", int order, Tensor? mask, int block, int window, str group, int[] counts, bool exact=True) -> "
        "Tensor",
        pom::ops::split_op);
}
