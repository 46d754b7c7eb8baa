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

// |a.mean - b.mean|² + tr(A + B - 2 (A B)^½), A and B the covariances, which may be singular. Never negative.
double frechet_distance(const Gaussian& a, const Gaussian& b);

}  // namespace pom::eval
