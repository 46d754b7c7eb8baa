// The block of the networks for clips: text mixed into the video, the video mixed under a temporal mask, and
// feed-forward, each behind a layer norm that the diffusion time modulates and a gate that it sets.
// B clips, N tokens, L tokens of text, d width.
#pragma once

#include "pom/nn/clip_attention.h"
#include "pom/nn/modulated_block.h"

namespace pom::nn {

// What a clip is told: (B, L, d), or one text for each of its P equal parts, (B * P, L, d), clip by clip.
struct TextContext {
  at::Tensor tokens;
  at::Tensor keys;  // (like tokens, L) bool: which of them count
};

class VideoBlockImpl : public torch::nn::Module {
 public:
  explicit VideoBlockImpl(const BlockOptions& options);

  // x (B, N, d), time (B, d) -> (B, N, d). `mask` is none, block-causal or full. `split`: these are a rank's
  // tokens of clips that several ranks have, all of whom have the text; neither a full mask nor attention can
  // do with them.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& time, const TextContext& text,
                     const ops::Mask& mask, const ops::SplitTokens& split = {});
  // From what the block before has left to add to what this one leaves.
  ops::ResidualStream forward(const ops::ResidualStream& before, const at::Tensor& time,
                              const TextContext& text, const ops::Mask& mask,
                              const ops::SplitTokens& split = {});

  PoM c_pom{nullptr}, pom{nullptr};  // these two, or
  CrossAttention c_attn{nullptr};    // these
  Attention attn{nullptr};
  torch::nn::Sequential ffw{nullptr}, cond_mlp{nullptr}, gate_mlp{nullptr};

 private:
  ops::ResidualStream listened(const ops::ResidualStream& stream, const ops::Modulation& m,
                               const TextContext& text);
  ops::ResidualStream mixed(const ops::ResidualStream& stream, const ops::Modulation& m,
                            const ops::Mask& mask, const ops::SplitTokens& split);
  ops::ResidualStream fed_forward(const ops::ResidualStream& stream, const ops::Modulation& m);

  std::int64_t heads_;
  double gate_base_;  // gates are 1 + g around the mixer, g around attention
};
TORCH_MODULE(VideoBlock);

}  // namespace pom::nn
