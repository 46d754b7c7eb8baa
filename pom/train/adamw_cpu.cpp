#include "pom/train/adamw_cpu.h"

#include <algorithm>
#include <cmath>

namespace pom::train {
namespace {

// Plain loops that the compiler turns into vectors, one copy for each instruction set.
#if defined(__x86_64__) && defined(__GNUC__)
#define POM_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define POM_CLONES
#endif

template <class Real>
struct Coefficients {
  Real keep, clip, b1, c1, b2, c2, rate, root2, eps, ema;

  Coefficients(const AdamWNumbers& n, bool decay)
      : keep(static_cast<Real>(decay ? 1 - n.lr * n.weight_decay : 1)),
        clip(static_cast<Real>(n.clip_scale)),
        b1(static_cast<Real>(n.beta1)),
        c1(static_cast<Real>(1 - n.beta1)),
        b2(static_cast<Real>(n.beta2)),
        c2(static_cast<Real>(1 - n.beta2)),
        rate(static_cast<Real>(n.lr / n.correction1)),
        root2(static_cast<Real>(1 / std::sqrt(n.correction2))),
        eps(static_cast<Real>(n.eps)),
        ema(static_cast<Real>(n.ema_weight)) {}
};

template <class Real>
inline __attribute__((always_inline)) void pass(const Coefficients<Real> c, std::int64_t count,
                                                Real* __restrict p, const Real* __restrict g,
                                                Real* __restrict m, Real* __restrict v,
                                                Real* __restrict ema) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Real gradient = g[i] * c.clip;
    m[i] = c.b1 * m[i] + c.c1 * gradient;
    v[i] = c.b2 * v[i] + c.c2 * gradient * gradient;
    p[i] = p[i] * c.keep - c.rate * m[i] / (std::sqrt(v[i]) * c.root2 + c.eps);
    ema[i] += c.ema * (p[i] - ema[i]);
  }
}

POM_CLONES void run(const Coefficients<float>& c, std::int64_t count, float* p, const float* g, float* m,
                    float* v, float* ema) {
  pass<float>(c, count, p, g, m, v, ema);
}
POM_CLONES void run(const Coefficients<double>& c, std::int64_t count, double* p, const double* g, double* m,
                    double* v, double* ema) {
  pass<double>(c, count, p, g, m, v, ema);
}

}  // namespace

template <class Real>
void adamw_range(const AdamWNumbers& numbers, std::int64_t begin, std::int64_t end, std::int64_t decayed,
                 Real* p, const Real* g, Real* m, Real* v, Real* ema) {
  for (const bool decay : {true, false}) {
    const std::int64_t from = decay ? begin : std::max(begin, decayed);
    const std::int64_t to = decay ? std::min(end, decayed) : end;
    if (from < to)
      run(Coefficients<Real>(numbers, decay), to - from, p + from, g + from, m + from, v + from, ema + from);
  }
}

namespace {

template <class Real>
inline __attribute__((always_inline)) double squares(const Real* x, std::int64_t count) {
  double sums[8] = {};
  for (std::int64_t i = 0; i < count; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

POM_CLONES double run_squares(const float* x, std::int64_t count) {
  return squares(x, count);
}
POM_CLONES double run_squares(const double* x, std::int64_t count) {
  return squares(x, count);
}

}  // namespace

double square_sum(const float* x, std::int64_t count) {
  return run_squares(x, count);
}
double square_sum(const double* x, std::int64_t count) {
  return run_squares(x, count);
}

template void adamw_range<float>(const AdamWNumbers&, std::int64_t, std::int64_t, std::int64_t, float*,
                                 const float*, float*, float*, float*);
template void adamw_range<double>(const AdamWNumbers&, std::int64_t, std::int64_t, std::int64_t, double*,
                                  const double*, double*, double*, double*);

}  // namespace pom::train
