// Tests of the Fréchet distance against cases that can be worked out by hand.
#include "pom/eval/frechet.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

Gaussian gaussian(const std::vector<double>& mean, const std::vector<double>& covariance) {
  const auto count = static_cast<std::int64_t>(mean.size());
  return {at::tensor(mean, at::kDouble), at::tensor(covariance, at::kDouble).reshape({count, count})};
}

// An orthogonal matrix, from nothing but numbers.
at::Tensor rotation(std::int64_t size) {
  const at::Tensor numbers = at::arange(size * size, at::kDouble).reshape({size, size});
  return std::get<0>(at::linalg_qr((numbers * 1.7).sin()));
}

TEST(Frechet, OfDiagonalCovariances) {
  // |(1, -2)|² + (3 - 1)² + (2 - 5)²
  EXPECT_NEAR(frechet_distance(gaussian({0, 0}, {9, 0, 0, 4}), gaussian({1, -2}, {1, 0, 0, 25})), 18, 1e-12);
  EXPECT_NEAR(frechet_distance(gaussian({2}, {0}), gaussian({2}, {0})), 0, 1e-15);
  EXPECT_NEAR(frechet_distance(gaussian({2}, {0}), gaussian({5}, {4})), 13, 1e-12);  // one without spread
}

// Matrices that commute: the distance is that of the eigenvalues, in whatever basis.
TEST(Frechet, OfRotatedCovariances) {
  const std::int64_t size = 12;
  const at::Tensor q = rotation(size), a = at::arange(size, at::kDouble) + 0.5, b = a.flip(0).square();
  const Gaussian first{at::zeros(size, at::kDouble), q.matmul(at::diag(a)).matmul(q.t())};
  const Gaussian second{at::ones(size, at::kDouble), q.matmul(at::diag(b)).matmul(q.t())};
  const double expected = (a.sqrt() - b.sqrt()).square().sum().item<double>() + static_cast<double>(size);
  EXPECT_NEAR(frechet_distance(first, second), expected, 1e-9 * expected);
}

// Matrices that do not commute: of two 2x2 ones, tr (A B)^½ = sqrt(tr A B + 2 sqrt(det A B)).
TEST(Frechet, OfCovariancesThatDoNotCommute) {
  const Gaussian a = gaussian({0, 0}, {4, 1, 1, 2}), b = gaussian({0, 0}, {3, -1, -1, 5});
  const double trace = 4 * 3 + 1 * -1 + 1 * -1 + 2 * 5, determinant = (4 * 2 - 1) * (3 * 5 - 1);
  EXPECT_NEAR(frechet_distance(a, b), 6 + 8 - 2 * std::sqrt(trace + 2 * std::sqrt(determinant)), 1e-12);
  EXPECT_NEAR(frechet_distance(a, b), frechet_distance(b, a), 1e-12);
}

TEST(Frechet, FitsMeanAndCovariance) {
  const Gaussian g = fit_gaussian(at::tensor({1.0F, 10.0F, 2.0F, 10.0F, 6.0F, 13.0F}).reshape({3, 2}));
  EXPECT_TRUE(at::allclose(g.mean, at::tensor({3.0, 11.0}, at::kDouble)));
  EXPECT_TRUE(at::allclose(g.covariance, at::tensor({7.0, 4.5, 4.5, 3.0}, at::kDouble).reshape({2, 2})));
}

// Fewer examples than features leave a covariance that is singular.
TEST(Frechet, OfItselfIsNothing) {
  const at::Tensor features = (at::arange(5 * 16, at::kFloat).reshape({5, 16}) * 0.37).cos();
  const Gaussian g = fit_gaussian(features);
  EXPECT_NEAR(frechet_distance(g, g), 0, 1e-6);
  EXPECT_GT(frechet_distance(g, fit_gaussian(features * 2)), 0.1);
}

TEST(Frechet, RefusesWhatIsNoDistribution) {
  EXPECT_THROW(fit_gaussian(at::zeros({1, 4})), Error);
  EXPECT_THROW(fit_gaussian(at::zeros({4})), Error);
  EXPECT_THROW(frechet_distance(gaussian({0}, {1}), gaussian({0, 0}, {1, 0, 0, 1})), Error);
  EXPECT_THROW(frechet_distance(gaussian({std::nan("")}, {1}), gaussian({0}, {1})), Error);
}

}  // namespace
}  // namespace pom::eval
