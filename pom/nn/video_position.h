// Where a token of a clip is: its place in the frame, relative to the sides, and the number of its block,
// which is absolute and knows no end. h x w tokens of a block, d width.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace pom::nn {

// How the number of a block becomes a code.
//
//   periodic   sin and cos of 2 pi f n / period, f = 1, 2, 3, …: comes round again after `period` blocks, so
//              that whoever has seen every phase has seen every time; two blocks less than a period apart
//              never have the same code
//   geometric  sin and cos of n period^(-i / F), i < F: never comes round, and late blocks have codes that
//              early ones never had
//   none       zeros: blocks are told apart by what is in them alone
struct TimeCode {
  enum class Form { periodic, geometric, none };
  Form form = Form::periodic;
  std::int64_t period = 32;

  static TimeCode named(std::string_view form, std::int64_t period);
};

// Numbers of blocks (any shape, int64, at least 0) -> (…, width) in fp64, sines, then cosines. Periodic codes
// are exact for any number: the phase is reduced as an integer.
at::Tensor time_code(const at::Tensor& blocks, std::int64_t width, const TimeCode& code);

// The position of a token is the sum of two codes, each zero in the channels of the other: the first
// 4 (d / 6) channels are the place, [sin x, cos x, sin y, cos y] of d / 6 odd frequencies as in
// position_code; the rest is time_code.
at::Tensor clip_place_code(std::int64_t rows, std::int64_t columns, std::int64_t dim,
                           at::ScalarType dtype = at::kFloat);  // (h * w, d), row by row
at::Tensor clip_time_code(const at::Tensor& blocks, std::int64_t dim, const TimeCode& code,
                          at::ScalarType dtype = at::kFloat);  // (…) int64 -> (…, d)

}  // namespace pom::nn
