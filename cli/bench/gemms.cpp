#include "cli/bench/gemms.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::cli {
namespace {

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;

// What cuBLASLt takes in e4m3.
bool of_sixteens(const GemmShape& shape) {
  return shape.in % 16 == 0 && shape.out % 16 == 0;
}

}  // namespace

std::vector<GemmShape> token_gemms(const models::NetworkConfig& c, std::int64_t tokens, std::int64_t batch) {
  const std::int64_t rows = tokens * batch, pixels = c.values();
  std::vector<GemmShape> shapes = {{rows, pixels, c.dim, false}};
  for (std::int64_t i = 0; i < c.depth; ++i) {
    if (c.video()) {  // the queries to the text
      const std::int64_t features = c.attention() ? c.dim : c.features();
      shapes.push_back({rows, c.dim, features});
      shapes.push_back({rows, features, c.dim});
    }
    if (c.attention()) {
      shapes.push_back({rows, c.dim, 3 * c.dim});
      shapes.push_back({rows, c.dim, c.dim});
    } else {
      for (const GemmShape& shape : layer_gemms(c.dim, c.features(), rows)) shapes.push_back(shape);
    }
    shapes.push_back({rows, c.dim, c.ffw_expand * c.dim});
    shapes.push_back({rows, c.ffw_expand * c.dim, c.dim});
  }
  shapes.push_back({rows, c.dim, pixels});
  return shapes;
}

std::vector<GemmShape> condition_gemms(const models::NetworkConfig& c, std::int64_t batch,
                                       std::int64_t words) {
  const std::int64_t scales = c.video() ? 8 : 4, gates = c.video() ? 3 : 2;
  std::vector<GemmShape> shapes = {{batch, c.dim, 4 * c.dim, false}, {batch, 4 * c.dim, c.dim}};
  if (c.video()) shapes.push_back({batch * words, c.text_width, c.dim, false});
  for (std::int64_t i = 0; i < c.depth; ++i) {
    shapes.push_back({batch, c.dim, scales * c.dim});
    shapes.push_back({batch, c.dim, gates * c.dim});
    if (c.video()) shapes.push_back({batch * words, c.dim, c.attention() ? 2 * c.dim : c.features()});
  }
  shapes.push_back({batch, c.dim, 2 * c.dim});
  return shapes;
}

std::vector<GemmShape> layer_gemms(std::int64_t dim, std::int64_t features, std::int64_t rows) {
  return {{rows, dim, features}, {rows, dim, features}, {rows, features, dim}};
}

double forward_flops(const std::vector<GemmShape>& shapes) {
  double flops = 0;
  for (const GemmShape& s : shapes)
    flops += 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.in) * static_cast<double>(s.out);
  return flops;
}

Gemms::Gemms(std::vector<GemmShape> shapes, at::ScalarType dtype, const at::Device& device)
    : shapes_(std::move(shapes)), dtype_(dtype), device_(device) {
  for (const GemmShape& shape : shapes_) {
    weights_.push_back(random(shape.out, shape.in, dtype_of(shape)));
    input(shape.rows, shape.in, dtype_of(shape));
    output(shape.rows, shape.out);
  }
  if (dtype == kE4m3) one_ = at::ones({}, at::TensorOptions(at::kFloat).device(device));
}

at::ScalarType Gemms::dtype_of(const GemmShape& shape) const {
  return dtype_ == kE4m3 && !of_sixteens(shape) ? at::kBFloat16 : dtype_;
}

at::Tensor Gemms::random(std::int64_t rows, std::int64_t columns, at::ScalarType dtype) const {
  const at::ScalarType drawn = dtype == kE4m3 ? at::kBFloat16 : dtype;
  return at::randn({rows, columns}, at::TensorOptions(drawn).device(device_)).to(dtype);
}

at::Tensor& Gemms::input(std::int64_t rows, std::int64_t columns, at::ScalarType dtype) {
  at::Tensor& matrix = inputs_[{rows, columns, dtype}];
  if (!matrix.defined()) matrix = random(rows, columns, dtype);
  return matrix;
}

at::Tensor& Gemms::output(std::int64_t rows, std::int64_t columns) {
  const at::ScalarType dtype = dtype_ == kE4m3 ? at::kBFloat16 : dtype_;
  at::Tensor& matrix = outputs_[{rows, columns, dtype}];
  if (!matrix.defined()) matrix = at::empty({rows, columns}, at::TensorOptions(dtype).device(device_));
  return matrix;
}

void Gemms::multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) const {
  if (a.scalar_type() == kE4m3)
    at::_scaled_mm_out(out, a, b, one_, one_, {}, {}, at::kBFloat16, /*use_fast_accum=*/true);
  else
    at::mm_out(out, a, b);
}

void Gemms::forward() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const GemmShape& s = shapes_[i];
    multiply(input(s.rows, s.in, dtype_of(s)), weights_[i].t(), output(s.rows, s.out));
  }
}

void Gemms::forward_backward() {
  check(dtype_ != kE4m3, "products: dtype: expected one that has a backward pass, got e4m3");
  forward();
  const c10::NoGradGuard no_grad;
  for (std::size_t i = shapes_.size(); i-- > 0;) {
    const GemmShape& s = shapes_[i];
    const at::Tensor& gradient = input(s.rows, s.out, dtype_);
    multiply(gradient.t(), input(s.rows, s.in, dtype_), output(s.out, s.in));
    if (s.input_gradient) multiply(gradient, weights_[i], output(s.rows, s.in));
  }
}

}  // namespace pom::cli
