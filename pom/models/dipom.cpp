#include "pom/models/dipom.h"

#include <ATen/ops/linear.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"
#include "pom/models/time_input.h"
#include "pom/nn/checkpointed.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/training_branch.h"

namespace pom::models {

DiPoMImpl::DiPoMImpl(const NetworkConfig& config, std::uint64_t seed) : config_(config) {
  check_config(config, "DiPoM: ");
  check(!config.video(), "DiPoM: kind: expected dipom, got ", config.kind);
  const std::int64_t d = config.dim;
  classes_emb = register_module("classes_emb", torch::nn::Embedding(config.classes + 1, d));
  time_emb = register_module(
      "time_emb", torch::nn::Sequential(torch::nn::Linear(config.time_inputs(), config.time_hidden()),
                                        torch::nn::SiLU(), torch::nn::Linear(config.time_hidden(), d)));
  in_conv = register_module(
      "in_conv",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(config.channels, d, config.patch).stride(config.patch)));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.depth; ++i)
    layers->push_back(nn::ModulatedBlock(
        nn::BlockOptions{d, config.attention(), config.order, config.order_expand, config.heads,
                         config.ffw_expand, config.gelu == "tanh" ? ops::Gelu::tanh : ops::Gelu::erf}));
  out_mod = register_module("out_mod", nn::silu_linear(d, 2 * d));
  out_proj = register_module("out_proj", torch::nn::Linear(d, config.outputs()));
  set_weights(initial_weights(config, seed));
}

at::Tensor DiPoMImpl::forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& y) {
  check_latents("DiPoM", x, config_);
  const ops::SplitTokens split = split_tokens("DiPoM", x, config_, split_);
  check(t.dim() == 1 && t.size(0) == x.size(0), "DiPoM: t: expected shape (", x.size(0), "), got ",
        t.sizes());
  check(y.dim() == 1 && y.size(0) == x.size(0) && y.scalar_type() == at::kLong,
        "DiPoM: y: expected int64 of shape (", x.size(0), "), got ", y.scalar_type(), " of shape ",
        y.sizes());
  const at::Tensor time = nn::in_eights(nn::time_features(t, time_features_of(config_)).to(x.scalar_type()));
  const at::Tensor c = nn::in_eights(classes_emb->forward(y)) + time_emb->forward(time);  // (B or more, d)
  const at::Tensor tokens = embed(x);
  observe("in_conv", tokens);
  ops::ResidualStream stream{.x = tokens};
  for (std::size_t i = 0; i < layers->size(); ++i) {
    auto block = layers->ptr<nn::ModulatedBlockImpl>(i);
    if (visitor_) visitor_->before_forward(static_cast<std::int64_t>(i));
    if (checkpointing_)
      stream.x = nn::checkpointed(std::move(block), stream.x, c, split);
    else
      stream = block->forward(stream, c, split);
    if (visitor_) leave(i, stream);
    if (!observer_) continue;
    stream = {.x = ops::taken(stream)};
    observe("layers." + std::to_string(i), stream.x);
  }
  const std::vector<at::Tensor> m = out_mod->forward(c).narrow(0, 0, x.size(0)).chunk(2, -1);
  const at::Tensor normal = ops::normed(stream, {m[0], m[1], nn::kNormEps}).second;
  const at::Tensor pixels = out_proj->forward(normal);  // (B, N, p * p * C), or 2 C: the variances last
  observe("out_proj", pixels);
  const at::Tensor out =
      unpatchify(pixels, x.size(2) / config_.patch, x.size(3) / config_.patch, config_.patch);
  return config_.learned_variance ? out.narrow(1, 0, config_.channels) : out;
}

void DiPoMImpl::leave(std::size_t layer, ops::ResidualStream& stream) {
  const std::vector<at::Tensor> left =
      leaving(*visitor_, static_cast<std::int64_t>(layer), {stream.x, stream.y, stream.gate});
  stream.x = left[0], stream.y = left[1], stream.gate = left[2];
}

// The convolution as one product, whose gradients are deterministic on every device.
at::Tensor DiPoMImpl::embed(const at::Tensor& x) {
  const at::Tensor tokens = at::linear(patchify(x, config_.patch), in_conv->weight.flatten(1), in_conv->bias);
  const std::int64_t columns = x.size(3) / config_.patch;
  if (!split_.split()) return tokens + positions(x.size(2) / config_.patch, columns);
  const std::int64_t first = sequence_share(config_, split_).first / config_.patch;
  return tokens + positions(split_.whole / config_.patch, columns).narrow(0, first * columns, tokens.size(1));
}

void DiPoMImpl::set_sequence(const SequenceSplit& split) {
  if (split.split()) sequence_share(config_, split);
  split_ = split;
}

// Of the weights' dtype: the stream stays in it where autocast computes the products in another.
at::Tensor DiPoMImpl::positions(std::int64_t rows, std::int64_t columns) {
  const at::Tensor& like = in_conv->weight;
  const bool same = positions_.defined() && rows == rows_ && columns == columns_ &&
                    positions_.scalar_type() == like.scalar_type() && positions_.device() == like.device();
  if (!same) {
    positions_ =
        nn::position_code(rows, columns, config_.dim, like.scalar_type(), nn::position_form(config_.position))
            .to(like.device());
    rows_ = rows, columns_ = columns;
  }
  return positions_;
}

void DiPoMImpl::observe(std::string_view layer, const at::Tensor& out) const {
  if (observer_) observer_(layer, out);
}

Weights DiPoMImpl::weights() const {
  Weights weights;
  for (const auto& item : named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

void DiPoMImpl::set_weights(const Weights& weights) {
  check_weights(weights, config_, "DiPoM: weights");
  torch::NoGradGuard no_grad;
  for (auto& item : named_parameters()) item.value().copy_(weights.at(item.key()));
}

at::Tensor patchify(const at::Tensor& x, std::int64_t patch) {
  const std::int64_t B = x.size(0), C = x.size(1), rows = x.size(2) / patch, columns = x.size(3) / patch;
  return x.reshape({B, C, rows, patch, columns, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({B, rows * columns, C * patch * patch});
}

at::Tensor unpatchify(const at::Tensor& tokens, std::int64_t rows, std::int64_t columns, std::int64_t patch) {
  const std::int64_t B = tokens.size(0), C = tokens.size(2) / (patch * patch);
  return tokens.reshape({B, rows, columns, patch, patch, C})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({B, C, rows * patch, columns * patch});
}

void check_latents(std::string_view where, const at::Tensor& x, const NetworkConfig& config) {
  check(x.dim() == 4 && x.size(1) == config.channels, where, ": x: expected shape (B, ", config.channels,
        ", H, W), got ", x.sizes());
  check(x.size(2) >= config.patch && x.size(3) >= config.patch && x.size(2) % config.patch == 0 &&
            x.size(3) % config.patch == 0,
        where, ": x: expected sides that the patch (", config.patch, ") divides, got ", x.size(2), " x ",
        x.size(3));
}

}  // namespace pom::models
