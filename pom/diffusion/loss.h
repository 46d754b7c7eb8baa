// The training loss: how wrong the network's answers are, picture by picture. B pictures of any shape (B, …).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/path.h"

namespace pom::diffusion {

class Loss {
 public:
  // The mean square of answer − target; of flow-x0 that of the velocity, (x_t − x0)/σ, that the answer means,
  // with σ at least 0.05.
  static Loss mse() { return Loss(Kind::mse, 0); }
  // The same, weighted by time as min-SNR-γ: the error of the predicted x0 times min(SNR, γ), SNR = α²/σ².
  // Times at which denoising is easy count less, so that they do not pull against the others.
  static Loss min_snr(double gamma = 5);
  // "mse" or "min-snr". Other names are errors.
  static Loss named(std::string_view name, double gamma = 5);
  static std::vector<std::string> names();

  std::string_view name() const;
  bool operator==(const Loss&) const = default;

  // output: the network's answer to path.mix(x0, noise, t), t (B) -> (B), fp32 or fp64. Differentiable in
  // output, x0 and noise.
  at::Tensor operator()(const Path& path, const at::Tensor& output, const at::Tensor& x0,
                        const at::Tensor& noise, const at::Tensor& t) const;
  // What each picture's mean square is multiplied with: (B), fp64.
  at::Tensor weights(const Path& path, const at::Tensor& t) const;

 private:
  enum class Kind { mse, min_snr };
  Loss(Kind kind, double gamma) : kind_(kind), gamma_(gamma) {}

  Kind kind_;
  double gamma_;
};

}  // namespace pom::diffusion
