#include "pom/models/vdipom.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/training_branch.h"

namespace pom::models {

VDiPoMImpl::VDiPoMImpl(const NetworkConfig& config, std::uint64_t seed)
    : config_(config),
      time_code_(nn::TimeCode::named(config.time_code, config.time_period)),
      position_form_(nn::position_form(config.position)) {
  check_config(config, "V-DiPoM: ");
  check(config.video(), "V-DiPoM: kind: expected vdipom, got ", config.kind);
  const std::int64_t d = config.dim;
  text_proj = register_module("text_proj", torch::nn::Linear(config.text_width, d));
  if (config.learns_no_text()) no_text = register_parameter("no_text", at::empty({d}));
  time_emb = register_module("time_emb", torch::nn::Sequential(torch::nn::Linear(d, 4 * d), torch::nn::SiLU(),
                                                               torch::nn::Linear(4 * d, d)));
  const torch::ExpandingArray<3> patch({config.patch_time, config.patch, config.patch});
  in_conv = register_module(
      "in_conv", torch::nn::Conv3d(torch::nn::Conv3dOptions(config.channels, d, patch).stride(patch)));
  layers = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.depth; ++i)
    layers->push_back(nn::VideoBlock(nn::BlockOptions{d, config.attention(), config.order,
                                                      config.order_expand, config.heads, config.ffw_expand}));
  out_mod = register_module("out_mod", nn::silu_linear(d, 2 * d));
  out_proj = register_module("out_proj", torch::nn::Linear(d, config.values()));
  set_weights(initial_weights(config, seed));
}

at::Tensor VDiPoMImpl::forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& text,
                               const at::Tensor& mask, const at::Tensor& first_block) {
  check_inputs(x, t, text, mask, first_block);
  const ops::SplitTokens split = split_tokens("V-DiPoM", x, config_, split_);
  check(!split.split() || !materialised_, "V-DiPoM: materialised: expected off with split clips, got on");
  const at::Tensor time = time_emb->forward(nn::time_features(t, config_.dim).to(x.scalar_type()));  // (B, d)
  const nn::TextContext told = read(text, mask);
  const ops::Mask seen = temporal_mask(x, config_.window);
  const ops::Mask own = config_.own_every > 0 ? temporal_mask(x, 1) : seen;
  ops::ResidualStream stream{.x = embed(x, first_block)};  // (B, N, d)
  observe("in_conv", stream.x);
  for (std::size_t i = 0; i < layers->size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    const bool alone = config_.sees_own_alone(layer);
    if (visitor_) visitor_->before_forward(layer);
    stream = layers->ptr<nn::VideoBlockImpl>(i)->forward(stream, time, told, alone ? own : seen, split);
    if (visitor_ || observer_) stream = {.x = ops::taken(stream)};
    if (visitor_) stream.x = leaving(*visitor_, layer, {stream.x})[0];
    if (observer_) observe("layers." + std::to_string(i), stream.x);
  }
  const std::vector<at::Tensor> m = out_mod->forward(time).chunk(2, -1);
  const at::Tensor normal = ops::normed(stream, {m[0], m[1], nn::kNormEps}).second;
  const at::Tensor pixels = out_proj->forward(normal);  // (B, N, pt * p * p * C)
  observe("out_proj", pixels);
  return clip_unpatchify(pixels, x.sizes(), config_);
}

// The convolution as one product, as in DiPoM.
at::Tensor VDiPoMImpl::embed(const at::Tensor& x, const at::Tensor& first_block) {
  const std::int64_t B = x.size(0), blocks = x.size(2) / config_.patch_time;
  const at::Tensor tokens =
      at::linear(clip_patchify(x, config_), in_conv->weight.flatten(1), in_conv->bias);  // (B, N, d)
  const at::Tensor place = places(x.size(3) / config_.patch, x.size(4) / config_.patch);
  const at::Tensor time = times(x, first_block).unsqueeze(2);
  return (tokens.view({B, blocks, place.size(0), config_.dim}) + place + time).flatten(1, 2);
}

// (B, blocks, d), of the weights' dtype as places are.
at::Tensor VDiPoMImpl::times(const at::Tensor& x, const at::Tensor& first_block) const {
  const std::int64_t blocks = x.size(2) / config_.patch_time;
  const at::TensorOptions numbers = x.options().dtype(at::kLong);
  const bool counted = first_block.defined() && !time_code_.relative();
  const at::Tensor first = counted ? first_block : at::zeros({x.size(0)}, numbers);
  const std::int64_t before =
      split_.split() ? sequence_share(config_, split_).first / config_.patch_time : 0;  // in other ranks
  const std::int64_t all = split_.split() ? split_.whole / config_.patch_time : blocks;
  return nn::clip_time_code(first.unsqueeze(1) + at::arange(before, before + blocks, numbers), config_.dim,
                            time_code_.of_clip(all), in_conv->weight.scalar_type(), position_form_);
}

void VDiPoMImpl::set_sequence(const SequenceSplit& split) {
  if (split.split()) sequence_share(config_, split);
  split_ = split;
}

// Of the weights' dtype: the stream stays in it where autocast computes the products in another.
at::Tensor VDiPoMImpl::places(std::int64_t rows, std::int64_t columns) {
  const at::Tensor& like = in_conv->weight;
  const bool same = places_.defined() && rows == rows_ && columns == columns_ &&
                    places_.scalar_type() == like.scalar_type() && places_.device() == like.device();
  if (!same) {
    places_ =
        nn::clip_place_code(rows, columns, config_.dim, like.scalar_type(), position_form_).to(like.device());
    rows_ = rows, columns_ = columns;
  }
  return places_;
}

