// Tests of Student's distribution against numbers of scipy 1.17.1.
#include "pom/eval/student.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

TEST(Student, BetaFunction) {
  EXPECT_NEAR(incomplete_beta(2.5, 0.5, 0.3), 0.018927124071945658, 1e-15);
  EXPECT_NEAR(incomplete_beta(40, 60, 0.5), 0.9780623532064924, 1e-13);
  EXPECT_EQ(incomplete_beta(2, 3, 0), 0);
  EXPECT_EQ(incomplete_beta(2, 3, 1), 1);
  EXPECT_THROW(incomplete_beta(0, 1, 0.5), Error);
  EXPECT_THROW(incomplete_beta(1, 1, 1.5), Error);
}

TEST(Student, Distribution) {
  EXPECT_NEAR(student_cdf(0, 3), 0.5, 1e-15);
  EXPECT_NEAR(student_cdf(1.5, 4), 0.896, 1e-14);
  EXPECT_NEAR(student_cdf(-2.776, 4), 0.02501138915998821, 1e-14);
  EXPECT_NEAR(student_cdf(12.7, 1), 0.9749878361553279, 1e-14);
  EXPECT_NEAR(student_cdf(3, 2.5), 0.9637119522254841, 1e-14);
  EXPECT_NEAR(student_cdf(0.1, 100), 0.5397277344520743, 1e-14);
  EXPECT_EQ(student_cdf(std::numeric_limits<double>::infinity(), 4), 1);
  EXPECT_THROW(student_cdf(1, 0), Error);
}

TEST(Student, Quantiles) {
  const auto expect = [](double p, double degrees, double t) {
    EXPECT_NEAR(student_quantile(p, degrees), t, 1e-12 * std::abs(t)) << p << " of " << degrees;
  };
  expect(0.975, 1, 12.706204736174694);
  expect(0.975, 2, 4.302652729749462);
  expect(0.975, 4, 2.7764451051977934);
  expect(0.95, 4, 2.1318467863266495);
  expect(0.025, 29, -2.045229642132704);
  expect(0.9995, 2, 31.599054576445365);
  EXPECT_NEAR(student_quantile(0.5, 7), 0, 1e-12);
  EXPECT_THROW(student_quantile(1, 4), Error);
}

}  // namespace
}  // namespace pom::eval
