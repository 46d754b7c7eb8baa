#include "pom/nn/video_block.h"

#include <ATen/ops/silu.h>
#include <torch/nn/modules/activation.h>

#include "pom/base/error.h"
#include "pom/ops/block/lowered_linear.h"
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
  return ops::taken(forward(ops::ResidualStream{.x = x}, time, text, mask, split));
}

ops::ResidualStream VideoBlockImpl::forward(const ops::ResidualStream& before, const at::Tensor& time,
                                            const TextContext& text, const ops::Mask& mask,
                                            const ops::SplitTokens& split) {
  const at::Tensor s = at::silu(time);
  // Scale and shift of the video for the text, of the text, of the video for itself, of the feed-forward; and
  // the three gates. (B, d)
  const std::vector<at::Tensor> m =
      ops::conditions(s, {condition_matrix(cond_mlp, 8), condition_matrix(gate_mlp, 3)}, before.x);
  const at::Tensor told =
      ops::modulated_norm(text.tokens, for_texts(m[2], text.tokens), for_texts(m[3], text.tokens), kNormEps);
  ops::ResidualStream stream = listened(before, {m[0], m[1], kNormEps}, {told, text.keys});
  stream.gate = m[8], stream.base = gate_base_;
  stream = mixed(stream, {m[4], m[5], kNormEps}, mask, split);
  stream.gate = m[9], stream.base = gate_base_;
  stream = fed_forward(stream, {m[6], m[7], kNormEps});
  stream.gate = m[10], stream.base = gate_base_;
  return stream;
}

ops::ResidualStream VideoBlockImpl::listened(const ops::ResidualStream& stream, const ops::Modulation& m,
                                             const TextContext& text) {
  if (c_pom)
    return ops::mixer_branch(stream, m, c_pom->weights(), c_pom->options().order,
                             {text.tokens, ops::Mask::keys(text.keys)});
  const auto [sum, x] = ops::normed(stream, m);
  // Where a clip has several texts, its tokens are as many sequences.
  const at::Tensor folded = x.view({text.tokens.size(0), -1, x.size(2)});
  return {.x = sum, .y = c_attn->forward(folded, text.tokens, text.keys).view_as(x)};
}

ops::ResidualStream VideoBlockImpl::mixed(const ops::ResidualStream& stream, const ops::Modulation& m,
                                          const ops::Mask& mask, const ops::SplitTokens& split) {
  check(!split.split() || !attn, "VideoBlock: split: expected the mixer over split tokens, got attention");
  if (!attn && !split.split())
    return ops::mixer_branch(stream, m, pom->weights(), pom->options().order, {.mask = mask});
  const auto [sum, x] = ops::normed(stream, m);
  if (!attn) return {.x = sum, .y = pom->forward(x, {}, mask, split)};
  const std::vector<at::Tensor> parts =
      ops::lowered_linear(x, attn->qkv->weight, attn->qkv->bias).chunk(3, -1);
  const at::Tensor visible =
      mask.is_full() ? mask.visible.to(at::kBool).unsqueeze(1) : materialised(mask, x.size(1), x.device());
  const at::Tensor y = attend(parts[0], parts[1], parts[2], heads_, visible);
  return {.x = sum, .y = ops::lowered_linear(y, attn->proj->weight, attn->proj->bias)};
}

ops::ResidualStream VideoBlockImpl::fed_forward(const ops::ResidualStream& stream, const ops::Modulation& m) {
  const auto &up = ffw->at<torch::nn::LinearImpl>(0), &down = ffw->at<torch::nn::LinearImpl>(2);
  return ops::feed_forward_branch(stream, m, up.weight, up.bias, down.weight, down.bias);
}

}  // namespace pom::nn
