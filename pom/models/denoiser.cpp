#include "pom/models/denoiser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <unordered_map>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/dipom.h"
#include "pom/models/shelf.h"
#include "pom/nn/attention.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/block_stack.h"
#include "pom/ops/block/inference.h"
#include "pom/ops/cuda/graphs.h"

namespace pom::models {
namespace {

constexpr std::int64_t kTableRows = 64;  // modulations kept at a time, in pairs of a time and a class

// Later evaluations may reach beyond the one that fp8 scales were measured in. A larger scale costs nothing:
// e4m3 is as exact, relatively, down to 2^-14 of its greatest value.
constexpr double kScaleMargin = 8;

at::ScalarType stored_as(at::ScalarType dtype) {
  return dtype == at::kFloat8_e4m3fn ? at::kBFloat16 : dtype;
}

struct Layer {
  ops::LayerWeights pom;
  ops::Dense qkv, proj;  // of attention
  ops::Dense up, down;
};

Layer take_layer(Shelf& shelf, const NetworkConfig& config, std::int64_t i) {
  const std::string name = "layers." + std::to_string(i) + ".";
  Layer layer;
  if (config.attention()) {
    layer.qkv = shelf.dense(name + "attn.qkv");
    layer.proj = shelf.dense(name + "attn.proj");
  } else {
    layer.pom = shelf.mixer(name + "pom");
  }
  layer.up = shelf.dense(name + "ffw.0");
  layer.down = shelf.dense(name + "ffw.2");
  return layer;
}

// What the condition sets, as one matrix: scales, shifts and gates of all blocks (6 d each), then of the
// output (2 d).
ops::Dense take_conditioning(Shelf& shelf, const NetworkConfig& config) {
  ops::Dense all;
  std::int64_t at = 0;
  const auto add = [&](const std::string& name) {
    const ops::Dense part = shelf.dense(name);
    if (at == 0) {
      const std::int64_t rows = (6 * config.depth + 2) * config.dim;
      all = {at::empty({rows, config.dim}, part.weight.options()), at::empty({rows}, part.bias.options())};
    }
    all.weight.narrow(0, at, part.weight.size(0)).copy_(part.weight);
    all.bias.narrow(0, at, part.bias.size(0)).copy_(part.bias);
    at += part.weight.size(0);
  };
  for (std::int64_t i = 0; i < config.depth; ++i)
    for (const char* part : {"cond_mlp.1", "gate_mlp.1"}) add(pom::detail::concat("layers.", i, ".", part));
  add("out_mod.1");
  return all;
}

}  // namespace

struct Denoiser::Impl {
  Impl(const NetworkConfig& c, Weights weights, at::ScalarType dtype) : config(c), dtype(dtype) {
    check_config(c, "Denoiser: ");
    check_weights(weights, c, "Denoiser: weights");
    if (fp8()) {
      const std::string reason = ops::fp8_refusal(weights.at("classes_emb.weight").device());
      check(reason.empty(), "Denoiser: dtype: ", reason);
    }
    Shelf shelf(weights, stored_as(dtype));
    const at::ScalarType arithmetic = dtype == at::kDouble ? at::kDouble : at::kFloat;
    classes_emb = weights.at("classes_emb.weight").to(arithmetic).contiguous();
    stream = classes_emb.options();
    time_up = shelf.dense("time_emb.0"), time_down = shelf.dense("time_emb.2");
    in_conv = shelf.dense("in_conv");
    in_conv.weight = in_conv.weight.flatten(1);
    for (std::int64_t i = 0; i < c.depth; ++i) layers.push_back(take_layer(shelf, c, i));
    conditioning = take_conditioning(shelf, c), out_proj = shelf.dense("out_proj");
    graphs = ops::cuda::graphs_on(stream.device());
  }

  bool on_gpu() const { return stream.device().is_cuda(); }
  bool fp8() const { return dtype == at::kFloat8_e4m3fn; }
  std::int64_t modulation_width() const { return (6 * config.depth + 2) * config.dim; }

  // ---- planning ----

