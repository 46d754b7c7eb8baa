#include "pom/models/denoiser.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/dipom.h"
#include "pom/nn/attention.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/inference.h"

namespace pom::models {
namespace {

constexpr std::int64_t kTableRows = 64;  // modulations kept at a time, in pairs of a time and a class

struct Layer {
  ops::LayerWeights pom;
  ops::Dense qkv, proj;  // of attention
  ops::Dense up, down, cond, gate;
};

// Weights by name, in the dtype of the products. What has been taken is gone.
class Shelf {
 public:
  Shelf(Weights& weights, at::ScalarType dtype) : weights_(weights), dtype_(dtype) {}
  at::Tensor take(const std::string& name) {
    return weights_.extract(name).mapped().detach().to(dtype_).contiguous();
  }
  ops::Dense dense(const std::string& name) {
    at::Tensor weight = take(name + ".weight");
    return {std::move(weight), take(name + ".bias")};
  }

 private:
  Weights& weights_;
  at::ScalarType dtype_;
};

Layer take_layer(Shelf& shelf, const NetworkConfig& config, std::int64_t i) {
  const std::string name = "layers." + std::to_string(i) + ".";
  Layer layer;
  if (config.attention()) {
    layer.qkv = shelf.dense(name + "attn.qkv");
    layer.proj = shelf.dense(name + "attn.proj");
  } else {
    const ops::Dense ho = shelf.dense(name + "pom.ho_proj"), se = shelf.dense(name + "pom.se_proj"),
                     ag = shelf.dense(name + "pom.ag_proj");
    layer.pom = {ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  }
  layer.up = shelf.dense(name + "ffw.0");
  layer.down = shelf.dense(name + "ffw.2");
  layer.cond = shelf.dense(name + "cond_mlp.1");
  layer.gate = shelf.dense(name + "gate_mlp.1");
  return layer;
}

}  // namespace

struct Denoiser::Impl {
  Impl(const NetworkConfig& c, Weights weights, at::ScalarType dtype) : config(c), dtype(dtype) {
    check_config(c, "Denoiser: ");
    check_weights(weights, c, "Denoiser: weights");
    Shelf shelf(weights, dtype);
    const at::ScalarType arithmetic = dtype == at::kDouble ? at::kDouble : at::kFloat;
    classes_emb = weights.at("classes_emb.weight").to(arithmetic).contiguous();
    stream = classes_emb.options();
    time_up = shelf.dense("time_emb.0"), time_down = shelf.dense("time_emb.2");
    in_conv = shelf.dense("in_conv");
    in_conv.weight = in_conv.weight.flatten(1);
    for (std::int64_t i = 0; i < c.depth; ++i) layers.push_back(take_layer(shelf, c, i));
    out_mod = shelf.dense("out_mod.1"), out_proj = shelf.dense("out_proj");
  }

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
    if (rows != height / p || columns != width / p) {
      rows = height / p, columns = width / p;
      positions =
          nn::position_code(rows, columns, config.dim, stream.dtype().toScalarType()).to(stream.device());
    }
    batch = static_cast<std::int64_t>(picture_classes.size());
    set_classes(picture_classes);
    set_times(planned);
    make_buffers();
  }

  // Which row of `distinct` each picture takes; the last one is "no class".
  void set_classes(std::span<const std::int64_t> picture_classes) {
    distinct.assign(picture_classes.begin(), picture_classes.end());
    std::ranges::sort(distinct);
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::erase(distinct, config.classes);
    distinct.push_back(config.classes);
    row_of_picture.clear();
    for (const std::int64_t y : picture_classes)
      row_of_picture.push_back(std::ranges::find(distinct, y) - distinct.begin());
    row_of_picture.resize(static_cast<std::size_t>(2 * batch),
                          static_cast<std::int64_t>(distinct.size()) - 1);
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
    if (!config.attention()) return;
    need(qkv, {2 * batch, n, 3 * config.dim}, stream.dtype(dtype));
    need(attended, {2 * batch, n, config.dim}, stream);
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
    const at::Tensor y = at::tensor(distinct, at::TensorOptions(at::kLong)).to(stream.device());
    const at::Tensor c =
        (time_emb.narrow(0, first, table_count).unsqueeze(1) + classes_emb.index_select(0, y).unsqueeze(0))
            .reshape({table_count * classes, config.dim});
    table = at::empty({table_count * classes, modulation_width()}, stream);
    const std::int64_t d = config.dim;
    std::int64_t at = 0;
    const auto product = [&](const ops::Dense& dense) {
      at::Tensor part = table.narrow(1, at, dense.weight.size(0));
      ops::silu_linear_rows(c, dense, part);
      at += dense.weight.size(0);
    };
    for (const Layer& layer : layers) {
      product(layer.cond);
      product(layer.gate);
      if (!config.attention()) table.narrow(1, at - 2 * d, 2 * d).add_(1);  // gates are 1 + g
    }
    product(out_mod);
  }

