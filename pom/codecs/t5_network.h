// The T5 encoder for inference, in plain ATen. B prompts, L tokens, d width, h heads of width k.
//
// Of bf16 and fp16 weights the products are in their dtype; the stream between the layers, the scores and the
// softmax are in fp32. In fp16 `wo` stays fp32, as transformers has it: real models overflow there.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "pom/codecs/t5_config.h"

namespace pom::codecs {

class T5Network {
 public:
  // Tensors of `weights`, which expects t5_tensors(config), are read one at a time, each into its final
  // place.
  T5Network(const T5Config& config, const WeightFolder& weights, at::ScalarType dtype,
            const c10::Device& device);

  // ids (B, L) int64 within the vocabulary, mask (B, L) bool, 0 where a token is hidden from all others, or
  // undefined -> (B, L, d) in the weights' dtype. On a CPU a prompt's result does not depend on the others.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask) const;

  void to(const c10::Device& device);
  at::ScalarType dtype() const { return table_.scalar_type(); }
  c10::Device device() const { return table_.device(); }

 private:
  struct Block {
    at::Tensor attention_norm, qkv, o, dense_norm, wi, wo;  // wi has wi_0 over wi_1 where it is gated
  };

  // What is added to scores by the distance of key and query: (h, 2 L - 1), and (1, h, L, L) where that is
  // not too large to keep.
  struct Bias {
    at::Tensor by_distance, whole;
  };

  at::Tensor run(const at::Tensor& ids, const at::Tensor& mask, const Bias& bias) const;
  at::Tensor attention(const Block& block, const at::Tensor& x, const at::Tensor& hidden,
                       const Bias& bias) const;
  at::Tensor dense(const Block& block, const at::Tensor& x) const;
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const;
  Bias bias_of(std::int64_t length) const;
  static at::Tensor bias_rows(const Bias& bias, std::int64_t first, std::int64_t count);

  T5Config config_;
  at::Tensor table_, biases_, final_norm_;  // pieces (vocabulary, d), buckets (buckets, h)
  std::vector<Block> blocks_;
};

}  // namespace pom::codecs
