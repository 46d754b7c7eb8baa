#include "cli/experiment/doses.h"

#include <cmath>
#include <numbers>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include "pom/base/noise.h"

namespace pom::cli::experiment {
namespace {

// (…, H, W) as pictures of one channel, and back.
at::Tensor mean_of_nine(const at::Tensor& x) {
  const at::Tensor planes = x.reshape({-1, 1, x.size(-2), x.size(-1)});
  return at::avg_pool2d(planes, 3, 1, 1, /*ceil_mode=*/false, /*count_include_pad=*/false).view(x.sizes());
}

at::Tensor as_bytes(const at::Tensor& x) {
  return x.round().clamp(0, 255).to(at::kByte);
}

at::Tensor softer(const at::Tensor& pictures) {
  const at::Tensor x = pictures.to(at::kFloat);
  return as_bytes(at::lerp(x, mean_of_nine(x), 0.5));
}

at::Tensor blurred(const at::Tensor& pictures) {
  return as_bytes(mean_of_nine(mean_of_nine(pictures.to(at::kFloat))));
}

at::Tensor grainy(const at::Tensor& pictures) {
  constexpr double levels = 8;
  at::Tensor noise = at::empty(pictures.sizes(), at::kFloat);
  fill_normal(noise.data_ptr<float>(), noise.numel(), {0, noise_for::data_content, 0x646f7365});
  return as_bytes(pictures.to(at::kFloat) + noise * levels);
}

// About the axis of greys, by a fortieth of a turn.
at::Tensor turned(const at::Tensor& pictures) {
  constexpr double angle = 2 * std::numbers::pi / 40;
  const double c = std::cos(angle), third = (1 - c) / 3, s = std::sin(angle) / std::sqrt(3.0);
  const at::Tensor turn = at::tensor({c + third, third - s, third + s, third + s, c + third, third - s,
                                      third - s, third + s, c + third},
                                     at::kFloat)
                              .view({3, 3});
  return as_bytes(at::einsum("ij,nj...->ni...", {turn, pictures.to(at::kFloat)}));
}

// Of every twenty the first, by pictures of `others` numbers.
at::Tensor one_in_twenty(const at::Tensor& pictures, const at::Tensor& others) {
  const at::Tensor own = at::arange(pictures.size(0));
  return pictures.index_select(0, at::where(own.remainder(20).eq(0), others, own));
}

at::Tensor exchanged(const at::Tensor& pictures) {
  const std::int64_t n = pictures.size(0);
  return one_in_twenty(pictures, (at::arange(n) + n / 2).remainder(n));
}

at::Tensor repeated(const at::Tensor& pictures) {
  return one_in_twenty(pictures, at::arange(pictures.size(0)) * 0);
}

}  // namespace

const std::vector<Dose>& doses() {
  static const std::vector<Dose> all = {{"softer", softer},
                                        {"blurred", blurred},
                                        {"grain", grainy},
                                        {"hues turned", turned},
                                        {"1 in 20 another's", exchanged},
                                        {"1 in 20 the same", repeated}};
  return all;
}

}  // namespace pom::cli::experiment