  void plan(std::span<const std::int64_t> picture_classes, std::int64_t height, std::int64_t width,
            std::span<const double> planned) {
    check(!picture_classes.empty(), "Denoiser: classes: expected at least one picture, got none");
    for (const std::int64_t y : picture_classes)
      check(y >= 0 && y <= config.classes, "Denoiser: classes: expected 0 to ", config.classes, ", got ", y);
    const std::int64_t p = config.patch;
    check(height >= p && width >= p && height % p == 0 && width % p == 0,
          "Denoiser: size: expected sides that the patch (", p, ") divides, got ", width, "x", height);
    const auto pictures = static_cast<std::int64_t>(picture_classes.size());
    const bool resized = rows != height / p || columns != width / p;
    if (resized || batch != pictures) {
      if (graphs) graphs->drop();
      stacks = {};
    }
    if (resized) {
      rows = height / p, columns = width / p;
      positions =
          nn::position_code(rows, columns, config.dim, stream.dtype().toScalarType()).to(stream.device());
    }
    batch = pictures;
    set_classes(picture_classes);
    set_times(planned);
    make_buffers();
    if (fp8()) hidden_scales.zero_(), measured = false;
  }

  // Which row of `distinct` each picture takes; the last one is "no class".
  void set_classes(std::span<const std::int64_t> picture_classes) {
    distinct.assign(picture_classes.begin(), picture_classes.end());
    std::ranges::sort(distinct);
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::erase(distinct, config.classes);
    distinct.push_back(config.classes);
    std::vector<std::int64_t> rows_of;
    for (const std::int64_t y : picture_classes)
      rows_of.push_back(std::ranges::find(distinct, y) - distinct.begin());
    rows_of.resize(static_cast<std::size_t>(2 * batch), static_cast<std::int64_t>(distinct.size()) - 1);
    const auto on_device = [&](const std::vector<std::int64_t>& numbers) {
      return at::tensor(numbers, at::TensorOptions(at::kLong)).to(stream.device());
    };
    row_of_picture = on_device(rows_of), distinct_rows = on_device(distinct);
  }

  void set_times(std::span<const double> planned) {
    time_index.clear();
    std::vector<double> unique;
    for (const double t : planned)
      if (time_index.emplace(std::bit_cast<std::uint64_t>(t), unique.size()).second) unique.push_back(t);
    times = std::move(unique);
    embed_times();
    table_first = table_count = 0;
  }

  void embed_times() {
    const at::Tensor t = at::tensor(times, at::kDouble);
    const at::Tensor features = nn::time_features(t, config.dim).to(stream);
    time_emb = at::empty({static_cast<std::int64_t>(times.size()), config.dim}, stream);
    ops::silu_mlp_rows(features, time_up, time_down, time_emb);
  }

  void make_buffers() {
    const std::int64_t n = rows * columns, pixels = config.patch * config.patch * config.channels;
    const auto need = [&](at::Tensor& buffer, std::initializer_list<std::int64_t> shape,
                          at::TensorOptions options) {
      if (!buffer.defined() || buffer.sizes() != at::IntArrayRef(shape)) buffer = at::empty(shape, options);
    };
    need(patches, {batch, n, pixels}, stream);
    need(tokens, {2 * batch, n, config.dim}, stream);
    need(out_tokens, {2 * batch, n, pixels}, stream);
    need(out, {2 * batch, config.channels, rows * config.patch, columns * config.patch}, stream);
    need(modulations, {2 * batch, modulation_width()}, stream);
    if (fp8()) need(hidden_scales, {config.depth}, stream);
    if (!config.attention()) return;
    need(qkv, {2 * batch, n, 3 * config.dim}, stream.dtype(stored_as(dtype)));
    if (!on_gpu()) need(attended, {2 * batch, n, config.dim}, stream);
  }

  // ---- modulations: a table of some times by all classes of the batch ----

  std::int64_t index_of(double t) {
    const auto found = time_index.find(std::bit_cast<std::uint64_t>(t));
    if (found != time_index.end()) return found->second;
    time_index.emplace(std::bit_cast<std::uint64_t>(t), static_cast<std::int64_t>(times.size()));
    times.push_back(t);
    embed_times();
    return static_cast<std::int64_t>(times.size()) - 1;
  }

  void fill_table(std::int64_t first) {
    const std::int64_t classes = static_cast<std::int64_t>(distinct.size());
    const std::int64_t fit = std::max<std::int64_t>(1, kTableRows / classes);
    table_first = first;
    table_count = std::min(fit, static_cast<std::int64_t>(times.size()) - first);
    const at::Tensor c = (time_emb.narrow(0, first, table_count).unsqueeze(1) +
                          classes_emb.index_select(0, distinct_rows).unsqueeze(0))
                             .reshape({table_count * classes, config.dim});
    table = at::empty({table_count * classes, modulation_width()}, stream);
    ops::silu_linear_rows(c, conditioning, table);
    if (config.attention()) return;
    const at::Tensor blocks = table.narrow(1, 0, 6 * config.depth * config.dim);
    blocks.unflatten(1, {config.depth, 6, config.dim}).narrow(2, 4, 2).add_(1);  // gates are 1 + g
  }

