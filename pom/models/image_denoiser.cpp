// Denoiser of networks with classes: DiPoM and its baseline DiT.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/denoiser_core.h"
#include "pom/models/dipom.h"
#include "pom/nn/attention.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/block_stack.h"
#include "pom/ops/block/inference.h"
#include "pom/ops/block/training.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/sequence.h"

namespace pom::models {
namespace {

// Later evaluations may reach beyond the one that fp8 scales were measured in. A larger scale costs nothing:
// e4m3 is as exact, relatively, down to 2^-14 of its greatest value.
constexpr double kScaleMargin = 8;

struct ImageLayer {
  ops::LayerWeights pom;
  ops::Dense qkv, proj;  // of attention
  ops::Dense up, down;
};

ImageLayer take_image_layer(WeightReader& weights, const NetworkConfig& config, std::int64_t i) {
  const std::string name = "layers." + std::to_string(i) + ".";
  ImageLayer layer;
  if (config.attention()) {
    layer.qkv = weights.dense(name + "attn.qkv");
    layer.proj = weights.dense(name + "attn.proj");
  } else {
    layer.pom = weights.mixer(name + "pom");
  }
  layer.up = weights.dense(name + "ffw.0");
  layer.down = weights.dense(name + "ffw.2");
  return layer;
}

// Those of the outputs that are read: not those of a variance, which come after the channels of each pixel.
ops::Dense take_output(WeightReader& weights, const NetworkConfig& config) {
  ops::Dense out = weights.dense("out_proj");
  if (!config.learned_variance) return out;
  const auto read = [&](const at::Tensor& rows) {
    return rows.unflatten(0, {-1, 2 * config.channels}).narrow(1, 0, config.channels).flatten(0, 1);
  };
  return {read(out.weight).contiguous(), read(out.bias).contiguous()};
}

class ImageDenoiser final : public Denoiser {
  // The parts of a layer's modulations, in the order of the network's weights.
  enum Part { scale_1, shift_1, scale_2, shift_2, gate_1, gate_2, parts };
  static constexpr int kGates = 2;

 public:
  ImageDenoiser(const NetworkConfig& c, Weights weights, at::ScalarType dtype) : config_(c), dtype_(dtype) {
    check_config(c, "Denoiser: ");
    check_weights(weights, c, "Denoiser: weights");
    if (fp8()) {
      const std::string reason = ops::fp8_refusal(weights.at("classes_emb.weight").device());
      check(reason.empty(), "Denoiser: dtype: ", reason);
      check(exact_gelu(), "Denoiser: dtype: fp8 has no kernel for network.gelu \"tanh\"");
    }
    WeightReader reader(weights, stored_as(dtype));
    classes_emb_ = reader.take("classes_emb.weight", arithmetic_of(dtype));
    stream_ = classes_emb_.options();
    in_conv_ = reader.dense("in_conv");
    in_conv_.weight = in_conv_.weight.flatten(1);
    for (std::int64_t i = 0; i < c.depth; ++i) layers_.push_back(take_image_layer(reader, c, i));
    table_.emplace(reader, c, parts, kGates, stream_);
    out_proj_ = take_output(reader, c);
    graphs_ = ops::cuda::graphs_on(stream_.device());
  }

  const NetworkConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  at::Device device() const override { return stream_.device(); }

  void plan(const SamplingPlan& plan) override {
    const at::NoGradGuard no_gradients;
    check_plan(plan, config_, "Denoiser");
    split_ = {.ranks = plan.ranks, .whole = plan.height};
    check(!split_.split() || !fp8(), "Denoiser: dtype: fp8 has no kernels for a picture split over ranks");
    const parallel::Share mine =
        split_.split() ? sequence_share(config_, split_) : parallel::Share{0, plan.height};
    const std::int64_t rows = mine.count / config_.patch, columns = plan.width / config_.patch;
    const std::int64_t height = plan.height / config_.patch, first = mine.first / config_.patch;
    const bool resized = rows != rows_ || columns != columns_ || height != height_ || first != first_row_;
    if (resized || batch_ != plan.batch) {
      if (graphs_) graphs_->drop();
      stacks_ = {};
    }
    if (resized) {
      rows_ = rows, columns_ = columns, height_ = height, first_row_ = first;
      positions_ = nn::position_code(height, columns, config_.dim, arithmetic_of(dtype_),
                                     nn::position_form(config_.position))
                       .narrow(0, first * columns, rows * columns)
                       .to(stream_.device());
    }
    batch_ = plan.batch, evaluations_ = plan.evaluations, block_ = 0, told_ = false;
    make_buffers();
    if (fp8()) hidden_scales_.zero_(), measured_ = false;
  }

