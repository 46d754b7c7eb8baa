#include "pom/diffusion/path.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/take.h>
#include <ATen/ops/tensor.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"

namespace pom::diffusion {
namespace {

constexpr double kSmallest = 1e-6;  // of σ² and of 1 − σ²
constexpr double kQuarterTurn = std::numbers::pi / 2;
const std::vector<std::string> kPaths = Path::names();               // in the order of Prediction
const std::vector<std::string> kVariances = Path::variance_names();  // in the order of the enum

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

// ln of what is left of a picture after n of the thousand steps, n = 0 … 1000.
constexpr int kSteps = 1000;
const std::vector<double>& log_kept() {
  static const std::vector<double> table = [] {
    std::vector<double> sums{0.0};
    for (int i = 0; i < kSteps; ++i)
      sums.push_back(sums.back() + std::log1p(-(1e-4 + (0.02 - 1e-4) * i / (kSteps - 1))));
    return sums;
  }();
  return table;
}

double ddpm_variance(double t) {
  const double place = t * kSteps;
  const auto before = static_cast<std::size_t>(std::clamp(place, 0.0, kSteps - 1.0));
  const std::vector<double>& sums = log_kept();
  const double part = place - static_cast<double>(before);
  return -std::expm1(sums[before] + part * (sums[before + 1] - sums[before]));
}

at::Tensor ddpm_variance(const at::Tensor& t) {
  const at::Tensor sums = at::tensor(log_kept(), at::kDouble).to(t.device());
  const at::Tensor place = t.to(at::kDouble) * kSteps;
  const at::Tensor before = at::clamp(place, 0, kSteps - 1).to(at::kLong);
  const at::Tensor first = at::take(sums, before), last = at::take(sums, before + 1);
  return -at::expm1(first + (place - before) * (last - first));
}

double variance_at(Variance variance, double t) {
  switch (variance) {
    case Variance::linear:
      return t;
    case Variance::sine:
      return std::sin(kQuarterTurn * t);
    case Variance::cosine:
      return 1 - std::cos(kQuarterTurn * t);
    case Variance::sigmoid:
      return (logistic(4 * t - 2) - logistic(-2)) / (logistic(2) - logistic(-2));
    case Variance::ddpm_linear:
      return ddpm_variance(t);
  }
  fail("Path: variance: expected one of the enumeration, got ", static_cast<int>(variance));
}

at::Tensor variance_at(Variance variance, const at::Tensor& t) {
  switch (variance) {
    case Variance::linear:
      return t;
    case Variance::sine:
      return at::sin(t * kQuarterTurn);
    case Variance::cosine:
      return at::rsub(at::cos(t * kQuarterTurn), 1);
    case Variance::sigmoid:
      return (at::sigmoid(t * 4 - 2) - logistic(-2)) / (logistic(2) - logistic(-2));
    case Variance::ddpm_linear:
      return ddpm_variance(t);
  }
  fail("Path: variance: expected one of the enumeration, got ", static_cast<int>(variance));
}

double clamped_variance(Variance variance, double t) {
  return std::clamp(variance_at(variance, t), kSmallest, 1 - kSmallest);
}

void check_time(double t) {
  check(t >= 0 && t <= 1, "Path: t: expected 0 to 1, got ", t);
}

void check_same(const char* what, const at::Tensor& a, const char* other, const at::Tensor& b) {
  check(a.sizes() == b.sizes(), "Path: ", what, ": expected the shape of ", other, ", ", b.sizes(), ", got ",
        a.sizes());
}

void check_times(const at::Tensor& t, const at::Tensor& x) {
  check(x.dim() >= 1 && t.dim() == 1 && t.size(0) == x.size(0), "Path: t: expected one time for each of ",
        x.dim() >= 1 ? x.size(0) : 0, " images, got shape ", t.sizes());
}

std::size_t index_of(const char* argument, std::string_view name, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  check(found != names.end(), "Path: ", argument, ": there is no \"", name, "\"", suggestion(name, names));
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

Path Path::named(std::string_view path, std::string_view variance) {
  const auto prediction = static_cast<Prediction>(index_of("path", path, kPaths));
  if (prediction != Prediction::epsilon) {
    check(variance.empty(), "Path: variance: expected none, because the path \"", path, "\" has none, got \"",
          variance, "\"");
    return Path(prediction, Variance::linear);
  }
  if (variance.empty()) return epsilon();
  return epsilon(static_cast<Variance>(index_of("variance", variance, kVariances)));
}

std::string_view Path::name() const {
  return kPaths[static_cast<std::size_t>(prediction_)];
}

std::string_view Path::variance_name() const {
  if (is_flow()) return "";
  return kVariances[static_cast<std::size_t>(variance_)];
}

double Path::alpha(double t) const {
  check_time(t);
  return is_flow() ? 1 - t : std::sqrt(1 - clamped_variance(variance_, t));
}

double Path::sigma(double t) const {
  check_time(t);
  return is_flow() ? t : std::sqrt(clamped_variance(variance_, t));
}

std::pair<at::Tensor, at::Tensor> Path::alpha_sigma(const at::Tensor& t, std::int64_t dims) const {
  check(dims >= 1, "Path: dims: expected at least 1, got ", dims);
  check(t.dim() == 1, "Path: t: expected one time for each image, got shape ", t.sizes());
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dims), 1);
  shape[0] = t.size(0);
  const at::Tensor time = t.to(at::kDouble).reshape(shape);
  if (is_flow()) return {at::rsub(time, 1), time};
  const at::Tensor variance = at::clamp(variance_at(variance_, time), kSmallest, 1 - kSmallest);
  return {at::sqrt(at::rsub(variance, 1)), at::sqrt(variance)};
}

at::Tensor Path::mix(const at::Tensor& x0, const at::Tensor& noise, const at::Tensor& t) const {
  check_same("noise", noise, "x0", x0);
  check_times(t, x0);
  const auto [alpha, sigma] = alpha_sigma(t, x0.dim());
  return alpha.to(x0.scalar_type()) * x0 + sigma.to(x0.scalar_type()) * noise;
}

at::Tensor Path::mix(const at::Tensor& x0, const at::Tensor& noise, double t) const {
  check_same("noise", noise, "x0", x0);
  return x0 * alpha(t) + noise * sigma(t);
}

at::Tensor Path::target(const at::Tensor& x0, const at::Tensor& noise) const {
  check_same("noise", noise, "x0", x0);
  switch (prediction_) {
    case Prediction::velocity:
      return noise - x0;
    case Prediction::epsilon:
      return noise;
    case Prediction::x0:
      return x0;
  }
  fail("Path: prediction: expected one of the enumeration, got ", static_cast<int>(prediction_));
}

// velocity: x − t·(ε − x0) = x0 and x + (1 − t)·(ε − x0) = ε, with nothing to divide by.
Path::Weights Path::x0_weights(double t) const {
  check_time(t);
  if (prediction_ == Prediction::x0) return {0, 1};
  if (prediction_ == Prediction::velocity) return {1, -sigma(t)};
  return {1 / alpha(t), -sigma(t) / alpha(t)};
}

Path::Weights Path::noise_weights(double t) const {
  check_time(t);
  if (prediction_ == Prediction::epsilon) return {0, 1};
  if (prediction_ == Prediction::velocity) return {1, alpha(t)};
  const double least = std::max(sigma(t), kSmallest);
  return {1 / least, -alpha(t) / least};
}

at::Tensor Path::predicted_x0(const at::Tensor& x, const at::Tensor& output, double t) const {
  check_same("output", output, "x", x);
  const Weights weights = x0_weights(t);
  return weights.x == 0 ? output : x * weights.x + output * weights.output;
}

at::Tensor Path::predicted_x0(const at::Tensor& x, const at::Tensor& output, const at::Tensor& t) const {
  check_same("output", output, "x", x);
  check_times(t, x);
  if (prediction_ == Prediction::x0) return output;
  const auto [alpha, sigma] = alpha_sigma(t, x.dim());
  const at::Tensor removed = x - sigma.to(x.scalar_type()) * output;
  return prediction_ == Prediction::velocity ? removed : removed / alpha.to(x.scalar_type());
}

at::Tensor Path::predicted_noise(const at::Tensor& x, const at::Tensor& output, double t) const {
  check_same("output", output, "x", x);
  const Weights weights = noise_weights(t);
  return weights.x == 0 ? output : x * weights.x + output * weights.output;
}

at::Tensor Path::predicted_noise(const at::Tensor& x, const at::Tensor& output, const at::Tensor& t) const {
  check_same("output", output, "x", x);
  check_times(t, x);
  if (prediction_ == Prediction::epsilon) return output;
  const auto [alpha, sigma] = alpha_sigma(t, x.dim());
  const at::Tensor kept = alpha.to(x.scalar_type()) * output;
  if (prediction_ == Prediction::velocity) return x + kept;
  return (x - kept) / at::clamp(sigma, kSmallest).to(x.scalar_type());
}

}  // namespace pom::diffusion
