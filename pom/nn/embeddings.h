// Where a token is and when it is, as vectors. Both are functions without parameters, computed in fp64.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace pom::nn {

// The angles of F frequencies for a place u of an axis, which runs from 0 to 1.
//
//   odd     pi f u, f = 1, 3, 5, …: neighbours differ in the fast ones, the ends of an axis in the slow ones
//   narrow  f (pi u + 1), F numbers f that run evenly from 0.5 to 2: no fast ones, so that more places
//   between
//           the same ends have codes between theirs. Published networks for larger pictures and for clips
//           have it
enum class PositionForm { odd, narrow };
PositionForm position_form(std::string_view name);
double position_angle(PositionForm form, double u, std::int64_t i, std::int64_t frequencies);  // i < F

// (rows * columns, dim), row by row: [sin x, cos x, sin y, cos y] of the angles of dim / 4 frequencies, x
// along the columns and y along the rows. Being relative to the sides, it serves any resolution.
at::Tensor position_code(std::int64_t rows, std::int64_t columns, std::int64_t dim,
                         at::ScalarType dtype = at::kFloat, PositionForm form = PositionForm::odd);

// t (B) in [0, 1] -> (B, dim): [cos, sin] of 1000 t exp(-2 ln(1000) i / dim), i < dim / 2.
at::Tensor time_features(const at::Tensor& t, std::int64_t dim);

}  // namespace pom::nn