  void tell(const Condition& condition) override {
    const at::NoGradGuard no_gradients;
    check(batch_ > 0, "Denoiser: tell: expected a plan before, got none");
    check(!condition.text.defined(), "Denoiser: text: expected classes, got a text: this network reads none");
    check_classes(condition.classes, "classes");
    if (!condition.away_classes.empty()) check_classes(condition.away_classes, "away_classes");
    std::vector<std::int64_t> all = condition.classes, distinct;
    all.insert(all.end(), condition.away_classes.begin(), condition.away_classes.end());
    all.resize(static_cast<std::size_t>(2 * batch_), config_.classes);
    distinct = all;
    std::ranges::sort(distinct);
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<std::int64_t> rows_of;
    for (const std::int64_t y : all) rows_of.push_back(std::ranges::find(distinct, y) - distinct.begin());
    row_of_image_ = on_device(rows_of);
    table_->plan(evaluations_, classes_emb_.index_select(0, on_device(distinct)));
    told_ = true;
  }

  at::Tensor operator()(const at::Tensor& x, std::int64_t evaluation) override {
    const at::NoGradGuard no_gradients;
    check_latents("Denoiser", x, config_);
    check(told_, "Denoiser: classes: expected tell() before the first evaluation");
    check(evaluation >= 0 && evaluation < std::ssize(evaluations_), "Denoiser: evaluation: expected 0 to ",
          std::ssize(evaluations_) - 1, ", got ", evaluation);
    check(
        x.size(0) == batch_ && x.size(2) == height_ * config_.patch && x.size(3) == columns_ * config_.patch,
        "Denoiser: x: expected what was planned, (", batch_, ", ", config_.channels, ", ",
        height_ * config_.patch, ", ", columns_ * config_.patch, "), got ", x.sizes());
    const bool both = evaluations_[static_cast<std::size_t>(evaluation)].both;
    const std::int64_t images = both ? 2 * batch_ : batch_;
    at::Tensor now = modulations_.narrow(0, 0, images);
    at::index_select_out(now, table_->rows(evaluation), 0, row_of_image_.narrow(0, 0, images));
    const at::Tensor part = sequence_part(x, config_, split_);
    tokens_split_ = split_tokens("Denoiser", part, config_, split_);
    cut_patches(part);
    if (fp8() && !measured_)
      measure_scales(images);
    else if (graphs_ && !split_.split())  // another path runs other kernels
      graphs_->run(2 * static_cast<int>(ops::path()) + both, [&] { run_network(images); });
    else
      run_network(images);
    return sequence_whole(out_.narrow(0, 0, images), config_, split_);
  }

  void advance() override { ++block_; }
  std::int64_t block() const override { return block_; }
  std::map<std::string, at::Tensor> state() const override { no_state(); }
  void set_state(const std::map<std::string, at::Tensor>&) override { no_state(); }

 private:
  [[noreturn]] static void no_state() {
    fail("Denoiser: state: expected a network of clips: an image has one block, and nothing follows it");
  }
  bool on_gpu() const { return stream_.device().is_cuda(); }
  bool fp8() const { return dtype_ == at::kFloat8_e4m3fn; }
  bool exact_gelu() const { return config_.gelu == "erf"; }
  at::Tensor on_device(const std::vector<std::int64_t>& numbers) const {
    return at::tensor(numbers, at::TensorOptions(at::kLong)).to(stream_.device());
  }

  void check_classes(const std::vector<std::int64_t>& classes, const char* name) const {
    check(std::ssize(classes) == batch_, "Denoiser: ", name, ": expected one for each of ", batch_,
          " images, got ", classes.size());
    for (const std::int64_t y : classes)
      check(y >= 0 && y <= config_.classes, "Denoiser: ", name, ": expected 0 to ", config_.classes, ", got ",
            y);
  }

