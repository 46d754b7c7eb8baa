// From 8-bit pictures to what Inception takes: the ways in which published scores resize and scale. N
// pictures.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace pom::eval {

// tensorflow: bilinear as TensorFlow 1 does it, corners at corners, without antialiasing; (u - 128) / 128
//             (ADM, TTUR, torch-fidelity, StyleGAN)
// torch:      bilinear with centres of pixels, without antialiasing; 2 u / 255 - 1 (pytorch-fid)
// clean:      bicubic with antialiasing, clipped; (u - 128) / 128 (clean-fid)
enum class InputRule { tensorflow, torch, clean };
InputRule input_rule(std::string_view name);  // an error that names them, of any other
std::string name_of(InputRule rule);

// (N, 3, H, W) uint8 -> (N, 3, side, side), 0 … 255, in fp32 or fp64.
at::Tensor resized(const at::Tensor& pictures, std::int64_t side, InputRule rule, at::ScalarType dtype);
// The same at 299 pixels, scaled.
at::Tensor inception_input(const at::Tensor& pictures, InputRule rule, at::ScalarType dtype);

}  // namespace pom::eval
