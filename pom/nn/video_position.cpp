#include "pom/nn/video_position.h"

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
#include "pom/nn/embeddings.h"

namespace pom::nn {
namespace {

double angle_of(std::int64_t block, std::int64_t i, std::int64_t frequencies, const TimeCode& code) {
  const double period = static_cast<double>(code.period);
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

// Where the numbers are: the host would have to wait for them.
at::Tensor time_code_there(const at::Tensor& blocks, std::int64_t width, const TimeCode& code) {
  const at::Tensor i = at::arange(width / 2, blocks.options());
  at::Tensor angle;
  if (code.form == TimeCode::Form::geometric) {
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
  if (form == "none") return {Form::none, period};
  fail("time code: form: unknown name \"", form, "\"",
       suggestion(form, std::vector<std::string>{"periodic", "geometric", "none"}));
}

at::Tensor time_code(const at::Tensor& blocks, std::int64_t width, const TimeCode& code) {
  check(blocks.scalar_type() == at::kLong, "time_code: blocks: expected int64, got ", blocks.scalar_type());
  check(width >= 2 && width % 2 == 0, "time_code: width: expected an even number, got ", width);
  std::vector<std::int64_t> shape = blocks.sizes().vec();
  shape.push_back(width);
  if (code.form == TimeCode::Form::none) return at::zeros(shape, blocks.options().dtype(at::kDouble));
  const at::Tensor flat = blocks.reshape({-1}).contiguous();
  return (blocks.is_cpu() ? time_code_host(flat, width, code) : time_code_there(flat, width, code))
      .reshape(shape);
}

namespace {

// Channels of the place.
std::int64_t place_channels(const char* operation, std::int64_t dim) {
  check(dim >= 8 && dim % 2 == 0, operation, ": dim: expected an even number of at least 8, got ", dim);
  return 4 * (dim / 6);
}

}  // namespace

at::Tensor clip_place_code(std::int64_t rows, std::int64_t columns, std::int64_t dim, at::ScalarType dtype) {
  const std::int64_t early = place_channels("clip_place_code", dim);
  return at::constant_pad_nd(position_code(rows, columns, early, dtype), {0, dim - early});
}

at::Tensor clip_time_code(const at::Tensor& blocks, std::int64_t dim, const TimeCode& code,
                          at::ScalarType dtype) {
  const std::int64_t early = place_channels("clip_time_code", dim);
  return at::constant_pad_nd(time_code(blocks, dim - early, code).to(dtype), {early, 0});
}

}  // namespace pom::nn
