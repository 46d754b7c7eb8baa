// The network that makes clips from text: V-DiPoM, or its attention baseline V-DiT, as a module with
// gradients. Sampling goes through Denoiser, which computes the same from the same weights.
// B clips of T latent frames, L tokens of text, N = blocks * h * w tokens, d width.
#pragma once

#include <functional>
#include <string_view>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>

#include "pom/models/layer_visitor.h"
#include "pom/models/sequence.h"
#include "pom/models/weights.h"
#include "pom/nn/video_block.h"
#include "pom/nn/video_position.h"

namespace pom::models {

class VDiPoMImpl : public torch::nn::Module {
 public:
  // With the values of initial_weights(config, seed).
  explicit VDiPoMImpl(const NetworkConfig& config, std::uint64_t seed = 0);

  // x (B, C, T, H, W) and t (B) in [0, 1] -> (B, C, T, H, W).
  // text (B, L, text_width) and mask (B, L) bool, 1 where a token counts; or one text for each of P equal
  // parts of the clip, which are whole blocks, (B, P, L, text_width) and (B, P, L). A text of which nothing
  // counts is no text.
  // first_block (B) int64: the number of each clip's first block in its sequence; 0 where undefined. A
  // relative time code is that of a whole clip, whatever it says.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& text, const at::Tensor& mask,
                     const at::Tensor& first_block = {});

  const NetworkConfig& config() const { return config_; }

  // From now on x is this rank's frames of clips, and so is what comes out (pom/models/sequence.h); texts of
  // parts are those of its frames, and first_block is still that of the clip. Gradients of parameters are
  // those of the rank's pixels: the sum over the ranks is the gradient.
  void set_sequence(const SequenceSplit& split);

  // Writes the temporal mask out, (B, N, N), and mixes through it: the referee of causal layers and streams.
  void set_materialised(bool on) { materialised_ = on; }

  // Called with what "in_conv", "layers.0", …, "out_proj" give, in this order; empty for none.
  using Observer = std::function<void(std::string_view layer, const at::Tensor& out)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Is told before each layer's weights are used; none: nobody. It lives as long as graphs of this network.
  void set_layer_visitor(LayerVisitor* visitor) { visitor_ = visitor; }

  // Copies of all parameters by name, and back: names, shapes and nothing else must be the network's.
  Weights weights() const;
  void set_weights(const Weights& weights);

  torch::nn::Linear text_proj{nullptr};
  at::Tensor no_text;  // (d); undefined where a mask of zeros stands for no text
  torch::nn::Sequential time_emb{nullptr};
  torch::nn::Conv3d in_conv{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Sequential out_mod{nullptr};
  torch::nn::Linear out_proj{nullptr};

 private:
  at::Tensor embed(const at::Tensor& x, const at::Tensor& first_block);
  at::Tensor times(const at::Tensor& x, const at::Tensor& first_block) const;
  at::Tensor places(std::int64_t rows, std::int64_t columns);
  nn::TextContext read(const at::Tensor& text, const at::Tensor& mask);
  ops::Mask temporal_mask(const at::Tensor& x, std::int64_t window) const;
  void check_inputs(const at::Tensor& x, const at::Tensor& t, const at::Tensor& text, const at::Tensor& mask,
                    const at::Tensor& first_block) const;
  void observe(std::string_view layer, const at::Tensor& out) const;

  NetworkConfig config_;
  nn::TimeCode time_code_;
  nn::PositionForm position_form_;
  bool materialised_ = false;
  SequenceSplit split_;
  Observer observer_;
  LayerVisitor* visitor_ = nullptr;
  at::Tensor places_;  // of the last size
  std::int64_t rows_ = 0, columns_ = 0;
};
TORCH_MODULE(VDiPoM);

// Latents to tokens in the order of a convolution's weights: (B, C, T, H, W) -> (B, N, C * pt * p * p).
at::Tensor clip_patchify(const at::Tensor& x, const NetworkConfig& config);

// Tokens to latents, channel fastest: (B, N, pt * p * p * C) -> (B, C, T, H, W), `like` which in shape.
at::Tensor clip_unpatchify(const at::Tensor& tokens, at::IntArrayRef like, const NetworkConfig& config);

// Clips as the network takes them: (B, C, T, H, W) with C channels, whole blocks, sides that the patch
// divides.
void check_clips(std::string_view where, const at::Tensor& x, const NetworkConfig& config);

// Text behind its linear map, (R, L, d), where a row of which nothing counts becomes one token `no_text`, or
// stays as it is where that is undefined: there the mixer's context is 0.
nn::TextContext with_no_text(const at::Tensor& tokens, const at::Tensor& mask, const at::Tensor& no_text);

}  // namespace pom::models
