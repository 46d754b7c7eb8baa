// Where the gradients of weights go that are trained: a GEMM whose result is one writes it there itself,
// instead of into memory of its own that autograd adds to zeros. The first result of a batch replaces what is
// there, later ones are added; who computes a gradient otherwise returns it to autograd, which adds it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::ops {

class GradientPlaces {
 public:
  // Weights are leaves with gradients in fp32, which are parts of `flat` and come in this order there.
  GradientPlaces(at::Tensor flat, std::span<const at::Tensor> weights);
  ~GradientPlaces();
  GradientPlaces(const GradientPlaces&) = delete;
  GradientPlaces& operator=(const GradientPlaces&) = delete;

  // From here to finish() the sum over backward passes is taken; then every gradient is there, zero where no
  // pass has reached the weight. What a GEMM wrote last time it is expected to write again, and only the
  // rest is set to zero first.
  void begin();
  void finish();

  // The gradient of a weight as doutᵀ in, summed in fp32: whether it was taken. From any thread.
  static bool take(const at::Tensor& weight, const at::Tensor& dout, const at::Tensor& in);

  std::int64_t zeroed() const { return zeroed_; }  // values in begin() and finish() so far, for tests

 private:
  struct Place {
    at::Tensor weight, gradient;
    std::int64_t begin = 0;
    unsigned hook = 0;
    bool direct = false;  // a GEMM has written it before
    bool there = false;   // there is something of this sum
  };
  // With the lock of all.
  void before_autograd(std::size_t place);
  void find_ranges();
  void zero(at::Tensor values);

  at::Tensor flat_;
  std::vector<Place> places_;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;  // begin and count of what begin() sets to zero
  bool open_ = false;
  std::int64_t zeroed_ = 0;
};

}  // namespace pom::ops
