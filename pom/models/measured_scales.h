// Private to the room: the scales of the layers' hidden values in fp8, measured once in bf16.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/ops/block/inference.h"

namespace pom::models {

class MeasuredScales {
 public:
  MeasuredScales(std::int64_t layers, at::TensorOptions stream);

  bool known() const { return stage_ == ops::Fp8::Stage::on; }
  // Layers that run between these two are measured.
  void begin();
  void end();
  void forget() { stage_ = ops::Fp8::Stage::measuring; }

  ops::Fp8 of(std::int64_t layer) const { return {.stage = stage_, .hidden = values_.narrow(0, layer, 1)}; }

  const at::Tensor& values() const { return values_; }  // (layers), in memory that stays
  void set(const at::Tensor& values);                   // those of a state

 private:
  ops::Fp8::Stage stage_ = ops::Fp8::Stage::measuring;
  at::Tensor values_;
};

}  // namespace pom::models
