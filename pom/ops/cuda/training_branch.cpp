// A branch of a training block on CUDA as one function of autograd. Kept from the forward pass are the stream
// after the sum, what was added to it, and the inputs of the activations; the norm's result comes back from
// the norm's backward pass, after which the products that need it follow.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pom/kernels/portable/mixer.h"
#include "pom/kernels/portable/modulation.h"
#include "pom/ops/block/training.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/training_gemms.h"
#include "pom/ops/dispatcher/second_order.h"

namespace pom::ops::detail {
namespace {

using torch::autograd::AutogradContext;

at::Tensor rows(const at::Tensor& x) {  // (B, N, c) -> (B N, c)
  return x.view({x.size(0) * x.size(1), x.size(2)});
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// rows(dout)^T rows(in), the gradient of a weight, summed in fp32 and rounded once, to the weight's dtype.
at::Tensor weight_gradient(const at::Tensor& dout, const at::Tensor& in, const at::Tensor& weight) {
  const at::Tensor a = rows(dout).t(), b = rows(in);
  return weight.scalar_type() == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, weight.scalar_type());
}
at::Tensor bias_gradient(const at::Tensor& sums, const at::Tensor& bias) {
  const OnDevice device(sums);
  const at::Tensor result = floats({sums.size(1)}, sums);
  check_launch("bias", kernels::sum_rows({sums.size(0), sums.size(1), sums.const_data_ptr<float>(),
                                          result.mutable_data_ptr<float>()},
                                         device.stream()));
  return result.to(bias.scalar_type());
}

// As the products read it: dense, and where a copy engine can begin.
at::Tensor placed(const at::Tensor& t) {
  const at::Tensor dense = t.contiguous();
  return reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 16 == 0 ? dense : dense.clone();
}

// Matrices in the dtype of the products, biases in fp32.
variable_list lowered(at::TensorList weights, at::ScalarType dtype) {
  variable_list result;
  for (const at::Tensor& w : weights) result.push_back(placed(w.to(w.dim() == 2 ? dtype : at::kFloat)));
  return result;
}

struct Forward {
  at::Tensor y;         // (B, N, d), without the last bias
  variable_list saved;  // for Backward
};

// ---- the products of the branches. Backward gives `dnormal` first; the weights' gradients need the norm's
// result once more. ----

struct MixerGemms {
  static constexpr std::size_t kWeights = 5;  // context, queries, each with a bias; output

  static Forward forward(const at::Tensor& normal, const variable_list& w, std::int64_t order,
                         cudaStream_t stream) {
    const cuda::Context c = cuda::context_gemm(normal, w[0], w[1], order, stream).value();
    const cuda::Queries q = cuda::gate_gemm(normal, w[2], w[3], c.H, stream).value();
    return {at::mm(rows(q.gated), w[4].t()).view(normal.sizes()), {c.ho, q.se, c.H}};
  }

  struct Backward {
    Backward(const at::Tensor& dy, const variable_list& w, const variable_list& saved, std::int64_t order,
             at::TensorList weights, cudaStream_t stream)
        : weights(weights) {
      const cuda::GateGradients q =
          cuda::gate_backward_gemm(dy, w[4], saved[1], saved[2], /*for_weights=*/true, stream).value();
      output = weight_gradient(dy, q.gated, weights[4]);
      dse = q.dse, dse_sums = q.dse_sums;
      context(saved[0], q.dH, order, stream);
      dnormal = at::mm(rows(dse), w[2]).addmm_(rows(dho), w[0]).view(dy.sizes());
    }

    variable_list gradients(const at::Tensor& normal) const {
      return {weight_gradient(dho, normal, weights[0]), bias_gradient(dho_sums, weights[1]),
              weight_gradient(dse, normal, weights[2]), bias_gradient(dse_sums, weights[3]), output};
    }

    at::Tensor dnormal;

   private:
    void context(const at::Tensor& ho, const at::Tensor& dH, std::int64_t order, cudaStream_t stream) {
      const std::int64_t B = ho.size(0), n = ho.size(1), kD = ho.size(2);
      kernels::MeansBackwardParams p;
      p.sizes = {kernel_dtype(ho), B, n, n, kD / order, static_cast<int>(order)};
      dho = at::empty(ho.sizes(), ho.options());
      dho_sums = floats({B * kernels::context_parts(p.sizes), kD}, ho);
      p.ho = ho.const_data_ptr(), p.dH = dH.const_data_ptr<float>(), p.dho = dho.mutable_data_ptr();
      p.dho_sums = dho_sums.mutable_data_ptr<float>();
      check_launch("mixer_branch", kernels::mixer_means_backward(p, stream));
    }

