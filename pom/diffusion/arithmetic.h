// The samplers' arithmetic: weighted sums of pictures. On the CPU, in fp32 and fp64, an element's bits depend
// on nothing but its own inputs: not on its position, the batch it is in, or the number of threads.
#pragma once

#include <initializer_list>
#include <limits>

#include <ATen/core/Tensor.h>

namespace pom::diffusion {

struct Term {
  double weight;
  const at::Tensor& picture;
};

inline constexpr std::size_t max_terms = 4;

// out = Σ weight · picture, added in order in fp64 and rounded once, then clamped to ±limit (NaN stays NaN).
// All have out's shape, device and dtype; out may be one of the pictures. One to max_terms terms. Contiguous
// fp32 and fp64 on the CPU take the loop that the promise above is about; anything else takes ATen's
// operators.
void combine(const at::Tensor& out, std::initializer_list<Term> terms,
             double limit = std::numeric_limits<double>::infinity());

}  // namespace pom::diffusion
