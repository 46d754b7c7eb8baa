// Where a token of a clip is: its place in the frame, relative to the sides, and the number of its block,
// which is absolute and knows no end unless the code is relative. h x w tokens of a block, d width.
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "pom/nn/embeddings.h"

namespace pom::nn {

// How the number of a block becomes a code.
//
//   periodic   sin and cos of 2 pi f n / period, f = 1, 2, 3, …: comes round again after `period` blocks, so
//              that whoever has seen every phase has seen every time; two blocks less than a period apart
//              never have the same code
//   geometric  sin and cos of n period^(-i / F), i < F: never comes round, and late blocks have codes that
//              early ones never had
//   relative   the narrow code of embeddings.h, u running from 0 to 1 over the blocks of the clip: the code
//   of a
//              block depends on the clip's length, and a network knows the lengths it has learned
//   none       zeros: blocks are told apart by what is in them alone
struct TimeCode {
  enum class Form { periodic, geometric, relative, none };
  Form form = Form::periodic;
  std::int64_t period = 32;
  std::int64_t length = 0;  // of the clip, in blocks; a relative code alone needs it

  static TimeCode named(std::string_view form, std::int64_t period);
  TimeCode of_clip(std::int64_t blocks) const { return {form, period, blocks}; }
  bool relative() const { return form == Form::relative; }
};

// Numbers of blocks (any shape, int64, at least 0) -> (…, width) in fp64, sines, then cosines. Periodic codes
// are exact for any number: the phase is reduced as an integer.
at::Tensor time_code(const at::Tensor& blocks, std::int64_t width, const TimeCode& code);

// The position of a token is the sum of two codes, each zero in the channels of the other: position_code of
// the place, and time_code. With the form odd the place has the first 4 (d / 6) channels and the time the
// rest; with narrow the time has the first d / 2 and the place the rest, which wants d a multiple of 8.
at::Tensor clip_place_code(std::int64_t rows, std::int64_t columns, std::int64_t dim,
                           at::ScalarType dtype = at::kFloat,
                           PositionForm form = PositionForm::odd);  // (h * w, d), row by row
at::Tensor clip_time_code(const at::Tensor& blocks, std::int64_t dim, const TimeCode& code,
                          at::ScalarType dtype = at::kFloat,
                          PositionForm form = PositionForm::odd);  // (…) int64 -> (…, d)

}  // namespace pom::nn
