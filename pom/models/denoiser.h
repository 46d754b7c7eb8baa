// The network made ready to sample: no gradients, everything that does not depend on the picture computed
// before the first step, the rest in fused operations on buffers that are reused.
// Shapes: B pictures, C channels, H x W the latent, N tokens, d width.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "pom/models/weights.h"

namespace pom::models {

class Denoiser {
 public:
  // Weights as read_weights gives them, in any dtype; products run in `dtype` (fp32, bf16, fp16, fp64, or on
  // a GPU fp8, Float8_e4m3fn), on the weights' device, the residual stream in fp32 (fp64). In fp8 those of
  // the blocks do; what is around them is bf16. Move the weights in, and each is given back to the system as
  // soon as its conversion is there; what is not converted must not change any more.
  Denoiser(const NetworkConfig& config, Weights weights, at::ScalarType dtype = at::kFloat);
  ~Denoiser();
  Denoiser(Denoiser&&) noexcept;
  Denoiser& operator=(Denoiser&&) noexcept;

  const NetworkConfig& config() const;

  // For the calls to come: latents of height x width of these classes (one per picture; config().classes is
  // "no class"), evaluated at these times in this order. Position code, time embeddings and modulations are
  // made here (the modulations of many steps at once, a bounded number at a time).
  void plan(std::span<const std::int64_t> classes, std::int64_t height, std::int64_t width,
            std::span<const double> times);

  // x (B, C, H, W) fp32 at time t -> (B, C, H, W), or (2B, C, H, W) where both: the second half without
  // class. The result is a buffer that the next call overwrites. A time that was not planned is computed
  // then. On the CPU row i depends on picture i alone, bit for bit. On a GPU evaluations become graphs
  // (pom/ops/cuda/graphs.h), and nobody waits for the device but in the first ones; in fp8 the first
  // evaluation after plan() runs in bf16 and measures what scales the others take.
  at::Tensor operator()(const at::Tensor& x, double t, bool both);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::models
