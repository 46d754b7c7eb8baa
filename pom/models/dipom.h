// The class-conditional network: DiPoM, or its attention baseline DiT, as a module with gradients. Sampling
// goes through Denoiser, which computes the same from the same weights.
#pragma once

#include <functional>
#include <string_view>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include "pom/models/layer_visitor.h"
#include "pom/models/sequence.h"
#include "pom/models/weights.h"
#include "pom/nn/modulated_block.h"

namespace pom::models {

class DiPoMImpl : public torch::nn::Module {
 public:
  // With the values of initial_weights(config, seed).
  explicit DiPoMImpl(const NetworkConfig& config, std::uint64_t seed = 0);

  // x (B, C, H, W), t (B) in [0, 1], y (B) int64 with config.classes for "no class" -> (B, C, H, W).
  at::Tensor forward(const at::Tensor& x, const at::Tensor& t, const at::Tensor& y);

  const NetworkConfig& config() const { return config_; }

  // Keeps of every block only what goes into it, and computes the block again in the backward pass: the same
  // gradients, bit for bit, in less memory. Gradients of second order are refused.
  void set_checkpointing(bool on) { checkpointing_ = on; }
  bool checkpointing() const { return checkpointing_; }

  // From now on x is this rank's rows of pictures, and so is what comes out (pom/models/sequence.h).
  // Gradients of parameters are those of the rank's pixels: the sum over the ranks is the gradient.
  void set_sequence(const SequenceSplit& split);

  // Called with what "in_conv", "layers.0", …, "out_proj" give, in this order; empty for none.
  using Observer = std::function<void(std::string_view layer, const at::Tensor& out)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  // Is told before each layer's weights are used; none: nobody. It lives as long as graphs of this network.
  void set_layer_visitor(LayerVisitor* visitor) { visitor_ = visitor; }

  // Copies of all parameters by name, and back: names, shapes and nothing else must be the network's.
  Weights weights() const;
  void set_weights(const Weights& weights);

  torch::nn::Embedding classes_emb{nullptr};
  torch::nn::Sequential time_emb{nullptr};
  torch::nn::Conv2d in_conv{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Sequential out_mod{nullptr};
  torch::nn::Linear out_proj{nullptr};

 private:
  at::Tensor embed(const at::Tensor& x);  // (B, C, H, W) -> (B, N, d), positions added
  at::Tensor positions(std::int64_t rows, std::int64_t columns);
  void observe(std::string_view layer, const at::Tensor& out) const;
  void leave(std::size_t layer, ops::ResidualStream& stream);

  NetworkConfig config_;
  bool checkpointing_ = false;
  SequenceSplit split_;
  Observer observer_;
  LayerVisitor* visitor_ = nullptr;
  at::Tensor positions_;  // of the last size
  std::int64_t rows_ = 0, columns_ = 0;
};
TORCH_MODULE(DiPoM);

// Pixels to tokens in the order of a convolution's weights: (B, C, h * p, w * p) -> (B, h * w, C * p * p).
at::Tensor patchify(const at::Tensor& x, std::int64_t patch);

// Tokens to pixels, channel fastest: (B, h * w, p * p * C) -> (B, C, h * p, w * p).
at::Tensor unpatchify(const at::Tensor& tokens, std::int64_t rows, std::int64_t columns, std::int64_t patch);

// Latents as the network takes them: (B, C, H, W) with C channels and sides that the patch divides.
void check_latents(std::string_view where, const at::Tensor& x, const NetworkConfig& config);

}  // namespace pom::models
