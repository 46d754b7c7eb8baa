// Where a token is and when it is, as vectors. Both are functions without parameters, computed in fp64.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace pom::nn {

// (rows * columns, dim), row by row: [sin(pi f x), cos(pi f x), sin(pi f y), cos(pi f y)] for the odd
// frequencies f = 1, 3, 5, ... (dim / 4 of them), x and y running from 0 to 1 over the columns and the rows.
// Being relative to the sides, it serves any resolution.
at::Tensor position_code(std::int64_t rows, std::int64_t columns, std::int64_t dim,
                         at::ScalarType dtype = at::kFloat);

// t (B) in [0, 1] -> (B, dim): [cos, sin] of 1000 t exp(-2 ln(1000) i / dim), i < dim / 2.
at::Tensor time_features(const at::Tensor& t, std::int64_t dim);

}  // namespace pom::nn
