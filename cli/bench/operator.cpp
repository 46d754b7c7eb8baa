// `pom bench operator`: one layer of the Polynomial Mixer against its three products and against attention of
// the same width. B sequences, N tokens, d width, h heads.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>

#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>

#include "cli/bench/bench.h"
#include "cli/bench/gemms.h"
#include "cli/bench/report.h"
#include "cli/command.h"
#include "pom/base/error.h"
#include "pom/ops/mixer.h"

namespace pom::cli {
namespace {

struct Layer {
  Bench& bench;
  std::int64_t dim = 0, order = 2, expand = 2, heads = 1;
  std::int64_t block = 0;  // 0: no mask; 1: causal; K: block-causal
  std::vector<std::int64_t> tokens = {};
  BenchReport report = {};

  std::int64_t features() const { return order * expand * dim; }
  at::Tensor random(at::IntArrayRef shape, double deviation = 1) const {
    return at::randn(shape, at::TensorOptions(bench.type).device(bench.device)).mul_(deviation);
  }
};

// ---- what is timed ----

std::int64_t block_of(const std::string& mask) {
  if (mask.empty() || mask == "none") return 0;
  if (mask == "causal") return 1;
  std::int64_t block = 0;
  constexpr std::string_view prefix = "block:";
  if (mask.starts_with(prefix)) {
    const char* end = mask.data() + mask.size();
    const auto [stop, error] = std::from_chars(mask.data() + prefix.size(), end, block);
    if (error != std::errc() || stop != end) block = 0;
  }
  if (block < 1)
    throw UsageError("--mask: expected none, causal or block:K with K at least 1, got \"" + mask + "\"");
  return block;
}

void check_operator_usage(const Bench& bench) {
  const BenchOptions& options = bench.options;
  const auto refuse = [](bool given, const char* flag) {
    if (given) throw UsageError(std::string(flag) + ": is for pom bench figure1");
  };
  refuse(options.paper, "--paper");
  refuse(!options.variant.empty(), "--variant");
  refuse(options.depth.has_value(), "--depth");
  refuse(options.ffw_expand.has_value(), "--ffw-expand");
  refuse_of_video(bench);
  refuse(bench.dtype == "fp8", "--dtype fp8");
}

std::int64_t usual_heads(std::int64_t dim) {
  return dim % 72 == 0 ? dim / 72 : dim % 64 == 0 ? dim / 64 : 1;
}

void describe(Layer& layer) {
  const std::string mask = layer.bench.options.mask.empty() ? "none" : layer.bench.options.mask;
  layer.report.name = "operator";
  layer.report.heading =
      detail::concat("a layer of ", layer.dim, ", degree ", layer.order, ", expansion ", layer.expand, ", ",
                     layer.heads, " heads, mask ", mask, ", ", layer.bench.dtype);
  layer.report.about.add("dim", layer.dim)
      .add("order", layer.order)
      .add("expand", layer.expand)
      .add("heads", layer.heads)
      .add("mask", mask);
}

Layer plan_layer(Bench& bench) {
  check_operator_usage(bench);
  const BenchOptions& options = bench.options;
  Layer layer{.bench = bench};
  layer.dim = options.dim.value_or(bench.gpu() ? 1152 : 384);
  layer.order = options.order.value_or(2);
  layer.expand = options.expand.value_or(2);
  layer.heads = options.heads.value_or(usual_heads(layer.dim));
  if (layer.dim % layer.heads != 0)
    throw UsageError(
        detail::concat("--heads: expected a divisor of dim = ", layer.dim, ", got ", layer.heads));
  layer.block = block_of(options.mask);
  layer.tokens = options.tokens;
  if (layer.tokens.empty())
    layer.tokens = bench.gpu() ? std::vector<std::int64_t>{256, 1024, 4096, 16384, 65536}
                               : std::vector<std::int64_t>{64, 256, 1024};
  std::ranges::sort(layer.tokens);
  layer.tokens.erase(std::unique(layer.tokens.begin(), layer.tokens.end()), layer.tokens.end());
  describe(layer);
  return layer;
}

// ---- contenders ----

// What a layer takes, and how it is called once: forward alone, or with gradients of everything in `leaves`.
struct Module {
  std::vector<at::Tensor> leaves;
  std::function<at::Tensor()> forward;
};

Module mixer_module(const Layer& layer, std::int64_t batch, std::int64_t tokens) {
  const std::int64_t d = layer.dim, kD = layer.features();
  const double in = 1 / std::sqrt(static_cast<double>(d)), out = 1 / std::sqrt(static_cast<double>(kD));
  const at::Tensor x = layer.random({batch, tokens, d});
  const ops::LayerWeights w{layer.random({kD, d}, in), layer.random({kD}, 0.02),   layer.random({kD, d}, in),
                            layer.random({kD}, 0.02),  layer.random({d, kD}, out), layer.random({d}, 0.02)};
  const ops::Mask mask = layer.block == 0 ? ops::Mask::none() : ops::Mask::block_causal(layer.block);
  return {{x, w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias},
          [x, w, mask, order = layer.order] { return ops::mixer_layer(x, x, w, order, mask); }};
}

// What query i sees of the blocks of K tokens, for attention that has no other way to say it.
at::Tensor block_mask(std::int64_t tokens, std::int64_t block, const at::Device& device) {
  const at::Tensor at = at::arange(tokens, at::TensorOptions(at::kLong).device(device))
                            .div(block, "floor");  // the block of a token
  return at.unsqueeze(0).le(at.unsqueeze(1));
}

Module attention_module(const Layer& layer, std::int64_t batch, std::int64_t tokens) {
  const std::int64_t d = layer.dim, h = layer.heads;
  const double in = 1 / std::sqrt(static_cast<double>(d));
  const at::Tensor x = layer.random({batch, tokens, d});
  const at::Tensor qkv = layer.random({3 * d, d}, in), qkv_bias = layer.random({3 * d}, 0.02),
                   proj = layer.random({d, d}, in), proj_bias = layer.random({d}, 0.02);
  std::optional<at::Tensor> mask;
  if (layer.block > 1) mask = block_mask(tokens, layer.block, layer.bench.device);
  const auto forward = [=, causal = layer.block == 1] {
    const at::Tensor parts =
        at::linear(x, qkv, qkv_bias).view({batch, tokens, 3, h, d / h}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], mask, 0.0, causal);
    return at::linear(mixed.transpose(1, 2).reshape({batch, tokens, d}), proj, proj_bias);
  };
  return {{x, qkv, qkv_bias, proj, proj_bias}, forward};
}

Call forward_call(const Bench& bench, const Module& module) {
  return bench.in_graph([forward = module.forward] {
    const c10::NoGradGuard no_grad;
    forward();
  });
}

Call backward_call(const Layer& layer, Module module, std::int64_t batch, std::int64_t tokens) {
  for (at::Tensor& leaf : module.leaves) leaf.set_requires_grad(true);
  return [module, gradient = layer.random({batch, tokens, layer.dim})] {
    for (const at::Tensor& leaf : module.leaves) leaf.mutable_grad() = at::Tensor();
    module.forward().backward(gradient);
  };
}

using MakeModule = Module (*)(const Layer&, std::int64_t, std::int64_t);

Contender contender(const Layer& layer, MakeModule make, std::int64_t batch, std::int64_t tokens,
                    bool backward) {
  return {[=, &layer] {
    const Module module = make(layer, batch, tokens);
    return backward ? backward_call(layer, module, batch, tokens) : forward_call(layer.bench, module);
  }};
}

Contender gemms(const Layer& layer, std::int64_t batch, std::int64_t tokens, bool backward) {
  return {[=, &layer] {
    const auto floor = std::make_shared<Gemms>(layer_gemms(layer.dim, layer.features(), batch * tokens),
                                               layer.bench.type, layer.bench.device);
    return layer.bench.in_graph(
        [floor, backward] { backward ? floor->forward_backward() : floor->forward(); });
  }};
}

// ---- the work ----

// The greatest speed at which this machine was seen to multiply matrices in this run, operations in a second.
double find_peak(const Bench& bench) {
  const std::vector<std::int64_t> sides =
      bench.gpu() ? std::vector<std::int64_t>{4096, 8192, 16384} : std::vector<std::int64_t>{512, 1024, 2048};
  std::vector<Contender> contenders;
  for (const std::int64_t n : sides)
    contenders.push_back({[&bench, n] {
      const auto square = std::make_shared<Gemms>(std::vector{GemmShape{n, n, n}}, bench.type, bench.device);
      return bench.in_graph([square] { square->forward(); });
    }});
  const std::vector<Timing> timings = interleave(contenders, bench.timing());
  double peak = 0;
  for (std::size_t i = 0; i < sides.size(); ++i)
    if (timings[i].measured())
      peak = std::max(peak, 2 * std::pow(static_cast<double>(sides[i]), 3) / timings[i].median());
  check(peak > 0, "bench: peak: ", timings.front().note);
  return peak;
}

BenchRow race(const Layer& layer, std::int64_t tokens, bool backward, Forecast& mixer, Forecast& attention) {
  const Bench& bench = layer.bench;
  const std::int64_t batch = bench.batch_at(tokens);
  BenchRow row{.tokens = tokens, .batch = batch};
  row.flops = forward_flops(layer_gemms(layer.dim, layer.features(), tokens)) * (backward ? 3 : 1);
  std::array contenders = {gemms(layer, batch, tokens, backward),
                           contender(layer, mixer_module, batch, tokens, backward),
                           contender(layer, attention_module, batch, tokens, backward)};
  contenders[1].note = mixer.skip(tokens, batch, bench.options.longest);
  contenders[2].note = attention.skip(tokens, batch, bench.options.longest);
  constexpr std::int64_t largest_mask = std::int64_t{1} << 31;
  if (layer.block > 1 && tokens * tokens > largest_mask) contenders[2].note = "skipped: a mask of N x N";
  std::vector<Timing> timings = interleave({contenders.begin(), contenders.end()}, bench.timing());
  mixer.learn(tokens, batch, timings[1]);
  attention.learn(tokens, batch, timings[2]);
  row.gemms = std::move(timings[0]), row.pom = std::move(timings[1]), row.attention = std::move(timings[2]);
  return row;
}

void time_section(Layer& layer, bool backward) {
  BenchSection section = backward ? BenchSection{.key = "forward_backward", .title = "Forward + backward"}
                                  : BenchSection{.key = "forward", .title = "Forward"};
  print_section(layer.bench, layer.report, section);
  Forecast mixer, attention(static_cast<double>(layer.dim));
  for (const std::int64_t tokens : layer.tokens) {
    section.rows.push_back(race(layer, tokens, backward, mixer, attention));
    print_row(layer.bench, layer.report, section, section.rows.back());
  }
  layer.report.sections.push_back(std::move(section));
}

}  // namespace

int bench_operator(Bench& bench) {
  Layer layer = plan_layer(bench);
  report_files(bench, layer.report.name);
  layer.report.peak = find_peak(bench);
  print_heading(bench, layer.report);
  time_section(layer, false);
  if (!bench.options.no_backward) time_section(layer, true);
  return finish_report(bench, layer.report);
}

}  // namespace pom::cli