  // The rows of the table for this time, one per picture.
  void set_modulations(double t, std::int64_t pictures) {
    const std::int64_t i = index_of(t);
    if (i < table_first || i >= table_first + table_count) fill_table(i);
    const std::int64_t classes = static_cast<std::int64_t>(distinct.size());
    at::Tensor now = modulations.narrow(0, 0, pictures);
    at::index_select_out(now, table.narrow(0, (i - table_first) * classes, classes), 0,
                         row_of_picture.narrow(0, 0, pictures));
  }

  // ---- one evaluation ----

  at::Tensor evaluate(const at::Tensor& x, double t, bool both) {
    check_latents("Denoiser", x, config);
    check(batch > 0 && x.size(0) == batch && x.size(2) == rows * config.patch &&
              x.size(3) == columns * config.patch,
          "Denoiser: x: expected what was planned, (", batch, ", ", config.channels, ", ",
          rows * config.patch, ", ", columns * config.patch, "), got ", x.sizes());
    const std::int64_t pictures = both ? 2 * batch : batch;
    set_modulations(t, pictures);
    cut_patches(x);
    if (fp8() && !measured)
      measure_scales(pictures);
    else if (graphs)  // another path runs other kernels
      graphs->run(2 * static_cast<int>(ops::path()) + both, [&] { run_network(pictures); });
    else
      run_network(pictures);
    return out.narrow(0, 0, pictures);
  }

  // An evaluation in bf16 that leaves the scale of each layer's hidden values.
  void measure_scales(std::int64_t pictures) {
    graphs->run_once([&] { run_network(pictures); });
    constexpr float least = std::numeric_limits<float>::min();  // of values that are all 0
    hidden_scales.clamp_min_(least).mul_(kScaleMargin);
    measured = true;
  }

  // From the patches and the modulations to the result, all of them buffers.
  void run_network(std::int64_t pictures) {
    at::Tensor stream_now = tokens.narrow(0, 0, pictures);
    const at::Tensor m = modulations.narrow(0, 0, pictures);
    embed(pictures > batch);
    if (ops::BlockStack* const stack = stacked(stream_now))
      stack->run();
    else
      for (std::int64_t i = 0; i < config.depth; ++i) run_layer(i, stream_now, modulation_of(i, m));
    project(stream_now, m.narrow(1, config.depth * 6 * config.dim, 2 * config.dim));
  }

  void cut_patches(const at::Tensor& x) {
    const std::int64_t p = config.patch;
    patches.view({batch, rows, columns, config.channels, p, p})
        .copy_(x.reshape({batch, config.channels, rows, p, columns, p}).permute({0, 2, 4, 1, 3, 5}));
  }

  void embed(bool both) {
    const std::int64_t n = rows * columns;
    at::Tensor first = tokens.narrow(0, 0, batch), flat = first.view({batch * n, config.dim});
    ops::linear_rows(patches.view({batch * n, -1}), in_conv, flat);
    first.add_(positions);
    if (both) tokens.narrow(0, batch, batch).copy_(first);
  }

  ops::Fp8 fp8_of(std::int64_t layer) const {
    if (!fp8()) return {};
    return {measured ? ops::Fp8::Stage::on : ops::Fp8::Stage::measuring, hidden_scales.narrow(0, layer, 1)};
  }

  // What the condition sets in a block.
  struct BlockModulation {
    ops::Modulation mixing, feeding;
    at::Tensor mixing_gate, feeding_gate;
  };
  BlockModulation modulation_of(std::int64_t layer, const at::Tensor& m) const {
    const std::int64_t d = config.dim;
    const auto part = [&](std::int64_t i) { return m.narrow(1, (6 * layer + i) * d, d); };
    return {{part(0), part(1), nn::kNormEps}, {part(2), part(3), nn::kNormEps}, part(4), part(5)};
  }

  void run_layer(std::int64_t index, at::Tensor& x, const BlockModulation& m) {
    const Layer& layer = layers[static_cast<std::size_t>(index)];
    const ops::Fp8 fp8 = fp8_of(index);
    if (config.attention()) {
      at::Tensor projected = qkv.narrow(0, 0, x.size(0));
      ops::modulated_linear(x, m.mixing, layer.qkv, projected, fp8);
      ops::linear_half(x, attend(projected), layer.proj, m.mixing_gate, fp8);
    } else {
      ops::mixer_half(x, m.mixing, layer.pom, config.order, m.mixing_gate, fp8);
    }
    ops::feed_forward_half(x, m.feeding, layer.up, layer.down, m.feeding_gate, fp8);
  }

