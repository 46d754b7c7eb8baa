// The Fréchet distance between two sets of features, each taken for a normal distribution. F features.
#pragma once

#include <ATen/core/Tensor.h>

namespace pom::eval {

struct Gaussian {
  at::Tensor mean;        // (F) fp64
  at::Tensor covariance;  // (F, F) fp64
};

// Of features (N, F), N at least 2; the covariance divides by N - 1.
Gaussian fit_gaussian(const at::Tensor& features);

// One with which many are compared: the square root of its covariance is taken once.
class FrechetReference {
 public:
  explicit FrechetReference(Gaussian gaussian);
  const Gaussian& gaussian() const { return gaussian_; }

  // To samples (N, F), N at least 2: exact of them also where they are fewer than features.
  double to(const at::Tensor& samples) const;
  double to(const Gaussian& other) const;

 private:
  Gaussian gaussian_;
  at::Tensor root_;
};

// |a.mean - b.mean|² + tr(A + B - 2 (A B)^½), A and B the covariances, which may be singular. Never negative.
double frechet_distance(const Gaussian& a, const Gaussian& b);

}  // namespace pom::eval