  void make_buffers() {
    const std::int64_t n = rows_ * columns_, pixels = config_.patch * config_.patch * config_.channels;
    const auto need = [&](at::Tensor& buffer, std::initializer_list<std::int64_t> shape,
                          at::TensorOptions options) {
      if (!buffer.defined() || buffer.sizes() != at::IntArrayRef(shape)) buffer = at::empty(shape, options);
    };
    need(patches_, {batch_, n, pixels}, stream_);
    need(tokens_, {2 * batch_, n, config_.dim}, stream_);
    need(out_tokens_, {2 * batch_, n, pixels}, stream_);
    need(out_, {2 * batch_, config_.channels, rows_ * config_.patch, columns_ * config_.patch}, stream_);
    need(modulations_, {2 * batch_, table_->width()}, stream_);
    if (fp8()) need(hidden_scales_, {config_.depth}, stream_);
    if (!config_.attention()) return;
    need(qkv_, {2 * batch_, n, 3 * config_.dim}, stream_.dtype(stored_as(dtype_)));
    if (!on_gpu()) need(attended_, {2 * batch_, n, config_.dim}, stream_);
  }

  // An evaluation in bf16 that leaves the scale of each layer's hidden values.
  void measure_scales(std::int64_t images) {
    graphs_->run_once([&] { run_network(images); });
    constexpr float least = std::numeric_limits<float>::min();  // of values that are all 0
    hidden_scales_.clamp_min_(least).mul_(kScaleMargin);
    measured_ = true;
  }

  // From the patches and the modulations to the result, all of them buffers.
  void run_network(std::int64_t images) {
    at::Tensor stream_now = tokens_.narrow(0, 0, images);
    const at::Tensor m = modulations_.narrow(0, 0, images);
    embed(images > batch_);
    if (ops::BlockStack* const stack = stacked(stream_now))
      stack->run();
    else
      for (std::int64_t i = 0; i < config_.depth; ++i) run_layer(i, stream_now, modulation_of(i, m));
    project(stream_now, table_->output(m));
  }

  void cut_patches(const at::Tensor& x) {
    const std::int64_t p = config_.patch;
    patches_.view({batch_, rows_, columns_, config_.channels, p, p})
        .copy_(x.reshape({batch_, config_.channels, rows_, p, columns_, p}).permute({0, 2, 4, 1, 3, 5}));
  }

  void embed(bool both) {
    const std::int64_t n = rows_ * columns_;
    at::Tensor first = tokens_.narrow(0, 0, batch_), flat = first.view({batch_ * n, config_.dim});
    ops::linear_rows(patches_.view({batch_ * n, -1}), in_conv_, flat);
    first.add_(positions_);
    if (both) tokens_.narrow(0, batch_, batch_).copy_(first);
  }

  ops::Fp8 fp8_of(std::int64_t layer) const {
    if (!fp8()) return {};
    return {measured_ ? ops::Fp8::Stage::on : ops::Fp8::Stage::measuring, hidden_scales_.narrow(0, layer, 1)};
  }

  // What the condition sets in a block.
  struct BlockModulation {
    ops::Modulation mixing, feeding;
    at::Tensor mixing_gate, feeding_gate;
  };
  BlockModulation modulation_of(std::int64_t layer, const at::Tensor& m) const {
    return {table_->modulation(m, layer, scale_1, shift_1), table_->modulation(m, layer, scale_2, shift_2),
            table_->part(m, layer, gate_1), table_->part(m, layer, gate_2)};
  }

  void run_layer(std::int64_t index, at::Tensor& x, const BlockModulation& m) {
    const ImageLayer& layer = layers_[static_cast<std::size_t>(index)];
    const ops::Fp8 fp8 = fp8_of(index);
    if (config_.attention()) {
      at::Tensor projected = qkv_.narrow(0, 0, x.size(0));
      ops::modulated_linear(x, m.mixing, layer.qkv, projected, fp8);
      ops::add_linear(x, attend(projected), layer.proj, m.mixing_gate, fp8);
    } else if (split_.split()) {
      const at::Tensor normal =
          ops::modulated_norm(x, m.mixing.scale, m.mixing.shift, m.mixing.eps).to(stored_as(dtype_));
      const at::Tensor mixed = ops::mixer_layer(normal, normal, layer.pom, config_.order, {}, tokens_split_);
      x.copy_(ops::gated_add(x, mixed, m.mixing_gate, 0));
    } else {
      ops::add_mixer(x, m.mixing, layer.pom, config_.order, m.mixing_gate, fp8);
    }
    ops::add_feed_forward(x, m.feeding, layer.up, layer.down, m.feeding_gate, fp8,
                          exact_gelu() ? ops::Gelu::erf : ops::Gelu::tanh);
  }

