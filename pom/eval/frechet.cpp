#include "pom/eval/frechet.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/matmul.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

void check_gaussian(const Gaussian& g, const char* name) {
  const bool shaped = g.mean.dim() == 1 && g.covariance.dim() == 2 &&
                      g.covariance.size(0) == g.mean.size(0) && g.covariance.size(1) == g.mean.size(0);
  check(shaped, "frechet_distance: ", name, ": expected a mean (F) and a covariance (F, F), got ",
        g.mean.sizes(), " and ", g.covariance.sizes());
  check(g.mean.isfinite().all().item<bool>() && g.covariance.isfinite().all().item<bool>(),
        "frechet_distance: ", name, ": expected finite features, got NaN or infinite ones");
}

// Of a symmetric matrix without negative eigenvalues, but for rounding.
at::Tensor square_root(const at::Tensor& matrix) {
  const auto [values, vectors] = at::linalg_eigh(matrix);
  return at::matmul(vectors * values.clamp_min(0).sqrt(), vectors.t());
}

}  // namespace

Gaussian fit_gaussian(const at::Tensor& features) {
  check(features.dim() == 2 && features.size(0) >= 2,
        "fit_gaussian: features: expected (N, F) with N at least 2, got ", features.sizes());
  const at::Tensor x = features.to(at::kDouble);
  const at::Tensor mean = x.mean(0), centred = x - mean;
  return {mean, at::matmul(centred.t(), centred) / static_cast<double>(x.size(0) - 1)};
}

FrechetReference::FrechetReference(Gaussian gaussian) : gaussian_(std::move(gaussian)) {
  check_gaussian(gaussian_, "reference");
  gaussian_.mean = gaussian_.mean.to(at::kDouble),
  gaussian_.covariance = gaussian_.covariance.to(at::kDouble);
  root_ = square_root(gaussian_.covariance);
}

// A B has the eigenvalues of the symmetric B^½ A B^½.
double FrechetReference::to(const Gaussian& a) const {
  check_gaussian(a, "a");
  check(a.mean.sizes() == gaussian_.mean.sizes(), "frechet_distance: b: expected ", a.mean.size(0),
        " features, got ", gaussian_.mean.size(0));
  const at::Tensor inner = at::matmul(at::matmul(root_, a.covariance.to(at::kDouble)), root_);
  const at::Tensor shared = at::linalg_eigvalsh((inner + inner.t()) / 2).clamp_min(0).sqrt().sum();
  const at::Tensor distance = (a.mean - gaussian_.mean).to(at::kDouble).square().sum() +
                              a.covariance.trace() + gaussian_.covariance.trace() - 2 * shared;
  return std::max(0.0, distance.item<double>());
}

// With X centred, those roots are the singular values of X B^½ / √(N − 1).
double FrechetReference::to(const at::Tensor& samples) const {
  check(samples.dim() == 2 && samples.size(0) >= 2 && samples.size(1) == gaussian_.mean.size(0),
        "frechet_distance: samples: expected (N, ", gaussian_.mean.size(0), ") with N at least 2, got ",
        samples.sizes());
  if (samples.size(0) > samples.size(1)) return to(fit_gaussian(samples));
  const auto n = static_cast<double>(samples.size(0) - 1);
  const at::Tensor x = samples.to(at::kDouble), mean = x.mean(0), centred = x - mean;
  const at::Tensor shared = at::linalg_svdvals(at::matmul(centred, root_)).sum() / std::sqrt(n);
  const at::Tensor distance = (mean - gaussian_.mean).square().sum() + centred.square().sum() / n +
                              gaussian_.covariance.trace() - 2 * shared;
  return std::max(0.0, distance.item<double>());
}

double frechet_distance(const Gaussian& a, const Gaussian& b) {
  check_gaussian(a, "a");
  check_gaussian(b, "b");
  check(a.mean.sizes() == b.mean.sizes(), "frechet_distance: b: expected ", a.mean.size(0), " features, got ",
        b.mean.size(0));
  return FrechetReference(a).to(b);
}

}  // namespace pom::eval
