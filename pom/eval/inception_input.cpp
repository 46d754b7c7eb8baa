#include "pom/eval/inception_input.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include "pom/base/error.h"
#include "pom/data/resample.h"
#include "pom/eval/inception.h"
#include "pom/eval/shapes_eval.h"

namespace pom::eval {
namespace {

constexpr std::pair<std::string_view, InputRule> rules[] = {{"tensorflow", InputRule::tensorflow},
                                                            {"torch", InputRule::torch},
                                                            {"clean", InputRule::clean},
                                                            {"bicubic", InputRule::bicubic},
                                                            {"pillow", InputRule::pillow}};

// Along one side: the pixel before, the one after, and how far it is from the first to the second.
struct Taps {
  at::Tensor below, above, fraction;
};

// Place i looks at i·from/to; the ratio is a float there, and so are the places.
Taps corner_taps(std::int64_t from, std::int64_t to, const at::TensorOptions& options) {
  const float ratio = static_cast<float>(from) / static_cast<float>(to);
  std::vector<std::int64_t> below, above;
  std::vector<float> fraction;
  for (std::int64_t i = 0; i < to; ++i) {
    const float place = static_cast<float>(i) * ratio;
    below.push_back(std::min<std::int64_t>(static_cast<std::int64_t>(std::floor(place)), from - 1));
    above.push_back(std::min(below.back() + 1, from - 1));
    fraction.push_back(place - static_cast<float>(below.back()));
  }
  const at::TensorOptions index = options.dtype(at::kLong);
  return {at::tensor(below, index), at::tensor(above, index), at::tensor(fraction).to(options)};
}

at::Tensor bilinear_from_corners(const at::Tensor& x, std::int64_t side) {
  const Taps columns = corner_taps(x.size(3), side, x.options()),
             rows = corner_taps(x.size(2), side, x.options());
  const at::Tensor left = x.index_select(3, columns.below);
  const at::Tensor wide = left + (x.index_select(3, columns.above) - left) * columns.fraction;
  const at::Tensor top = wide.index_select(2, rows.below);
  return top + (wide.index_select(2, rows.above) - top) * rows.fraction.unsqueeze(1);
}

// As Pillow does it, to the bit; on the host.
at::Tensor resampled(const at::Tensor& pictures, std::int64_t side, at::ScalarType dtype) {
  std::vector<io::Image> images = unstack_pictures(pictures.to(at::kCPU));
  for (io::Image& image : images)
    image = data::resample(image, static_cast<int>(side), static_cast<int>(side), data::Filter::bicubic);
  return stack_pictures(images).to(dtype);
}

}  // namespace

InputRule input_rule(std::string_view name) {
  for (const auto& [known, rule] : rules)
    if (known == name) return rule;
  fail("eval: resize: expected tensorflow, torch, clean, bicubic or pillow, got \"", name, "\"");
}

std::string name_of(InputRule rule) {
  return std::string(std::ranges::find(rules, rule, &std::pair<std::string_view, InputRule>::second)->first);
}

at::Tensor resized(const at::Tensor& pictures, std::int64_t side, InputRule rule, at::ScalarType dtype) {
  check(pictures.dim() == 4 && pictures.size(1) == 3 && pictures.scalar_type() == at::kByte,
        "eval: pictures: expected uint8 of shape (N, 3, H, W), got ", pictures.scalar_type(), " of shape ",
        pictures.sizes());
  if (rule == InputRule::pillow) return resampled(pictures, side, dtype);
  const at::Tensor x = pictures.to(dtype);
  if (rule == InputRule::tensorflow) return bilinear_from_corners(x, side);
  if (rule == InputRule::torch) return at::upsample_bilinear2d(x, {side, side}, /*align_corners=*/false);
  const at::Tensor y = at::_upsample_bicubic2d_aa(x, {side, side}, /*align_corners=*/false);
  return rule == InputRule::clean ? y.clamp(0, 255) : y;
}

at::Tensor inception_input(const at::Tensor& pictures, InputRule rule, at::ScalarType dtype) {
  check(rule == InputRule::tensorflow || rule == InputRule::torch || rule == InputRule::clean,
        "eval: resize: expected one of Inception's, got ", name_of(rule));
  const at::Tensor x = resized(pictures, inception_side, rule, dtype);
  return rule == InputRule::torch ? x / 255 * 2 - 1 : (x - 128) / 128;
}

}  // namespace pom::eval