  // All blocks at once for this stream, with or without its second half; null where they run one by one.
  ops::BlockStack* stacked(const at::Tensor& x) {
    if (!on_gpu() || split_.split() || config_.attention() || !exact_gelu() || (fp8() && !measured_) ||
        ops::path() == ops::Path::composed)
      return nullptr;
    std::optional<std::unique_ptr<ops::BlockStack>>& stack = stacks_[x.size(0) > batch_];
    if (!stack) stack = make_stack(x);
    return stack->get();
  }
  std::unique_ptr<ops::BlockStack> make_stack(const at::Tensor& x) {
    std::vector<ops::StackedBlock> blocks;
    for (std::int64_t i = 0; i < config_.depth; ++i) {
      const ImageLayer& layer = layers_[static_cast<std::size_t>(i)];
      const BlockModulation m = modulation_of(i, modulations_.narrow(0, 0, x.size(0)));
      blocks.push_back({layer.pom, layer.up, layer.down, m.mixing, m.feeding, m.mixing_gate, m.feeding_gate,
                        fp8() ? hidden_scales_.narrow(0, i, 1) : at::Tensor()});
    }
    return ops::BlockStack::make(x, blocks, config_.order, fp8());
  }

  at::Tensor attend(const at::Tensor& projected) {
    if (on_gpu()) return nn::attend(projected, config_.heads);
    // One image at a time: how torch cuts its attention depends on the whole batch, and with it the last
    // bit.
    const std::int64_t images = projected.size(0);
    for (std::int64_t b = 0; b < images; ++b)
      attended_[b].copy_(nn::attend(projected.narrow(0, b, 1), config_.heads)[0]);
    return attended_.narrow(0, 0, images);
  }

  void project(const at::Tensor& x, const ops::Modulation& modulation) {
    const std::int64_t images = x.size(0), p = config_.patch;
    at::Tensor pixels = out_tokens_.narrow(0, 0, images), result = out_.narrow(0, 0, images);
    ops::modulated_linear(x, modulation, out_proj_, pixels);
    result.view({images, config_.channels, rows_, p, columns_, p})
        .copy_(pixels.view({images, rows_, columns_, p, p, config_.channels}).permute({0, 5, 1, 3, 2, 4}));
  }

  NetworkConfig config_;
  at::ScalarType dtype_;
  at::TensorOptions stream_;
  at::Tensor classes_emb_;
  ops::Dense in_conv_, out_proj_;
  std::vector<ImageLayer> layers_;
  std::optional<ModulationTable> table_;  // a row for each class of the batch

  std::int64_t batch_ = 0, rows_ = 0, columns_ = 0, block_ = 0;
  std::int64_t height_ = 0, first_row_ = 0;  // rows_ are these, or a rank's part of them
  SequenceSplit split_;
  ops::SplitTokens tokens_split_;
  std::vector<Evaluation> evaluations_;
  bool told_ = false;
  at::Tensor positions_;     // (N, d)
  at::Tensor row_of_image_;  // 2B rows of the table, on the device
  at::Tensor patches_, tokens_, out_tokens_, out_, modulations_, qkv_, attended_;
  at::Tensor hidden_scales_;  // (depth), of fp8
  bool measured_ = false;
  // Of B images and of 2B, once asked for; null where there is none.
  std::array<std::optional<std::unique_ptr<ops::BlockStack>>, 2> stacks_;
  std::unique_ptr<ops::cuda::GraphedEvaluations> graphs_;  // on CUDA; goes before the buffers
};

}  // namespace

std::unique_ptr<Denoiser> make_image_denoiser(const NetworkConfig& config, Weights weights,
                                              at::ScalarType dtype) {
  return std::make_unique<ImageDenoiser>(config, std::move(weights), dtype);
}

}  // namespace pom::models