  // All blocks at once for this stream, with or without its second half; null where they run one by one.
  ops::BlockStack* stacked(const at::Tensor& x) {
    if (!on_gpu() || config.attention() || (fp8() && !measured) || ops::path() == ops::Path::composed)
      return nullptr;
    std::optional<std::unique_ptr<ops::BlockStack>>& stack = stacks[x.size(0) > batch];
    if (!stack) stack = make_stack(x);
    return stack->get();
  }
  std::unique_ptr<ops::BlockStack> make_stack(const at::Tensor& x) {
    std::vector<ops::StackedBlock> blocks;
    for (std::int64_t i = 0; i < config.depth; ++i) {
      const Layer& layer = layers[static_cast<std::size_t>(i)];
      const BlockModulation m = modulation_of(i, modulations.narrow(0, 0, x.size(0)));
      blocks.push_back({layer.pom, layer.up, layer.down, m.mixing, m.feeding, m.mixing_gate, m.feeding_gate,
                        fp8() ? hidden_scales.narrow(0, i, 1) : at::Tensor()});
    }
    return ops::BlockStack::make(x, blocks, config.order, fp8());
  }

  at::Tensor attend(const at::Tensor& projected) {
    if (on_gpu()) return nn::attend(projected, config.heads);
    // One picture at a time: how torch cuts its attention depends on the whole batch, and with it the last
    // bit.
    const std::int64_t pictures = projected.size(0);
    for (std::int64_t b = 0; b < pictures; ++b)
      attended[b].copy_(nn::attend(projected.narrow(0, b, 1), config.heads)[0]);
    return attended.narrow(0, 0, pictures);
  }

  void project(const at::Tensor& x, const at::Tensor& m) {
    const std::int64_t pictures = x.size(0), p = config.patch, d = config.dim;
    at::Tensor pixels = out_tokens.narrow(0, 0, pictures), result = out.narrow(0, 0, pictures);
    ops::modulated_linear(x, {m.narrow(1, 0, d), m.narrow(1, d, d), nn::kNormEps}, out_proj, pixels);
    result.view({pictures, config.channels, rows, p, columns, p})
        .copy_(pixels.view({pictures, rows, columns, p, p, config.channels}).permute({0, 5, 1, 3, 2, 4}));
  }

  NetworkConfig config;
  at::ScalarType dtype;
  at::TensorOptions stream;
  at::Tensor classes_emb;
  ops::Dense time_up, time_down, in_conv, conditioning, out_proj;
  std::vector<Layer> layers;

  std::int64_t batch = 0, rows = 0, columns = 0;
  at::Tensor positions;                // (N, d)
  std::vector<std::int64_t> distinct;  // classes of the batch, "no class" last
  at::Tensor distinct_rows;            // the same on the device
  at::Tensor row_of_picture;           // 2B indices into distinct, on the device
  std::vector<double> times;
  std::unordered_map<std::uint64_t, std::int64_t> time_index;  // by the bits of the time
  at::Tensor time_emb;                                         // (times, d)
  at::Tensor table;                                            // (table_count * distinct, modulation_width)
  std::int64_t table_first = 0, table_count = 0;
  at::Tensor patches, tokens, out_tokens, out, modulations, qkv, attended;
  at::Tensor hidden_scales;  // (depth), of fp8
  bool measured = false;
  // Of B pictures and of 2B, once asked for; null where there is none.
  std::array<std::optional<std::unique_ptr<ops::BlockStack>>, 2> stacks;
  std::unique_ptr<ops::cuda::GraphedEvaluations> graphs;  // on CUDA; goes before the buffers
};

Denoiser::Denoiser(const NetworkConfig& config, Weights weights, at::ScalarType dtype)
    : impl_(std::make_unique<Impl>(config, std::move(weights), dtype)) {}
Denoiser::~Denoiser() = default;
Denoiser::Denoiser(Denoiser&&) noexcept = default;
Denoiser& Denoiser::operator=(Denoiser&&) noexcept = default;

const NetworkConfig& Denoiser::config() const {
  return impl_->config;
}

void Denoiser::plan(std::span<const std::int64_t> classes, std::int64_t height, std::int64_t width,
                    std::span<const double> times) {
  const at::NoGradGuard no_gradients;
  impl_->plan(classes, height, width, times);
}

at::Tensor Denoiser::operator()(const at::Tensor& x, double t, bool both) {
  const at::NoGradGuard no_gradients;
  return impl_->evaluate(x, t, both);
}

}  // namespace pom::models
