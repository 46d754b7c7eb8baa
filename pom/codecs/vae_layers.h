// Private to the room: the parts that convolutional autoencoders are made of. Activations are (B, C, H, W) in
// channels-last memory throughout, so that a pixel's channels are neighbours. Without gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "pom/ops/cuda/group_norm.h"
#include "pom/ops/group_norm.h"
#include "pom/ops/winograd.h"

namespace pom::codecs {

// A tensor of a network by its name, in the dtype and on the device where the network runs.
using TensorSource = std::function<at::Tensor(const std::string&)>;

struct Conv {
  at::Tensor weight, bias;                             // (out, in, k, k), (out)
  std::shared_ptr<const ops::WinogradWeights> packed;  // in their place: a 3x3 convolution on a CPU

  std::int64_t out_channels() const { return packed ? packed->out : weight.size(0); }
  std::int64_t kernel() const { return packed ? 3 : weight.size(2); }
  bool defined() const { return packed || weight.defined(); }

  static Conv read(const TensorSource& source, const std::string& name);
  // As this processor multiplies fastest: 3x3 with stride 1 packed, and weights of 16 bits as fp32 where
  // there are no products of 16 bits.
  static Conv read_prepared(const TensorSource& source, const std::string& name, bool stride_1 = true);
};

struct GroupNorm {
  at::Tensor weight, bias;  // (C); in fp32 on a GPU
  std::int64_t groups = 32;
  double epsilon = 1e-6;
  static GroupNorm read(const TensorSource& source, const std::string& name, std::int64_t groups,
                        double epsilon = 1e-6);
};

// Values of x that a convolution of 16 bits widens at a time where it runs in fp32.
inline constexpr std::int64_t widened_at_once = std::int64_t{1} << 22;

// What a convolution made before its bias was added: a pass over the tensor that the next layer, which reads
// it anyway, can save. The bias is undefined where it was added already.
struct Biased {
  at::Tensor x, bias;
};

// An activation, and where they were taken on the way the sums that the norm after it is made of: see
// pom/ops/cuda/group_norm.h.
using Activation = ops::cuda::Summed;

// 3x3 (or k x k) with zero padding k / 2.
Biased conv(const at::Tensor& x, const Conv& layer);
// The same, + other; writes into other's memory or gives new. A norm of so many groups comes next (0: none).
Activation conv_add(const at::Tensor& x, const Conv& layer, std::int64_t groups, const Biased& other);
// 3x3, stride 2, one zero column on the right and one zero row below: a side of n becomes n / 2.
Biased conv_down(const at::Tensor& x, const Conv& layer);

// x + bias, and + other where it is defined; a norm of so many groups comes next (0: none). May write into
// x's memory.
Activation complete(const Biased& x, std::int64_t groups, const Biased& other = {});

// What a group norm is with statistics that are known: x scale + shift, (B, C, 1, 1) each. Then SiLU.
struct NormFactors {
  at::Tensor scale, shift;
};
at::Tensor normed(const at::Tensor& x, const NormFactors& factors, bool silu = true, bool in_place = false);

// Mean of each channel and the sum of the squared distances from it, (B, C) in fp64; and what a norm is with
// those of a whole picture of so many pixels, in fp32, or fp64 where x is.
ops::ChannelMoments moments_of(const at::Tensor& x);

NormFactors factors_of(const ops::ChannelMoments& moments, std::int64_t pixels, const GroupNorm& norm,
                       at::ScalarType dtype);

// GroupNorm with biased variance, then SiLU where asked for.
// In place it may overwrite x; what a convolution made is overwritten in any case.
at::Tensor normed(const Activation& x, const GroupNorm& norm, bool silu = true, bool in_place = false);
at::Tensor normed(const Biased& x, const GroupNorm& norm, bool silu = true);

// Nearest x 2 and then a 3x3 convolution: of the four pixels that an input pixel becomes, each sees 2x2 of
// the small map, by the sums of the kernel's rows and columns that fall on one of its pixels. One convolution
// of the small map with four times the channels, 4/9 of the multiply-adds, and the large map is never made.
// On a CPU, packed, a quarter of them (pom/ops/winograd.h).
struct UpConv {
  at::Tensor weight, bias;  // (4 out, in, 2, 2): parities (0, 0), (0, 1), (1, 0), (1, 1) of (row, column)
  std::shared_ptr<const ops::WinogradWeights> packed;  // in their place
  std::int64_t out_channels() const { return packed ? packed->out : weight.size(0) / 4; }
  static UpConv read(const TensorSource& source, const std::string& name);
};
UpConv fold_upsampling(const at::Tensor& weight, const at::Tensor& bias);  // (out, in, 3, 3)
Activation conv_up(const at::Tensor& x, const UpConv& layer, std::int64_t groups);

struct Resnet {
  GroupNorm norm1, norm2;
  Conv conv1, conv2, shortcut;  // the last one where channels change
  std::int64_t out_channels() const { return conv1.out_channels(); }
  static Resnet read(const TensorSource& source, const std::string& name, std::int64_t in, std::int64_t out,
                     std::int64_t groups);
  Activation operator()(Activation x) const;  // x is overwritten
};

// One head as wide as the channels, over all pixels.
struct PixelAttention {
  GroupNorm norm;
  at::Tensor qkv, qkv_bias, out, out_bias;  // (3 C, C), (3 C), (C, C), (C); in the dtype of products
  static PixelAttention read(const TensorSource& source, const std::string& name, std::int64_t groups);
  Activation operator()(Activation x) const;  // on a CPU x is overwritten

 private:
  at::Tensor at_once(const Activation& x) const;
  void by_rows(at::Tensor x) const;
};

}  // namespace pom::codecs
