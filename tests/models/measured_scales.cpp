// The scales that are measured for fp8: powers of two with room above what was measured, which states carry.
#include "pom/models/measured_scales.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::models {
namespace {

using Stage = ops::Fp8::Stage;

// Measured as an operator does it: raised to what is needed.
MeasuredScales measured(const at::Tensor& needed) {
  MeasuredScales scales(needed.size(0), at::TensorOptions(at::kFloat));
  scales.begin();
  for (std::int64_t l = 0; l < needed.size(0); ++l) {
    const ops::Fp8 fp8 = scales.of(l);
    EXPECT_EQ(fp8.stage, Stage::measuring);
    at::Tensor value = fp8.hidden;
    value.copy_(at::maximum(value, needed.narrow(0, l, 1)));
  }
  scales.end();
  return scales;
}

TEST(MeasuredScales, ArePowersOfTwoAboveWhatIsNeeded) {
  const at::Tensor needed = at::tensor({0.003F, 0.5F, 1.0F, 7.3F, 1e-20F, 0.0F, 3e4F});
  const MeasuredScales scales = measured(needed);
  EXPECT_TRUE(scales.known());
  for (std::int64_t l = 0; l < needed.size(0); ++l) {
    const ops::Fp8 fp8 = scales.of(l);
    EXPECT_EQ(fp8.stage, Stage::on);
    const float scale = fp8.hidden.item<float>(), least = needed[l].item<float>();
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5F) << scale;
    EXPECT_GE(scale, 8 * least);
    EXPECT_LE(scale, std::max(16 * least, 16 * std::numeric_limits<float>::min()));
    EXPECT_GT(scale, 0);
  }
}

// In other company a little more or less is measured: mostly the same scale.
TEST(MeasuredScales, HardlyDependOnTheCompany) {
  EXPECT_TRUE(at::equal(measured(at::full({1}, 0.013F)).values(), measured(at::full({1}, 0.0139F)).values()));
}

TEST(MeasuredScales, GoWithAState) {
  const MeasuredScales made = measured(at::tensor({0.1F, 2.0F}));
  MeasuredScales other(2, at::TensorOptions(at::kFloat));
  EXPECT_FALSE(other.known());
  const void* const place = other.values().const_data_ptr();  // graphs read it
  other.set(made.values());
  EXPECT_TRUE(other.known() && at::equal(other.values(), made.values()));
  EXPECT_EQ(other.values().const_data_ptr(), place);
  other.forget();
  EXPECT_FALSE(other.known());
  for (const at::Tensor& wrong :
       {at::ones({3}), at::ones({2}, at::kDouble), at::tensor({1.0F, 0.0F}), at::tensor({-1.0F, 1.0F}),
        at::tensor({1.0F, std::nanf("")}), at::tensor({1.0F, std::numeric_limits<float>::infinity()})})
    EXPECT_THROW(other.set(wrong), Error);
  EXPECT_FALSE(other.known());
}

}  // namespace
}  // namespace pom::models
