// From 8-bit pictures to what networks of features take: the ways in which published scores resize, and how
// Inception's scale. N pictures.
#pragma once

#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace pom::eval {

// tensorflow: bilinear as TensorFlow 1 does it, corners at corners, without antialiasing; (u - 128) / 128
//             (ADM, TTUR, torch-fidelity, StyleGAN)
// torch:      bilinear with centres of pixels, without antialiasing; 2 u / 255 - 1 (pytorch-fid)
// clean:      bicubic with antialiasing, clipped; (u - 128) / 128 (clean-fid)
// bicubic:    the same without clipping, of DINOv2 (EDM2)
// pillow:     Pillow's bicubic, rounded to 8 bits, of DINOv2 (dgm-eval)
enum class InputRule { tensorflow, torch, clean, bicubic, pillow };
InputRule input_rule(std::string_view name);  // an error that names them, of any other
std::string name_of(InputRule rule);

// (N, 3, H, W) uint8 -> (N, 3, side, side), 0 … 255, in fp32 or fp64.
at::Tensor resized(const at::Tensor& pictures, std::int64_t side, InputRule rule, at::ScalarType dtype);
// The same at 299 pixels, scaled; by one of Inception's rules.
at::Tensor inception_input(const at::Tensor& pictures, InputRule rule, at::ScalarType dtype);

}  // namespace pom::eval
