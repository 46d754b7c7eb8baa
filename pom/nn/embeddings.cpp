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
  if (name == "dit") return PositionForm::dit;
  fail("position code: form: unknown name \"", name, "\"",
       suggestion(name, std::vector<std::string>{"odd", "narrow", "dit"}));
}

double position_angle(PositionForm form, double place, std::int64_t i, std::int64_t frequencies) {
  if (form == PositionForm::odd) return std::numbers::pi * static_cast<double>(2 * i + 1) * place;
  if (form == PositionForm::dit)
    return place * (1 / std::pow(10000.0, static_cast<double>(i) / static_cast<double>(frequencies)));
  const double step = frequencies > 1 ? 1.5 / static_cast<double>(frequencies - 1) : 0;
  return (0.5 + step * static_cast<double>(i)) * (std::numbers::pi * place + 1);
}

namespace {

// (side, dim / 2): sines, then cosines. One number at a time: a vector's sine need not have the last bit of a
// single one, and a position must have one code whatever the number of threads.
at::Tensor axis_code(std::int64_t side, std::int64_t dim, PositionForm form) {
  const std::int64_t frequencies = dim / 4;
  at::Tensor code = at::empty({side, dim / 2}, at::kDouble);
  double* out = code.data_ptr<double>();
  for (std::int64_t i = 0; i < side; ++i, out += dim / 2) {
    const double share = side > 1 ? static_cast<double>(i) / static_cast<double>(side - 1) : 0;
    const double place = form == PositionForm::dit ? static_cast<double>(i) : share;
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
at::Tensor time_features_there(const at::Tensor& t, const TimeFeatures& f) {
  const at::Tensor i = at::arange(f.count / 2, t.options().dtype(at::kDouble));
  const at::Tensor frequency = (i * (-2 * std::log(f.period) / static_cast<double>(f.count))).exp();
  const at::Tensor angle = (t.to(at::kDouble) * f.scale + f.shift).unsqueeze(1) * frequency;
  return at::cat({angle.cos(), angle.sin()}, 1).to(t.scalar_type());
}

}  // namespace

at::Tensor time_features(const at::Tensor& t, const TimeFeatures& f) {
  check(t.dim() == 1, "time_features: t: expected shape (B), got ", t.sizes());
  check(f.count >= 2 && f.count % 2 == 0, "time_features: count: expected an even number, got ", f.count);
  if (!t.is_cpu()) return time_features_there(t, f);
  const at::Tensor times = t.to(at::kCPU, at::kDouble).contiguous();
  at::Tensor features = at::empty({t.size(0), f.count}, at::kDouble);
  double* out = features.data_ptr<double>();
  const double count = static_cast<double>(f.count);
  for (std::int64_t b = 0; b < t.size(0); ++b, out += f.count)
    for (std::int64_t i = 0; i < f.count / 2; ++i) {
      const double frequency = std::exp(-2 * std::log(f.period) * static_cast<double>(i) / count);
      const double angle = (f.scale * times.const_data_ptr<double>()[b] + f.shift) * frequency;
      out[i] = std::cos(angle);
      out[f.count / 2 + i] = std::sin(angle);
    }
  return features.to(t.device(), t.scalar_type());
}

at::Tensor time_features(const at::Tensor& t, std::int64_t count) {
  return time_features(t, TimeFeatures{.count = count});
}

}  // namespace pom::nn
