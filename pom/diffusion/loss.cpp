#include "pom/diffusion/loss.h"

#include <algorithm>
#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/square.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"

namespace pom::diffusion {
namespace {

constexpr double kLeastSigma = 0.05;  // below it an answer of x0 would count for nearly everything
const std::vector<std::string> kNames = Loss::names();  // in the order of Loss::Kind

// Half precision is for networks; a mean of squares needs more.
at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

}  // namespace

Loss Loss::min_snr(double gamma) {
  check(gamma > 0 && std::isfinite(gamma), "Loss: gamma: expected more than 0, got ", gamma);
  return Loss(Kind::min_snr, gamma);
}

Loss Loss::named(std::string_view name, double gamma) {
  if (name == kNames[0]) return mse();
  if (name == kNames[1]) return min_snr(gamma);
  fail("Loss: name: there is no \"", name, "\"", suggestion(name, kNames));
}

std::string_view Loss::name() const {
  return kNames[static_cast<std::size_t>(kind_)];
}

// With x0 = x/α − (σ/α)·ε an error e of ε is one of (σ/α)·e in x0, so min(SNR, γ) becomes min(α², γσ²)/α²;
// with x0 = x − σv it becomes min(α², γσ²), and of x0 itself min(α², γσ²)/σ². Nothing is divided by zero.
at::Tensor Loss::weights(const Path& path, const at::Tensor& t) const {
  const auto [alpha, sigma] = path.alpha_sigma(t, 1);
  const bool of_x0 = path.prediction() == Prediction::x0;
  const at::Tensor divisor = of_x0 ? at::square(at::clamp(sigma, kLeastSigma)) : at::Tensor();
  if (kind_ == Kind::mse) return of_x0 ? at::reciprocal(divisor) : at::ones_like(alpha);
  const at::Tensor least = at::minimum(at::square(alpha), at::square(sigma) * gamma_);
  if (of_x0) return least / divisor;
  return path.prediction() == Prediction::velocity ? least : least / at::square(alpha);
}

at::Tensor Loss::operator()(const Path& path, const at::Tensor& output, const at::Tensor& x0,
                            const at::Tensor& noise, const at::Tensor& t) const {
  check(output.sizes() == x0.sizes(), "Loss: output: expected the shape of x0, ", x0.sizes(), ", got ",
        output.sizes());
  check(x0.dim() >= 1 && t.dim() == 1 && t.size(0) == x0.size(0), "Loss: t: expected one time for each of ",
        x0.dim() >= 1 ? x0.size(0) : 0, " images, got shape ", t.sizes());
  const at::Tensor error = widened(output) - widened(path.target(x0, noise));
  const at::Tensor squares = at::square(error).flatten(1).mean(1);  // (B)
  const bool plain = kind_ == Kind::mse && path.prediction() != Prediction::x0;
  return plain ? squares : squares * weights(path, t).to(squares.scalar_type());
}

}  // namespace pom::diffusion
