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
//   dit     n 10000^(-i / F), n the number of the place from 0 on, not its share of the axis: that of the
//           official DiT and SiT, whose codes are those of one resolution's grid
enum class PositionForm { odd, narrow, dit };
PositionForm position_form(std::string_view name);
// i < F; `place` is u, of the form dit the number n.
double position_angle(PositionForm form, double place, std::int64_t i, std::int64_t frequencies);

// (rows * columns, dim), row by row: [sin x, cos x, sin y, cos y] of the angles of dim / 4 frequencies, x
// along the columns and y along the rows. Being relative to the sides, it serves any resolution; that of the
// form dit is not, and goes on beyond the sides that a network has learned.
at::Tensor position_code(std::int64_t rows, std::int64_t columns, std::int64_t dim,
                         at::ScalarType dtype = at::kFloat, PositionForm form = PositionForm::odd);

// What a network is told of a time.
struct TimeFeatures {
  std::int64_t count = 0;
  double period = 1000;            // the frequencies run down from 1 to nearly 1 / period
  double scale = 1000, shift = 0;  // of scale t + shift
};

// t (B) in [0, 1] -> (B, count): [cos, sin] of (scale t + shift) exp(-2 ln(period) i / count), i < count / 2.
at::Tensor time_features(const at::Tensor& t, const TimeFeatures& features);
// The same of 1000 t, with a period of 1000.
at::Tensor time_features(const at::Tensor& t, std::int64_t count);

}  // namespace pom::nn