    at::TensorList weights;
    at::Tensor dho, dho_sums, dse, dse_sums, output;
  };

  // By the other operations, which can be differentiated again.
  static ResidualStream composed(const ResidualStream& s, const Modulation& m, at::TensorList w,
                                 std::int64_t order) {
    return mixer_branch(s, m, {w[0], w[1], w[2], w[3], w[4], {}}, order);
  }
};

struct FeedForwardGemms {
  static constexpr std::size_t kWeights = 3;  // up with its bias, down

  static Forward forward(const at::Tensor& normal, const variable_list& w, std::int64_t,
                         cudaStream_t stream) {
    const cuda::Activated a = cuda::gelu_gemm(normal, w[0], w[1], /*keep=*/true, stream);
    return {at::mm(rows(a.after), w[2].t()).view(normal.sizes()), {a.before}};
  }

  struct Backward {
    Backward(const at::Tensor& dy, const variable_list& w, const variable_list& saved, std::int64_t,
             at::TensorList weights, cudaStream_t stream)
        : weights(weights) {
      const cuda::GeluGradients g = cuda::gelu_backward_gemm(dy, w[2], saved[0], stream).value();
      down = weight_gradient(dy, g.after, weights[2]);
      dbefore = g.dbefore, sums = g.sums;
      dnormal = at::mm(rows(dbefore), w[0]).view(dy.sizes());
    }

    variable_list gradients(const at::Tensor& normal) const {
      return {weight_gradient(dbefore, normal, weights[0]), bias_gradient(sums, weights[1]), down};
    }

    at::Tensor dnormal;

   private:
    at::TensorList weights;
    at::Tensor dbefore, sums, down;
  };

