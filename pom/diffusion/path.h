// The path from a picture to noise: x_t = α(t)·x0 + σ(t)·ε, t = 0 clean, t = 1 noise, and what the network
// predicts of it. B pictures of any shape (B, …); a time is one double for all of them or a tensor (B), for
// training.
//
//   flow      α = 1 − t, σ = t; the network predicts the velocity ε − x0
//   flow-x0   the same mixture; the network predicts x0. A picture has fewer ways to be than noise has, so
//   that
//             patches may have more values than the network is wide
//   epsilon   α = √(1 − σ²), and σ² one of
//               linear    t
//               sine      sin(πt/2)
//               cosine    1 − cos(πt/2)
//               sigmoid   s(4t − 2) brought to run from 0 to 1, s the logistic function
//               ddpm-linear  1 − (1 − β_1)…(1 − β_n) at t = n/1000, β evenly from 1e-4 to 0.02: the thousand
//                            steps of DDPM, of which t = n/1000 is number n − 1; between them the logarithm
//                            of the product runs straight
//             each clamped to [1e-6, 1 − 1e-6]; the network predicts ε, from which x0 = (x − σε)/α needs α >
//             0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::diffusion {

enum class Variance { linear, sine, cosine, sigmoid, ddpm_linear };

enum class Prediction { velocity, epsilon, x0 };

class Path {
 public:
  static Path flow() { return Path(Prediction::velocity, Variance::linear); }
  static Path flow_x0() { return Path(Prediction::x0, Variance::linear); }
  static Path epsilon(Variance variance = Variance::linear) { return Path(Prediction::epsilon, variance); }
  // "flow", "flow-x0", or "epsilon" with the name of a variance ("linear" where it is empty). Other names are
  // errors.
  static Path named(std::string_view path, std::string_view variance = "");
  static std::vector<std::string> names();
  static std::vector<std::string> variance_names();

  std::string_view name() const;           // of names()
  std::string_view variance_name() const;  // empty for flows
  Prediction prediction() const { return prediction_; }
  bool operator==(const Path&) const = default;

  double alpha(double t) const;
  double sigma(double t) const;
  // α(t) and σ(t) for t (B): fp64, shaped (B, 1, …) to multiply pictures of `dims` dimensions.
  std::pair<at::Tensor, at::Tensor> alpha_sigma(const at::Tensor& t, std::int64_t dims) const;

  // x_t, and what the network should answer for it. Plain ATen operators, in the dtype of x0.
  at::Tensor mix(const at::Tensor& x0, const at::Tensor& noise, const at::Tensor& t) const;
  at::Tensor mix(const at::Tensor& x0, const at::Tensor& noise, double t) const;
  at::Tensor target(const at::Tensor& x0, const at::Tensor& noise) const;

  // What an answer of the network means: the value is `x`·x_t + `output`·answer. Finite for every t in [0,
  // 1]: the noise that flow-x0 leaves is divided by σ, at least 1e-6.
  struct Weights {
    double x, output;
  };
  Weights x0_weights(double t) const;
  Weights noise_weights(double t) const;
  at::Tensor predicted_x0(const at::Tensor& x, const at::Tensor& output, double t) const;
  at::Tensor predicted_x0(const at::Tensor& x, const at::Tensor& output, const at::Tensor& t) const;
  at::Tensor predicted_noise(const at::Tensor& x, const at::Tensor& output, double t) const;
  at::Tensor predicted_noise(const at::Tensor& x, const at::Tensor& output, const at::Tensor& t) const;

 private:
  Path(Prediction prediction, Variance variance) : prediction_(prediction), variance_(variance) {}
  bool is_flow() const { return prediction_ != Prediction::epsilon; }

  Prediction prediction_;
  Variance variance_;
};

}  // namespace pom::diffusion
