#include "pom/nn/video_position.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"

namespace pom::nn {
namespace {

double angle_of(std::int64_t block, std::int64_t i, std::int64_t frequencies, const TimeCode& code) {
  const double period = static_cast<double>(code.period);
  if (code.relative()) {
    const std::int64_t last = code.length - 1;
    const double u = last > 0 ? static_cast<double>(block) / static_cast<double>(last) : 0;
    return position_angle(PositionForm::narrow, u, i, frequencies);
  }
  if (code.form == TimeCode::Form::geometric)
    return static_cast<double>(block) *
           std::pow(period, -static_cast<double>(i) / static_cast<double>(frequencies));
  const std::int64_t phase = block % code.period * ((i + 1) % code.period) % code.period;
  return 2 * std::numbers::pi * static_cast<double>(phase) / period;
}

// One number at a time: see embeddings.cpp.
at::Tensor time_code_host(const at::Tensor& blocks, std::int64_t width, const TimeCode& code) {
  const std::int64_t frequencies = width / 2;
  at::Tensor values = at::empty({blocks.numel(), width}, at::kDouble);
  const std::int64_t* block = blocks.const_data_ptr<std::int64_t>();
  double* out = values.data_ptr<double>();
  for (std::int64_t b = 0; b < blocks.numel(); ++b, out += width)
    for (std::int64_t i = 0; i < frequencies; ++i) {
      const double angle = angle_of(block[b], i, frequencies, code);
      out[i] = std::sin(angle);
      out[frequencies + i] = std::cos(angle);
    }
  return values;
}

// position_angle of the form narrow, of many.
at::Tensor relative_angles(const at::Tensor& blocks, const at::Tensor& i, const TimeCode& code) {
  const double last = static_cast<double>(std::max<std::int64_t>(code.length - 1, 1));
  const double steps = static_cast<double>(std::max<std::int64_t>(i.size(0) - 1, 1));
  const at::Tensor frequency = i.to(at::kDouble) * (1.5 / steps) + 0.5;
  return (blocks.to(at::kDouble) * (std::numbers::pi / last) + 1).unsqueeze(1) * frequency;
}

// Where the numbers are: the host would have to wait for them.
at::Tensor time_code_there(const at::Tensor& blocks, std::int64_t width, const TimeCode& code) {
  const at::Tensor i = at::arange(width / 2, blocks.options());
  at::Tensor angle;
  if (code.relative()) {
    angle = relative_angles(blocks, i, code);
  } else if (code.form == TimeCode::Form::geometric) {
    const at::Tensor exponent = i.to(at::kDouble) / static_cast<double>(-(width / 2));
    angle = blocks.to(at::kDouble).unsqueeze(1) * at::pow(static_cast<double>(code.period), exponent);
  } else {
    const at::Tensor phase =
        (blocks.remainder(code.period).unsqueeze(1) * (i + 1).remainder(code.period)).remainder(code.period);
    angle = phase.to(at::kDouble) * (2 * std::numbers::pi / static_cast<double>(code.period));
  }
  return at::cat({angle.sin(), angle.cos()}, 1);
}

}  // namespace

TimeCode TimeCode::named(std::string_view form, std::int64_t period) {
  check(period >= 2, "time code: period: expected at least 2 blocks, got ", period);
  if (form == "periodic") return {Form::periodic, period};
  if (form == "geometric") return {Form::geometric, period};
  if (form == "relative") return {Form::relative, period};
  if (form == "none") return {Form::none, period};
  fail("time code: form: unknown name \"", form, "\"",
       suggestion(form, std::vector<std::string>{"periodic", "geometric", "relative", "none"}));
}

at::Tensor time_code(const at::Tensor& blocks, std::int64_t width, const TimeCode& code) {
  check(blocks.scalar_type() == at::kLong, "time_code: blocks: expected int64, got ", blocks.scalar_type());
  check(width >= 2 && width % 2 == 0, "time_code: width: expected an even number, got ", width);
  check(!code.relative() || code.length >= 1,
        "time_code: length: expected the blocks of the clip, at least 1, for a relative code, got ",
        code.length);
  std::vector<std::int64_t> shape = blocks.sizes().vec();
  shape.push_back(width);
  if (code.form == TimeCode::Form::none) return at::zeros(shape, blocks.options().dtype(at::kDouble));
  const at::Tensor flat = blocks.reshape({-1}).contiguous();
  return (blocks.is_cpu() ? time_code_host(flat, width, code) : time_code_there(flat, width, code))
      .reshape(shape);
}

namespace {

// Which channels the place has; the time has the others.
struct PlaceChannels {
  std::int64_t first, count;
};

PlaceChannels place_channels(const char* operation, std::int64_t dim, PositionForm form) {
  check(dim >= 8 && dim % 2 == 0, operation, ": dim: expected an even number of at least 8, got ", dim);
  if (form == PositionForm::odd) return {0, 4 * (dim / 6)};
  check(dim % 8 == 0, operation, ": dim: expected a multiple of 8 with the form narrow, got ", dim);
  return {dim / 2, dim / 2};
}

}  // namespace

at::Tensor clip_place_code(std::int64_t rows, std::int64_t columns, std::int64_t dim, at::ScalarType dtype,
                           PositionForm form) {
  const auto [first, count] = place_channels("clip_place_code", dim, form);
  return at::constant_pad_nd(position_code(rows, columns, count, dtype, form), {first, dim - first - count});
}

at::Tensor clip_time_code(const at::Tensor& blocks, std::int64_t dim, const TimeCode& code,
                          at::ScalarType dtype, PositionForm form) {
  const auto [first, count] = place_channels("clip_time_code", dim, form);
  const at::Tensor time = time_code(blocks, dim - count, code).to(dtype);
  const std::int64_t before = first == 0 ? count : 0;
  return at::constant_pad_nd(time, {before, count - before});
}

}  // namespace pom::nn
