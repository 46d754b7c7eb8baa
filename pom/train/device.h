// Where a run computes, and in what precision.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace pom::train {

// "cpu, 2 threads", "cuda:0"
std::string device_text(const at::Device& device);

// The same bits from run to run: asks CUDA's libraries for algorithms with a fixed order of sums.
void make_deterministic(const at::Device& device);

// Masters: fp32, or fp64 for precision "fp64".
at::ScalarType master_dtype(std::string_view precision);

// Waits until the device has done what it was given.
void synchronize(const at::Device& device);

// While it lives, products on the device take bf16 where the precision says so; weights are converted once
// and kept until it ends.
class Precision {
 public:
  Precision(const at::Device& device, std::string_view precision);
  ~Precision();
  Precision(const Precision&) = delete;
  Precision& operator=(const Precision&) = delete;

 private:
  at::DeviceType device_;
  bool lower_, before_ = false;
  at::ScalarType dtype_before_ = at::kFloat;
};

}  // namespace pom::train