  static ResidualStream composed(const ResidualStream& s, const Modulation& m, at::TensorList w,
                                 std::int64_t) {
    return feed_forward_branch(s, m, w[0], w[1], w[2], at::zeros({w[2].size(0)}, w[2].options()));
  }
};

// ---- the function ----

template <class Gemms>
class BranchFunction : public torch::autograd::Function<BranchFunction<Gemms>> {
 public:
  // The sum and the branch. Without y the sum is x.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const std::optional<at::Tensor>& maybe_y,
                               const std::optional<at::Tensor>& maybe_bias,
                               const std::optional<at::Tensor>& maybe_gate, const at::Tensor& scale,
                               const at::Tensor& shift, double base, double eps, at::ScalarType dtype,
                               std::int64_t order, at::TensorList weights) {
    const at::Tensor y = or_none(maybe_y), bias = or_none(maybe_bias), gate = or_none(maybe_gate);
    at::AutoDispatchBelowADInplaceOrView guard;
    const NoAutocast no_autocast;
    const OnDevice device(x);
    GatedNormForward n;
    if (y.defined()) {
      n = gated_add_norm_forward_cuda(x, y, gate, base, scale, shift, eps, bias);
    } else {
      const NormForward first = modulated_norm_forward_cuda(x, scale, shift, eps, dtype);
      n = {{}, first.out, first.mean, first.rstd};
    }
    const variable_list w = lowered(weights, dtype);
    const Forward made = Gemms::forward(n.out, w, order, device.stream());
    const at::Tensor kept = y.defined() ? at::Tensor() : n.out;  // which the plain norm does not give again
    variable_list saved{x, y, bias, gate, scale, shift, n.sum, kept, n.mean, n.rstd};
    saved.insert(saved.end(), weights.begin(), weights.end());
    saved.insert(saved.end(), w.begin(), w.end());
    saved.insert(saved.end(), made.saved.begin(), made.saved.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["base"] = base, ctx->saved_data["eps"] = eps, ctx->saved_data["order"] = order;
    ctx->set_materialize_grads(false);
    return {y.defined() ? n.sum : x, made.y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Saved s(ctx);
    if (at::GradMode::is_enabled()) return with_graph(s, grads);
    const OnDevice device(s.x());
    const NoAutocast no_autocast;
    const at::Tensor dsum = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const at::Tensor dy = grads[1].defined() ? placed(grads[1]) : at::zeros_like(s.y_like());
    const typename Gemms::Backward b(dy, s.lowered(), s.gemms(), s.order, s.weights(), device.stream());
    if (!s.y().defined()) {
      NormBackward g = modulated_norm_backward_cuda(b.dnormal, s.x(), s.scale(), s.mean(), s.rstd());
      if (dsum.defined()) g.dx.add_(dsum);
      return all({g.dx, {}, {}, {}, g.dscale, g.dshift}, b.gradients(s.normal()));
    }
    const GatedNormAgain g = gated_add_norm_again_cuda(dsum, b.dnormal, s.sum(), s.y(), s.gate(), s.base,
                                                       s.scale(), s.shift(), s.mean(), s.rstd(), s.bias());
    return all({g.dx, g.dy, g.dbias, g.dgate, g.dscale, g.dshift}, b.gradients(g.again));
  }

 private:
  static constexpr std::size_t kInputs = 6, kOthers = 4;  // arguments that are tensors, and that are not

  // What was saved, by name.
  struct Saved {
    explicit Saved(AutogradContext* ctx)
        : v(ctx->get_saved_variables()),
          base(ctx->saved_data["base"].toDouble()),
          eps(ctx->saved_data["eps"].toDouble()),
          order(ctx->saved_data["order"].toInt()) {}
    const at::Tensor& x() const { return v[0]; }
    const at::Tensor& y() const { return v[1]; }
    const at::Tensor& bias() const { return v[2]; }
    const at::Tensor& gate() const { return v[3]; }
    const at::Tensor& scale() const { return v[4]; }
    const at::Tensor& shift() const { return v[5]; }
    const at::Tensor& sum() const { return v[6]; }
    const at::Tensor& normal() const { return v[7]; }
    const at::Tensor& mean() const { return v[8]; }
    const at::Tensor& rstd() const { return v[9]; }
    const at::Tensor& y_like() const { return y().defined() ? y() : normal(); }
    at::TensorList weights() const { return at::TensorList(v).slice(kFirst, Gemms::kWeights); }
    variable_list lowered() const { return some(kFirst + Gemms::kWeights, Gemms::kWeights); }
    variable_list gemms() const {
      constexpr std::size_t first = kFirst + 2 * Gemms::kWeights;
      return some(first, v.size() - first);
    }

    variable_list v;
    double base, eps;
    std::int64_t order;

   private:
    static constexpr std::size_t kFirst = 10;
    variable_list some(std::size_t first, std::size_t count) const {
      const auto begin = v.begin() + static_cast<std::ptrdiff_t>(first);
      return {begin, begin + static_cast<std::ptrdiff_t>(count)};
    }
  };

  static at::Tensor or_none(const std::optional<at::Tensor>& t) { return t ? *t : at::Tensor(); }

  // One gradient for each argument.
  static variable_list all(variable_list inputs, const variable_list& weights) {
    inputs.resize(kInputs + kOthers);
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    return inputs;
  }

  static variable_list with_graph(const Saved& s, const variable_list& grads) {
    variable_list in{s.v.begin(), s.v.begin() + kInputs};
    in.insert(in.end(), s.weights().begin(), s.weights().end());
    in = aliases(in);
    const PathGuard composed(Path::composed);
    const ResidualStream out = Gemms::composed({in[0], in[1], in[2], in[3], s.base}, {in[4], in[5], s.eps},
                                               at::TensorList(in).slice(kInputs), s.order);
    variable_list outs, douts;
    for (std::size_t i = 0; i < 2; ++i) {
      if (!grads[i].defined()) continue;
      outs.push_back(i == 0 ? out.x : out.y);
      douts.push_back(grads[i].to(outs.back().scalar_type()));
    }
    const variable_list g = composed_gradients(outs, douts, in, in.size());
    return all({g.begin(), g.begin() + kInputs}, {g.begin() + kInputs, g.end()});
  }
};

// ---- who takes this way ----

bool is_half(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

// Whether the norms and products of these sizes and dtypes have kernels, and a graph is wanted.
bool covered(const ResidualStream& s, const Modulation& m, const variable_list& weights,
             at::ScalarType dtype) {
  const at::Tensor& x = s.x;
  if (!x.is_cuda() || x.numel() == 0 || x.size(2) > kernels::kMaxNormWidth || !is_half(dtype)) return false;
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16) return false;
  if (s.y.defined() && s.y.scalar_type() != dtype) return false;
  variable_list there;
  for (const at::Tensor& t : {s.x, s.y, s.bias, s.gate, m.scale, m.shift})
    if (t.defined()) there.push_back(t);
  for (const at::Tensor& w : weights) {
    if (!w.defined() || (w.scalar_type() != dtype && w.scalar_type() != at::kFloat)) return false;
    there.push_back(w);
  }
  return !composed_only(there) && wants_graph(there);
}

void check_arguments(const char* op, const ResidualStream& s, const Modulation& m) {
  check_stream(op, "x", s.x);
  check_rows(op, "scale", m.scale, s.x), check_rows(op, "shift", m.shift, s.x);
  if (!s.y.defined()) return;
  check_branch(op, s.y, s.x), check_rows(op, "gate", s.gate, s.x);
  check(!s.bias.defined() || (s.bias.dim() == 1 && s.bias.size(0) == s.x.size(2)), op, ": bias: expected (",
        s.x.size(2), "), got ", s.bias.defined() ? shape_text(s.bias) : "none");
}

template <class Gemms>
ResidualStream run(const ResidualStream& s, const Modulation& m, at::ScalarType dtype, std::int64_t order,
                   const variable_list& weights, const at::Tensor& last_bias) {
  const auto row = [](const at::Tensor& t) { return t.to(at::kFloat).contiguous(); };
  std::optional<at::Tensor> y, bias, gate;
  if (s.y.defined()) {
    y = s.y.contiguous(), gate = row(s.gate);
    if (s.bias.defined()) bias = row(s.bias);
  }
  const variable_list both =
      BranchFunction<Gemms>::apply(s.x.contiguous(), y, bias, gate, row(m.scale), row(m.shift), s.base, m.eps,
                                   dtype, order, at::TensorList(weights));
  return {.x = both[0], .y = both[1], .bias = last_bias};
}

}  // namespace

std::optional<ResidualStream> mixer_branch_cuda(const ResidualStream& s, const Modulation& m,
                                                const LayerWeights& w, std::int64_t order) {
  constexpr const char* op = "mixer_branch";
  check_arguments(op, s, m);
  const variable_list weights{w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight};
  const at::ScalarType dtype = branch_type(s.x);
  if (!w.ag_bias.defined() || !covered(s, m, weights, dtype)) return {};
  const std::int64_t d = s.x.size(2);
  check_linear(op, "ho", w.ho_weight, w.ho_bias, d), check_linear(op, "se", w.se_weight, w.se_bias, d);
  check_linear(op, "ag", w.ag_weight, w.ag_bias, w.se_weight.size(0));
  check(w.ag_weight.size(0) == d && w.ho_weight.sizes() == w.se_weight.sizes(), op,
        ": weights: expected those of one width and one number of features, got ", shape_text(w.ho_weight),
        ", ", shape_text(w.se_weight), " and ", shape_text(w.ag_weight));
  const OnDevice device(s.x);
  if (!cuda::has_mixer_gemms(s.x, w.ho_weight.size(0), order, dtype)) return {};
  return run<MixerGemms>(s, m, dtype, order, weights, w.ag_bias);
}

std::optional<ResidualStream> feed_forward_branch_cuda(const ResidualStream& s, const Modulation& m,
                                                       const at::Tensor& up, const at::Tensor& up_bias,
                                                       const at::Tensor& down, const at::Tensor& down_bias) {
  constexpr const char* op = "feed_forward_branch";
  check_arguments(op, s, m);
  const variable_list weights{up, up_bias, down};
  const at::ScalarType dtype = branch_type(s.x);
  if (!down_bias.defined() || !covered(s, m, weights, dtype)) return {};
  const std::int64_t d = s.x.size(2);
  check_linear(op, "up", up, up_bias, d), check_linear(op, "down", down, down_bias, up.size(0));
  check(down.size(0) == d, op, ": down: expected ", d, " rows like the stream, got ", shape_text(down));
  const OnDevice device(s.x);
  if (!cuda::has_feed_forward_gemms(s.x, up.size(0), dtype)) return {};
  return run<FeedForwardGemms>(s, m, dtype, 0, weights, down_bias);
}

}  // namespace pom::ops::detail
