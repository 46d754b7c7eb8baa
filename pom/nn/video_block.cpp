#include "pom/nn/video_block.h"

#include <ATen/ops/silu.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"
#include "pom/ops/block/training.h"

namespace pom::nn {
namespace {

// (B, d) for every text: where a clip has several, each gets the clip's row.
at::Tensor for_texts(const at::Tensor& rows, const at::Tensor& texts) {
  return rows.size(0) == texts.size(0) ? rows
                                       : rows.repeat_interleave(texts.size(0) / rows.size(0), /*dim=*/0);
}

}  // namespace

VideoBlockImpl::VideoBlockImpl(const BlockOptions& o) : heads_(o.heads), gate_base_(o.attention ? 0.0 : 1.0) {
  check(o.ffw_expand >= 1, "VideoBlock: ffw_expand: expected at least 1, got ", o.ffw_expand);
  if (o.attention) {
    c_attn = register_module("c_attn", CrossAttention(o.dim, o.heads));
    attn = register_module("attn", Attention(o.dim, o.heads));
  } else {
    c_pom = register_module("c_pom", PoM(o.dim, o.order, o.order_expand));
    pom = register_module("pom", PoM(o.dim, o.order, o.order_expand));
  }
  ffw = register_module(
      "ffw", torch::nn::Sequential(torch::nn::Linear(o.dim, o.ffw_expand * o.dim), torch::nn::GELU(),
                                   torch::nn::Linear(o.ffw_expand * o.dim, o.dim)));
  cond_mlp = register_module("cond_mlp", silu_linear(o.dim, 8 * o.dim));
  gate_mlp = register_module("gate_mlp", silu_linear(o.dim, 3 * o.dim));
}

at::Tensor VideoBlockImpl::forward(const at::Tensor& x, const at::Tensor& time, const TextContext& text,
                                   const ops::Mask& mask, const ops::SplitTokens& split) {
  const at::Tensor s = at::silu(time);
  // Scale and shift of the video for the text, of the text, of the video for itself, of the feed-forward.
  const std::vector<at::Tensor> m = linear_of(cond_mlp).forward(s).chunk(8, -1);  // (B, d)
  const std::vector<at::Tensor> g = linear_of(gate_mlp).forward(s).chunk(3, -1);
  const at::Tensor told =
      ops::modulated_norm(text.tokens, for_texts(m[2], text.tokens), for_texts(m[3], text.tokens), kNormEps);
  const at::Tensor normal = ops::modulated_norm(x, m[0], m[1], kNormEps);
  const auto [listened, again] =
      ops::gated_add_norm(x, mix_text(normal, {told, text.keys}), g[0], gate_base_, m[4], m[5], kNormEps);
  const auto [mixed, last] =
      ops::gated_add_norm(listened, mix_video(again, mask, split), g[1], gate_base_, m[6], m[7], kNormEps);
  return ops::gated_add(mixed, feed_forward(last), g[2], gate_base_);
}

// Where a clip has several texts, its tokens are as many sequences.
at::Tensor VideoBlockImpl::mix_text(const at::Tensor& x, const TextContext& text) {
  const std::int64_t texts = text.tokens.size(0), B = x.size(0), N = x.size(1);
  const at::Tensor folded = texts == B ? x : x.reshape({texts, B * N / texts, x.size(2)});
  const at::Tensor mixed = c_attn ? c_attn->forward(folded, text.tokens, text.keys)
                                  : c_pom->forward(folded, text.tokens, ops::Mask::keys(text.keys));
  return mixed.view_as(x);
}

at::Tensor VideoBlockImpl::mix_video(const at::Tensor& x, const ops::Mask& mask,
                                     const ops::SplitTokens& split) {
  check(!split.split() || !attn, "VideoBlock: split: expected the mixer over split tokens, got attention");
  if (split.split()) return pom->forward(x, {}, mask, split);
  if (!attn) return pom->forward(x, {}, mask);
  const std::vector<at::Tensor> parts = attn->qkv->forward(x).chunk(3, -1);
  const at::Tensor visible =
      mask.is_full() ? mask.visible.to(at::kBool).unsqueeze(1) : materialised(mask, x.size(1), x.device());
  return attn->proj->forward(attend(parts[0], parts[1], parts[2], heads_, visible));
}

at::Tensor VideoBlockImpl::feed_forward(const at::Tensor& x) {
  const auto &up = ffw->at<torch::nn::LinearImpl>(0), &down = ffw->at<torch::nn::LinearImpl>(2);
  return ops::feed_forward(x, up.weight, up.bias, down.weight, down.bias);
}

}  // namespace pom::nn
