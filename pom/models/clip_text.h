// Private to the room: what the layers of a network of clips read of its texts, made once for each evaluation
// of a plan and kept until something else is told. B items, L tokens, d width, kD features; rows are items,
// with guidance those that are led to and then those that are led away from, or the blocks of each of them.
#pragma once

#include <cstdint>
#include <vector>

#include "pom/models/denoiser_core.h"
#include "pom/nn/video_block.h"

namespace pom::models {

struct TextRead {
  at::Tensor means;         // (depth, rows, kD), of mixers, and for fp8
  at::Tensor scales;        // (depth, rows) of them; or
  at::Tensor keys, values;  // (depth, rows, L, d), of attention
  at::Tensor mask;          // (rows, 1, 1, L)
  bool defined() const { return means.defined() || keys.defined(); }

  TextRead empty_like() const;  // the same shapes
  bool shaped_as(const TextRead& other) const;
  void copy_(const TextRead& other);
};

class ClipTexts {
 public:
  struct Layer {
    ops::LayerWeights mixer;  // or
    ops::Dense key_value;     // of attention
  };
  // Takes its own weights; those of the layers follow.
  ClipTexts(const NetworkConfig& config, WeightReader& weights, at::ScalarType dtype);
  void add(Layer layer) { layers_.push_back(std::move(layer)); }
  at::TensorOptions stream() const { return stream_; }  // of the residual stream

  void plan(std::int64_t batch, const std::vector<Evaluation>& evaluations);
  void tell(const Condition& condition);
  const Condition& told() const { return told_; }
  bool of_blocks() const { return told_.text.dim() == 4; }  // one for each block
  const TextRead& read(std::int64_t evaluation, ModulationTable& table);

 private:
  void check_text(const at::Tensor& text, const at::Tensor& mask, const char* name) const;
  nn::TextContext nothing_told() const;
  nn::TextContext mapped(const at::Tensor& text, const at::Tensor& mask) const;
  at::Tensor means_of(std::size_t layer, const nn::TextContext& told, const ops::Modulation& reading) const;
  at::Tensor keys_of(std::size_t layer, const nn::TextContext& told, const ops::Modulation& reading) const;

  NetworkConfig config_;
  at::ScalarType dtype_, stored_;  // of the products, and of their weights
  ops::Dense text_proj_;
  at::Tensor no_text_;  // (d); undefined where a mask of zeros stands for no text
  at::TensorOptions stream_;
  std::vector<Layer> layers_;

  std::int64_t batch_ = 0;
  std::vector<Evaluation> evaluations_;
  Condition told_;
  std::vector<TextRead> read_;  // of each evaluation; undefined where not yet read
};

}  // namespace pom::models