  // The rows of the table for this time, one per picture.
  void set_modulations(double t, std::int64_t pictures) {
    const std::int64_t i = index_of(t);
    if (i < table_first || i >= table_first + table_count) fill_table(i);
    const std::int64_t classes = static_cast<std::int64_t>(distinct.size());
    for (std::int64_t b = 0; b < pictures; ++b)
      modulations[b].copy_(table[(i - table_first) * classes + row_of_picture[static_cast<std::size_t>(b)]]);
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
    at::Tensor stream_now = tokens.narrow(0, 0, pictures);
    const at::Tensor m = modulations.narrow(0, 0, pictures);
    embed(x, both);
    for (std::size_t i = 0; i < layers.size(); ++i)
      run_layer(layers[i], stream_now,
                m.narrow(1, static_cast<std::int64_t>(i) * 6 * config.dim, 6 * config.dim));
    return project(stream_now, m.narrow(1, config.depth * 6 * config.dim, 2 * config.dim));
  }

  void embed(const at::Tensor& x, bool both) {
    const std::int64_t p = config.patch, n = rows * columns;
    patches.view({batch, rows, columns, config.channels, p, p})
        .copy_(x.reshape({batch, config.channels, rows, p, columns, p}).permute({0, 2, 4, 1, 3, 5}));
    at::Tensor first = tokens.narrow(0, 0, batch), flat = first.view({batch * n, config.dim});
    ops::linear_rows(patches.view({batch * n, -1}), in_conv, flat);
    first.add_(positions);
    if (both) tokens.narrow(0, batch, batch).copy_(first);
  }

  void run_layer(const Layer& layer, at::Tensor& x, const at::Tensor& m) {
    const std::int64_t d = config.dim;
    const auto part = [&](std::int64_t i) { return m.narrow(1, i * d, d); };
    const ops::Modulation mixing{part(0), part(1), nn::kNormEps}, feeding{part(2), part(3), nn::kNormEps};
    if (config.attention()) {
      at::Tensor projected = qkv.narrow(0, 0, x.size(0));
      ops::modulated_linear(x, mixing, layer.qkv, projected);
      // One picture at a time: how torch cuts its attention depends on the whole batch, and with it the last
      // bit.
      for (std::int64_t b = 0; b < x.size(0); ++b)
        attended[b].copy_(nn::attend(projected.narrow(0, b, 1), config.heads)[0]);
      ops::linear_half(x, attended.narrow(0, 0, x.size(0)), layer.proj, part(4));
    } else {
      ops::mixer_half(x, mixing, layer.pom, config.order, part(4));
    }
    ops::feed_forward_half(x, feeding, layer.up, layer.down, part(5));
  }

  at::Tensor project(const at::Tensor& x, const at::Tensor& m) {
    const std::int64_t pictures = x.size(0), p = config.patch, d = config.dim;
    at::Tensor pixels = out_tokens.narrow(0, 0, pictures), result = out.narrow(0, 0, pictures);
    ops::modulated_linear(x, {m.narrow(1, 0, d), m.narrow(1, d, d), nn::kNormEps}, out_proj, pixels);
    result.view({pictures, config.channels, rows, p, columns, p})
        .copy_(pixels.view({pictures, rows, columns, p, p, config.channels}).permute({0, 5, 1, 3, 2, 4}));
    return result;
  }

  NetworkConfig config;
  at::ScalarType dtype;
  at::TensorOptions stream;
  at::Tensor classes_emb;
  ops::Dense time_up, time_down, in_conv, out_mod, out_proj;
  std::vector<Layer> layers;

  std::int64_t batch = 0, rows = 0, columns = 0;
  at::Tensor positions;                      // (N, d)
  std::vector<std::int64_t> distinct;        // classes of the batch, "no class" last
  std::vector<std::int64_t> row_of_picture;  // 2B indices into distinct
  std::vector<double> times;
  std::unordered_map<std::uint64_t, std::int64_t> time_index;  // by the bits of the time
  at::Tensor time_emb;                                         // (times, d)
  at::Tensor table;                                            // (table_count * distinct, modulation_width)
  std::int64_t table_first = 0, table_count = 0;
  at::Tensor patches, tokens, out_tokens, out, modulations, qkv, attended;
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
