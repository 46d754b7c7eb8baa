// The referee of the samplers: a mixture of K isotropic Gaussians in D dimensions, whose perfect network is
// known. For x = α·x0 + σ·ε the component k of x is N(α·m_k, v_k), v_k = α²s_k² + σ², and
//   E[x0 | x] = Σ_k P(k | x) · (m_k + α·s_k²/v_k·(x − α·m_k)).
// Computed in fp64, row by row, so that a row's answer does not depend on the others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include "pom/diffusion/path.h"
#include "pom/diffusion/sampler.h"

namespace pom::diffusion::testing {

struct Component {
  double weight, std;
  std::vector<double> mean;  // D
};

using Mixture = std::vector<Component>;

// Three components in the plane, of different weights and widths, for tests of accuracy.
inline Mixture plane() {
  return {{0.5, 0.30, {-1.0, 0.4}}, {0.3, 0.45, {0.8, 0.9}}, {0.2, 0.25, {0.5, -1.1}}};
}

// Two narrow components on the line, for statistics.
inline Mixture line() {
  return {{0.7, 0.20, {-0.8}}, {0.3, 0.10, {1.1}}};
}

// P(k | x) for every k.
inline std::vector<double> responsibilities(const Mixture& mixture, const std::vector<double>& x,
                                            double alpha, double sigma) {
  std::vector<double> logs;
  for (const Component& part : mixture) {
    const double v = alpha * alpha * part.std * part.std + sigma * sigma;
    double square = 0;
    for (std::size_t d = 0; d < x.size(); ++d) square += std::pow(x[d] - alpha * part.mean[d], 2);
    logs.push_back(std::log(part.weight) - square / (2 * v) -
                   static_cast<double>(x.size()) / 2 * std::log(v));
  }
  const double most = *std::max_element(logs.begin(), logs.end());
  double sum = 0;
  for (double& value : logs) sum += value = std::exp(value - most);
  for (double& value : logs) value /= sum;
  return logs;
}

inline std::vector<double> expected_x0(const Mixture& mixture, const std::vector<double>& x, double alpha,
                                       double sigma) {
  const std::vector<double> shares = responsibilities(mixture, x, alpha, sigma);
  std::vector<double> x0(x.size(), 0);
  for (std::size_t k = 0; k < mixture.size(); ++k) {
    const double s2 = mixture[k].std * mixture[k].std;
    const double slope = alpha * s2 / (alpha * alpha * s2 + sigma * sigma);
    for (std::size_t d = 0; d < x.size(); ++d)
      x0[d] += shares[k] * (mixture[k].mean[d] + slope * (x[d] - alpha * mixture[k].mean[d]));
  }
  return x0;
}

template <class T>
void answer_rows(const Mixture& mixture, const Path& path, const at::Tensor& x, double t, at::Tensor& out) {
  const double alpha = path.alpha(t), sigma = path.sigma(t);
  const std::size_t size = mixture[0].mean.size();
  const T* in = x.const_data_ptr<T>();
  T* to = out.data_ptr<T>();
  for (std::int64_t at = 0; at < x.numel(); at += static_cast<std::int64_t>(size)) {
    const std::vector<double> row(in + at, in + at + size);
    const std::vector<double> x0 = expected_x0(mixture, row, alpha, sigma);
    for (std::size_t d = 0; d < size; ++d) {
      const double noise = (row[d] - alpha * x0[d]) / sigma;
      const Prediction asked = path.prediction();
      to[at + static_cast<std::int64_t>(d)] = static_cast<T>(asked == Prediction::x0         ? x0[d]
                                                             : asked == Prediction::velocity ? noise - x0[d]
                                                                                             : noise);
    }
  }
}

// x: any shape whose elements, in order, are rows of D; contiguous fp32 or fp64 on the CPU.
inline Model perfect_model(Mixture mixture, const Path& path) {
  return [mixture = std::move(mixture), path](const at::Tensor& x, double t) {
    at::Tensor out = at::empty_like(x);
    if (x.scalar_type() == at::kDouble)
      answer_rows<double>(mixture, path, x, t, out);
    else
      answer_rows<float>(mixture, path, x, t, out);
    return out;
  };
}

}  // namespace pom::diffusion::testing
