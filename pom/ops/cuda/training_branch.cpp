// A branch of a training block on CUDA as one function of autograd. Kept from the forward pass are the stream
// after the sum, what was added to it, and the inputs of the activations; the norm's result comes back from
// the norm's backward pass, after which the products that need it follow.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pom/kernels/portable/modulation.h"
#include "pom/ops/block/training.h"
#include "pom/ops/block/training_common.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/mixer.h"
#include "pom/ops/cuda/training_gemms.h"
#include "pom/ops/dispatcher/second_order.h"
#include "pom/ops/weight_copies.h"

namespace pom::ops::detail {
namespace {

using torch::autograd::AutogradContext;

at::Tensor rows(const at::Tensor& x) {  // (B, N, c) -> (B N, c)
  return x.view({x.size(0) * x.size(1), x.size(2)});
}
at::Tensor floats(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// dout^T in, the gradient of a weight, summed in fp32 and rounded once, to the weight's dtype.
at::Tensor weight_gradient(const at::Tensor& dout, const at::Tensor& in, const at::Tensor& weight) {
  const at::Tensor a = dout.t();
  return weight.scalar_type() == a.scalar_type() ? at::mm(a, in) : at::mm(a, in, weight.scalar_type());
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
  for (const at::Tensor& w : weights) {
    const at::Tensor copy = w.dim() == 2 ? WeightCopies::find(w, dtype, CopyForm::plain) : at::Tensor();
    result.push_back(copy.defined() ? copy : placed(w.to(w.dim() == 2 ? dtype : at::kFloat)));
  }
  return result;
}

// Of a call, what is no tensor.
struct Settings {
  double base = 0, eps = 0;
  at::ScalarType dtype = at::kBFloat16;            // of the products
  std::int64_t order = 0;                          // of a mixer
  std::int64_t tokens = 0, block = 0, window = 0;  // in a sequence, and who sees whom
};

// What a mixer mixes into the stream beside the stream itself.
struct Told {
  at::Tensor tokens;   // (T, L, d), of the products' dtype; undefined: the stream mixes with itself
  at::Tensor visible;  // (T, L) uint8: which of them count; undefined: all
};

struct Forward {
  at::Tensor y;         // (B, N, d), without the last bias
  variable_list saved;  // for Backward
};

// ---- the products of the branches. `lowered` are the weights as the products read them: those of lowered(),
// then forms of which somebody keeps copies, else none. Backward gives `dnormal` first; the weights'
// gradients need the norm's result once more. ----

struct MixerGemms {
  static constexpr std::size_t kWeights = 5;  // context, queries, each with a bias; output
  static constexpr std::size_t kLowered = 7;  // and the context in its order, the output transposed

  static variable_list lowered(at::TensorList weights, const Told& told, const Settings& settings) {
    variable_list w = detail::lowered(weights, settings.dtype);
    w.push_back(told.visible.defined()
                    ? at::Tensor()  // has no product with the sums
                    : WeightCopies::find(weights[0], settings.dtype, CopyForm::context, settings.order));
    w.push_back(WeightCopies::find(weights[4], settings.dtype, CopyForm::transposed));
    return w;
  }

  static Forward forward(const at::Tensor& normal, const Told& told, const variable_list& w,
                         const Settings& settings, cudaStream_t) {
    cuda::Saved saved;
    const at::Tensor& context = told.tokens.defined() ? told.tokens : normal;
    const at::Tensor y = cuda::layer_forward(problem_of(told, w, settings), in_sequences(normal, told),
                                             context, {w[0], w[1], w[2], w[3], w[4], {}}, &saved,
                                             /*between=*/nullptr, {w[5], w[6]});
    return {y.view(normal.sizes()), {saved.ho, saved.se, saved.H}};
  }

  struct Backward {
    Backward(const at::Tensor& dy, const Told& told, const variable_list& w, const variable_list& saved,
             const Settings& settings, at::TensorList weights, cudaStream_t)
        : weights(weights), told(told.tokens) {
      p = cuda::projection_gradients(problem_of(told, w, settings), in_sequences(dy, told), w[4],
                                     {saved[0], saved[1], saved[2]}, /*for_weights=*/true,
                                     /*between=*/nullptr, {w[5], w[6]});
      output = weight_gradient(rows(dy), p.gated, weights[4]);
      p.gated.reset();
      at::Tensor together = at::mm(p.dse, w[2]);
      if (told.tokens.defined())
        dtold = at::mm(p.dho, w[0]).view(told.tokens.sizes());
      else
        together.addmm_(p.dho, w[0]);
      dnormal = together.view(dy.sizes());
    }

    variable_list gradients(const at::Tensor& normal) const {
      const at::Tensor context = rows(told.defined() ? told : normal);
      return {weight_gradient(p.dho, context, weights[0]), bias_gradient(p.dho_sums, weights[1]),
              weight_gradient(p.dse, rows(normal), weights[2]), bias_gradient(p.dse_sums, weights[3]),
              output};
    }

    at::Tensor dnormal, dtold;

   private:
    at::TensorList weights;
    at::Tensor told, output;
    cuda::ProjectionGradients p;
  };

  // By the other operations, which can be differentiated again.
  static ResidualStream composed(const ResidualStream& s, const Modulation& m, const Told& told,
                                 at::TensorList w, const Settings& settings) {
    const Mask mask{told.visible.defined() ? told.visible.to(at::kBool) : told.visible, settings.block,
                    settings.window};
    const at::Tensor tokens = told.tokens.defined() ? told.tokens.to(s.x.scalar_type()) : told.tokens;
    return mixer_branch(s, m, {w[0], w[1], w[2], w[3], w[4], {}}, settings.order, {tokens, mask});
  }

 private:
  static Problem problem_of(const Told& told, const variable_list& w, const Settings& settings) {
    Problem p;
    p.order = settings.order, p.D = w[0].size(0) / settings.order;
    p.block = settings.block, p.window = settings.window;
    p.queries = {settings.tokens};
    p.visible = told.visible;
    return p;
  }
  static at::Tensor in_sequences(const at::Tensor& x, const Told& told) {
    return told.tokens.defined() ? by_text(x, told.tokens) : x;
  }
};

struct FeedForwardGemms {
  static constexpr std::size_t kWeights = 3;  // up with its bias, down
  static constexpr std::size_t kLowered = 4;  // and down transposed

  static variable_list lowered(at::TensorList weights, const Told&, const Settings& settings) {
    variable_list w = detail::lowered(weights, settings.dtype);
    w.push_back(WeightCopies::find(weights[2], settings.dtype, CopyForm::transposed));
    return w;
  }

  static Forward forward(const at::Tensor& normal, const Told&, const variable_list& w, const Settings&,
                         cudaStream_t stream) {
    const cuda::Activated a = cuda::gelu_gemm(normal, w[0], w[1], /*keep=*/true, stream);
    return {at::mm(rows(a.after), w[2].t()).view(normal.sizes()), {a.before}};
  }

  struct Backward {
    Backward(const at::Tensor& dy, const Told&, const variable_list& w, const variable_list& saved,
             const Settings&, at::TensorList weights, cudaStream_t stream)
        : weights(weights) {
      const cuda::GeluGradients g = cuda::gelu_backward_gemm(dy, w[2], saved[0], stream, w[3]).value();
      down = weight_gradient(rows(dy), rows(g.after), weights[2]);
      dbefore = g.dbefore, sums = g.sums;
      dnormal = at::mm(rows(dbefore), w[0]).view(dy.sizes());
    }

    variable_list gradients(const at::Tensor& normal) const {
      return {weight_gradient(rows(dbefore), rows(normal), weights[0]), bias_gradient(sums, weights[1]),
              down};
    }

    at::Tensor dnormal, dtold;

   private:
    at::TensorList weights;
    at::Tensor dbefore, sums, down;
  };

  static ResidualStream composed(const ResidualStream& s, const Modulation& m, const Told&, at::TensorList w,
                                 const Settings&) {
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
                               const at::Tensor& shift, const std::optional<at::Tensor>& maybe_told,
                               const std::optional<at::Tensor>& maybe_visible, const Settings& settings,
                               at::TensorList weights) {
    const at::Tensor y = or_none(maybe_y), bias = or_none(maybe_bias), gate = or_none(maybe_gate);
    const Told told{or_none(maybe_told), or_none(maybe_visible)};
    at::AutoDispatchBelowADInplaceOrView guard;
    const NoAutocast no_autocast;
    const OnDevice device(x);
    GatedNormForward n;
    if (y.defined()) {
      n = gated_add_norm_forward_cuda(x, y, gate, settings.base, scale, shift, settings.eps, bias);
    } else {
      const NormForward first = modulated_norm_forward_cuda(x, scale, shift, settings.eps, settings.dtype);
      n = {{}, first.out, first.mean, first.rstd};
    }
    const variable_list w = Gemms::lowered(weights, told, settings);
    const Forward made = Gemms::forward(n.out, told, w, settings, device.stream());
    const at::Tensor kept = y.defined() ? at::Tensor() : n.out;  // which the plain norm does not give again
    variable_list saved{x,     y,    bias,   gate,  scale, shift, told.tokens, told.visible,
                        n.sum, kept, n.mean, n.rstd};
    saved.insert(saved.end(), weights.begin(), weights.end());
    saved.insert(saved.end(), w.begin(), w.end());
    saved.insert(saved.end(), made.saved.begin(), made.saved.end());
    ctx->save_for_backward(std::move(saved));
    auto& data = ctx->saved_data;
    data["base"] = settings.base, data["eps"] = settings.eps, data["order"] = settings.order;
    data["tokens"] = settings.tokens, data["block"] = settings.block, data["window"] = settings.window;
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
    const typename Gemms::Backward b(dy, s.told(), s.lowered(), s.gemms(), s.settings, s.weights(),
                                     device.stream());
    if (!s.y().defined()) {
      NormBackward g = modulated_norm_backward_cuda(b.dnormal, s.x(), s.scale(), s.mean(), s.rstd());
      if (dsum.defined()) g.dx.add_(dsum);
      return all({g.dx, {}, {}, {}, g.dscale, g.dshift, b.dtold}, b.gradients(s.normal()));
    }
    const GatedNormAgain g =
        gated_add_norm_again_cuda(dsum, b.dnormal, s.sum(), s.y(), s.gate(), s.settings.base, s.scale(),
                                  s.shift(), s.mean(), s.rstd(), s.bias());
    return all({g.dx, g.dy, g.dbias, g.dgate, g.dscale, g.dshift, b.dtold}, b.gradients(g.again));
  }

 private:
  // Arguments with gradients, and those without.
  static constexpr std::size_t kInputs = 7, kOthers = 2;

  // What was saved, by name.
  struct Saved {
    explicit Saved(AutogradContext* ctx)
        : v(ctx->get_saved_variables()),
          settings{.base = ctx->saved_data["base"].toDouble(),
                   .eps = ctx->saved_data["eps"].toDouble(),
                   .dtype = v[kFirst + Gemms::kWeights].scalar_type(),
                   .order = ctx->saved_data["order"].toInt(),
                   .tokens = ctx->saved_data["tokens"].toInt(),
                   .block = ctx->saved_data["block"].toInt(),
                   .window = ctx->saved_data["window"].toInt()} {}
    const at::Tensor& x() const { return v[0]; }
    const at::Tensor& y() const { return v[1]; }
    const at::Tensor& bias() const { return v[2]; }
    const at::Tensor& gate() const { return v[3]; }
    const at::Tensor& scale() const { return v[4]; }
    const at::Tensor& shift() const { return v[5]; }
    Told told() const { return {v[6], v[7]}; }
    const at::Tensor& sum() const { return v[8]; }
    const at::Tensor& normal() const { return v[9]; }
    const at::Tensor& mean() const { return v[10]; }
    const at::Tensor& rstd() const { return v[11]; }
    const at::Tensor& y_like() const { return y().defined() ? y() : normal(); }
    at::TensorList weights() const { return at::TensorList(v).slice(kFirst, Gemms::kWeights); }
    variable_list lowered() const { return some(kFirst + Gemms::kWeights, Gemms::kLowered); }
    variable_list gemms() const {
      constexpr std::size_t first = kFirst + Gemms::kWeights + Gemms::kLowered;
      return some(first, v.size() - first);
    }

    variable_list v;
    Settings settings;

   private:
    static constexpr std::size_t kFirst = 12;
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
    const ResidualStream out =
        Gemms::composed({in[0], in[1], in[2], in[3], s.settings.base}, {in[4], in[5], s.settings.eps},
                        {in[6], s.told().visible}, at::TensorList(in).slice(kInputs), s.settings);
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
bool covered(const ResidualStream& s, const Modulation& m, const variable_list& weights, at::ScalarType dtype,
             const at::Tensor& told = {}) {
  const at::Tensor& x = s.x;
  if (!x.is_cuda() || x.numel() == 0 || x.size(2) > kernels::kMaxNormWidth || !is_half(dtype)) return false;
  if (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16) return false;
  if (s.y.defined() && s.y.scalar_type() != dtype) return false;
  variable_list there;
  for (const at::Tensor& t : {s.x, s.y, s.bias, s.gate, m.scale, m.shift, told})
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
ResidualStream run(const ResidualStream& s, const Modulation& m, Settings settings, const Told& told,
                   const variable_list& weights, const at::Tensor& last_bias) {
  const auto row = [](const at::Tensor& t) { return t.to(at::kFloat).contiguous(); };
  std::optional<at::Tensor> y, bias, gate, tokens, visible;
  if (s.y.defined()) {
    y = s.y.contiguous(), gate = row(s.gate);
    if (s.bias.defined()) bias = row(s.bias);
  }
  if (told.tokens.defined()) tokens = told.tokens.to(settings.dtype).contiguous();
  if (told.visible.defined()) visible = told.visible;
  settings.base = s.base, settings.eps = m.eps, settings.tokens = s.x.size(1);
  const variable_list both =
      BranchFunction<Gemms>::apply(s.x.contiguous(), y, bias, gate, row(m.scale), row(m.shift), tokens,
                                   visible, settings, at::TensorList(weights));
  return {.x = both[0], .y = both[1], .bias = last_bias};
}

}  // namespace

std::optional<ResidualStream> mixer_branch_cuda(const ResidualStream& s, const Modulation& m,
                                                const LayerWeights& w, std::int64_t order,
                                                const MixerContext& context) {
  constexpr const char* op = "mixer_branch";
  check_arguments(op, s, m);
  const variable_list weights{w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight};
  const at::ScalarType dtype = branch_type(s.x);
  if (!w.ag_bias.defined() || !covered(s, m, weights, dtype, context.tokens)) return {};
  if (!cuda::covers_whole(context.mask, order, s.x)) return {};
  const std::int64_t d = s.x.size(2);
  check_linear(op, "ho", w.ho_weight, w.ho_bias, d), check_linear(op, "se", w.se_weight, w.se_bias, d);
  check_linear(op, "ag", w.ag_weight, w.ag_bias, w.se_weight.size(0));
  check(w.ag_weight.size(0) == d && w.ho_weight.sizes() == w.se_weight.sizes(), op,
        ": weights: expected those of one width and one number of features, got ", shape_text(w.ho_weight),
        ", ", shape_text(w.se_weight), " and ", shape_text(w.ag_weight));
  const OnDevice device(s.x);
  if (!cuda::has_mixer_gemms(s.x, w.ho_weight.size(0), order, dtype)) return {};
  const at::Tensor& visible = context.mask.visible;
  if (visible.defined() && visible.scalar_type() != at::kBool) return {};  // its numbers are to be checked
  const Told told{context.tokens, visible.defined() ? visible.contiguous().view(at::kByte) : visible};
  const Settings settings{
      .dtype = dtype, .order = order, .block = context.mask.block, .window = context.mask.window};
  return run<MixerGemms>(s, m, settings, told, weights, w.ag_bias);
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
  return run<FeedForwardGemms>(s, m, {.dtype = dtype}, {}, weights, down_bias);
}

}  // namespace pom::ops::detail
