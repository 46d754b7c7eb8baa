#include "pom/nn/embeddings.h"

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"

namespace pom::nn {

PositionForm position_form(std::string_view name) {
  if (name == "odd") return PositionForm::odd;
  if (name == "narrow") return PositionForm::narrow;
  fail("position code: form: unknown name \"", name, "\"",
       suggestion(name, std::vector<std::string>{"odd", "narrow"}));
}

double position_angle(PositionForm form, double u, std::int64_t i, std::int64_t frequencies) {
  if (form == PositionForm::odd) return std::numbers::pi * static_cast<double>(2 * i + 1) * u;
  const double step = frequencies > 1 ? 1.5 / static_cast<double>(frequencies - 1) : 0;
  return (0.5 + step * static_cast<double>(i)) * (std::numbers::pi * u + 1);
}

namespace {

// (side, dim / 2): sines, then cosines. One number at a time: a vector's sine need not have the last bit of a
// single one, and a position must have one code whatever the number of threads.
at::Tensor axis_code(std::int64_t side, std::int64_t dim, PositionForm form) {
  const std::int64_t frequencies = dim / 4;
  at::Tensor code = at::empty({side, dim / 2}, at::kDouble);
  double* out = code.data_ptr<double>();
  for (std::int64_t i = 0; i < side; ++i, out += dim / 2) {
    const double place = side > 1 ? static_cast<double>(i) / static_cast<double>(side - 1) : 0;
    for (std::int64_t f = 0; f < frequencies; ++f) {
      const double angle = position_angle(form, place, f, frequencies);
      out[f] = std::sin(angle);
      out[frequencies + f] = std::cos(angle);
    }
  }
  return code;
}

}  // namespace

at::Tensor position_code(std::int64_t rows, std::int64_t columns, std::int64_t dim, at::ScalarType dtype,
                         PositionForm form) {
  check(rows >= 1 && columns >= 1, "position_code: rows, columns: expected at least 1, got ", rows, ", ",
        columns);
  check(dim >= 4 && dim % 4 == 0, "position_code: dim: expected a multiple of 4, got ", dim);
  const at::Tensor x = axis_code(columns, dim, form).unsqueeze(0).expand({rows, columns, dim / 2});
  const at::Tensor y = axis_code(rows, dim, form).unsqueeze(1).expand({rows, columns, dim / 2});
  return at::cat({x, y}, 2).reshape({rows * columns, dim}).to(dtype);
}

namespace {

// Where t is: the host would have to wait for it.
at::Tensor time_features_there(const at::Tensor& t, std::int64_t dim) {
  const at::Tensor i = at::arange(dim / 2, t.options().dtype(at::kDouble));
  const at::Tensor frequency = (i * (-2 * std::log(1000.0) / static_cast<double>(dim))).exp();
  const at::Tensor angle = (t.to(at::kDouble) * 1000).unsqueeze(1) * frequency;
  return at::cat({angle.cos(), angle.sin()}, 1).to(t.scalar_type());
}

}  // namespace

at::Tensor time_features(const at::Tensor& t, std::int64_t dim) {
  check(t.dim() == 1, "time_features: t: expected shape (B), got ", t.sizes());
  check(dim >= 2 && dim % 2 == 0, "time_features: dim: expected an even number, got ", dim);
  if (!t.is_cpu()) return time_features_there(t, dim);
  const at::Tensor times = t.to(at::kCPU, at::kDouble).contiguous();
  at::Tensor features = at::empty({t.size(0), dim}, at::kDouble);
  double* out = features.data_ptr<double>();
  for (std::int64_t b = 0; b < t.size(0); ++b, out += dim)
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      const double frequency =
          std::exp(-2 * std::log(1000.0) * static_cast<double>(i) / static_cast<double>(dim));
      const double angle = 1000 * times.const_data_ptr<double>()[b] * frequency;
      out[i] = std::cos(angle);
      out[dim / 2 + i] = std::sin(angle);
    }
  return features.to(t.device(), t.scalar_type());
}

}  // namespace pom::nn
