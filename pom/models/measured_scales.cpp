#include "pom/models/measured_scales.h"

#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"

namespace pom::models {
namespace {

// Later evaluations may reach beyond the one that is measured, and those of later blocks. A larger scale
// costs nothing: e4m3 is as exact, relatively, down to 2^-14 of its greatest value.
constexpr double kMargin = 8;

}  // namespace

MeasuredScales::MeasuredScales(std::int64_t layers, at::TensorOptions stream)
    : values_(at::zeros({layers}, stream)) {}

void MeasuredScales::begin() {
  values_.zero_();
  stage_ = ops::Fp8::Stage::measuring;
}

// Powers of two: what is divided by one and what by another then differ in nothing but what is too small or
// too large for e4m3, so that it hardly matters in whose company a clip was measured.
void MeasuredScales::end() {
  constexpr float least = std::numeric_limits<float>::min();  // of values that are all 0
  values_.clamp_min_(least).mul_(kMargin);
  const at::Tensor here = values_.cpu();  // where powers of two are exact
  float* const scales = here.mutable_data_ptr<float>();
  for (std::int64_t l = 0; l < here.size(0); ++l) {
    int exponent = 0;
    std::frexp(scales[l], &exponent);
    scales[l] = std::ldexp(1.0F, exponent);
  }
  values_.copy_(here);
  stage_ = ops::Fp8::Stage::on;
}

void MeasuredScales::set(const at::Tensor& values) {
  check(values.scalar_type() == at::kFloat && values.sizes() == values_.sizes(),
        "Denoiser: state: hidden_scales: expected fp32 of shape (", values_.size(0), "), got ",
        values.scalar_type(), " of shape ", values.sizes());
  check(values.isfinite().logical_and_(values.gt(0)).all().item<bool>(),
        "Denoiser: state: hidden_scales: expected numbers above 0, got others");
  values_.copy_(values);
  stage_ = ops::Fp8::Stage::on;
}

}  // namespace pom::models
