// Private to the room: the pass over flat parameters on the CPU, fp32 and fp64.
#pragma once

#include <cstdint>

namespace pom::train {

struct AdamWNumbers {
  double lr, beta1, beta2, eps, weight_decay;
  double correction1, correction2;  // 1 − βⁿ
  double clip_scale;
  double ema_weight;  // 1 − decay; 0: the average stays
};

// Elements [begin, end); weights decay below `decayed`.
template <class Real>
void adamw_range(const AdamWNumbers& numbers, std::int64_t begin, std::int64_t end, std::int64_t decayed,
                 Real* p, const Real* g, Real* m, Real* v, Real* ema);

// Of squares, in fp64 and in an order of its own: eight sums side by side. `count` is a multiple of 8.
double square_sum(const float* x, std::int64_t count);
double square_sum(const double* x, std::int64_t count);

}  // namespace pom::train