nn::TextContext VDiPoMImpl::read(const at::Tensor& text, const at::Tensor& mask) {
  const at::Tensor tokens = text.dim() == 4 ? text.flatten(0, 1) : text;
  return with_no_text(text_proj->forward(tokens), mask.dim() == 3 ? mask.flatten(0, 1) : mask, no_text);
}

ops::Mask VDiPoMImpl::temporal_mask(const at::Tensor& x, std::int64_t window) const {
  if (!config_.block_causal()) return {};
  const std::int64_t block = config_.tokens(x.size(3), x.size(4)), n = x.size(2) / config_.patch_time * block;
  const ops::Mask mask = ops::Mask::block_causal(block, window);
  if (!materialised_) return mask;
  return ops::Mask::full(nn::materialised(mask, n, x.device()).expand({x.size(0), n, n}));
}

void VDiPoMImpl::check_inputs(const at::Tensor& x, const at::Tensor& t, const at::Tensor& text,
                              const at::Tensor& mask, const at::Tensor& first_block) const {
  check_clips("V-DiPoM", x, config_);
  const std::int64_t B = x.size(0), blocks = x.size(2) / config_.patch_time, width = config_.text_width;
  check(t.dim() == 1 && t.size(0) == B, "V-DiPoM: t: expected shape (", B, "), got ", t.sizes());
  const bool one = text.dim() == 3, each = text.dim() == 4 && text.size(1) >= 1 && blocks % text.size(1) == 0;
  check((one || each) && text.size(0) == B && text.size(-2) >= 1 && text.size(-1) == width,
        "V-DiPoM: text: expected shape (", B, ", L, ", width, ") or (", B, ", P, L, ", width,
        ") with P parts of whole blocks, of which there are ", blocks, ", got ", text.sizes());
  check(mask.scalar_type() == at::kBool && mask.sizes() == text.sizes().slice(0, text.dim() - 1),
        "V-DiPoM: mask: expected bool of shape ", text.sizes().slice(0, text.dim() - 1), " like text, got ",
        mask.scalar_type(), " of shape ", mask.sizes());
  check(!first_block.defined() ||
            (first_block.dim() == 1 && first_block.size(0) == B && first_block.scalar_type() == at::kLong),
        "V-DiPoM: first_block: expected int64 of shape (", B, "), got another");
}

void VDiPoMImpl::observe(std::string_view layer, const at::Tensor& out) const {
  if (observer_) observer_(layer, out);
}

Weights VDiPoMImpl::weights() const {
  Weights weights;
  for (const auto& item : named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

void VDiPoMImpl::set_weights(const Weights& weights) {
  check_weights(weights, config_, "V-DiPoM: weights");
  torch::NoGradGuard no_grad;
  for (auto& item : named_parameters()) item.value().copy_(weights.at(item.key()));
}

at::Tensor clip_patchify(const at::Tensor& x, const NetworkConfig& config) {
  const std::int64_t p = config.patch, pt = config.patch_time, B = x.size(0), C = x.size(1);
  const std::int64_t blocks = x.size(2) / pt, rows = x.size(3) / p, columns = x.size(4) / p;
  return x.reshape({B, C, blocks, pt, rows, p, columns, p})
      .permute({0, 2, 4, 6, 1, 3, 5, 7})
      .reshape({B, blocks * rows * columns, C * pt * p * p});
}

at::Tensor clip_unpatchify(const at::Tensor& tokens, at::IntArrayRef like, const NetworkConfig& config) {
  const std::int64_t p = config.patch, pt = config.patch_time, C = config.channels;
  const std::int64_t blocks = like[2] / pt, rows = like[3] / p, columns = like[4] / p;
  return tokens.reshape({tokens.size(0), blocks, rows, columns, pt, p, p, C})
      .permute({0, 7, 1, 4, 2, 5, 3, 6})
      .reshape({tokens.size(0), C, like[2], like[3], like[4]});
}

void check_clips(std::string_view where, const at::Tensor& x, const NetworkConfig& config) {
  check(x.dim() == 5 && x.size(1) == config.channels, where, ": x: expected shape (B, ", config.channels,
        ", T, H, W), got ", x.sizes());
  check(x.size(2) >= 1 && x.size(2) % config.patch_time == 0, where, ": x: expected whole blocks of ",
        config.patch_time, " frames, got ", x.size(2), " frames");
  check(x.size(3) >= config.patch && x.size(4) >= config.patch && x.size(3) % config.patch == 0 &&
            x.size(4) % config.patch == 0,
        where, ": x: expected sides that the patch (", config.patch, ") divides, got ", x.size(3), " x ",
        x.size(4));
}

nn::TextContext with_no_text(const at::Tensor& tokens, const at::Tensor& mask, const at::Tensor& no_text) {
  if (!no_text.defined()) return {tokens, mask};
  const at::Tensor silent = mask.any(1, /*keepdim=*/true).logical_not();  // (R, 1)
  const at::Tensor first =
      at::where(silent.unsqueeze(2), no_text.to(tokens.scalar_type()), tokens.narrow(1, 0, 1));
  const std::int64_t rest = tokens.size(1) - 1;
  return {at::cat({first, tokens.narrow(1, 1, rest)}, 1),
          at::cat({mask.narrow(1, 0, 1).logical_or(silent), mask.narrow(1, 1, rest)}, 1)};
}

}  // namespace pom::models
