#include "pom/eval/frechet.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
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

double frechet_distance(const Gaussian& a, const Gaussian& b) {
  check_gaussian(a, "a");
  check_gaussian(b, "b");
  check(a.mean.sizes() == b.mean.sizes(), "frechet_distance: b: expected ", a.mean.size(0), " features, got ",
        b.mean.size(0));
  // A B has the eigenvalues of the symmetric A^½ B A^½.
  const at::Tensor root = square_root(a.covariance.to(at::kDouble));
  const at::Tensor inner = at::matmul(at::matmul(root, b.covariance.to(at::kDouble)), root);
  const at::Tensor shared = at::linalg_eigvalsh((inner + inner.t()) / 2).clamp_min(0).sqrt().sum();
  const at::Tensor distance = (a.mean - b.mean).to(at::kDouble).square().sum() + a.covariance.trace() +
                              b.covariance.trace() - 2 * shared;
  return std::max(0.0, distance.item<double>());
}

}  // namespace pom::eval
