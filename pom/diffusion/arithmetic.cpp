#include "pom/diffusion/arithmetic.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include <ATen/Parallel.h>
#include <ATen/ops/mul.h>

#include "pom/base/error.h"

namespace pom::diffusion {
namespace {

constexpr std::int64_t kGrain = 1 << 14;  // elements: below that a second thread costs more than it brings

template <class T, std::size_t N>
struct Sum {
  T* out;
  std::array<const T*, N> in;
  std::array<double, N> weights;
  double limit;

  // ATen's own loops may fuse multiply and add in the vectorised body and not in the tail; this one never
  // does.
  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      double sum = weights[0] * static_cast<double>(in[0][i]);
      for (std::size_t k = 1; k < N; ++k) sum += weights[k] * static_cast<double>(in[k][i]);
      sum = sum > limit ? limit : sum;
      sum = sum < -limit ? -limit : sum;
      out[i] = static_cast<T>(sum);
    }
  }
};

template <class T, std::size_t N>
void run(const at::Tensor& out, std::initializer_list<Term> terms, double limit) {
  if (terms.size() < N) {
    if constexpr (N > 1) run<T, N - 1>(out, terms, limit);
    return;
  }
  Sum<T, N> sum{out.data_ptr<T>(), {}, {}, limit};
  for (std::size_t k = 0; k < N; ++k) {
    sum.in[k] = terms.begin()[k].picture.template const_data_ptr<T>();
    sum.weights[k] = terms.begin()[k].weight;
  }
  at::parallel_for(0, out.numel(), kGrain, sum);
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_contiguous();
}

void run_aten(const at::Tensor& out, std::initializer_list<Term> terms, double limit) {
  const at::ScalarType type = out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = at::mul(terms.begin()->picture.to(type), terms.begin()->weight);
  for (const Term* term = terms.begin() + 1; term != terms.end(); ++term)
    sum.add_(term->picture.to(type), term->weight);
  if (limit != std::numeric_limits<double>::infinity()) sum.clamp_(-limit, limit);
  out.copy_(sum);
}

}  // namespace

void combine(const at::Tensor& out, std::initializer_list<Term> terms, double limit) {
  check(terms.size() >= 1 && terms.size() <= max_terms, "combine: terms: expected 1 to ", max_terms, ", got ",
        terms.size());
  for (const Term& term : terms) {
    check(term.picture.sizes() == out.sizes(), "combine: pictures: expected shape ", out.sizes(), ", got ",
          term.picture.sizes());
    check(term.picture.scalar_type() == out.scalar_type() && term.picture.device() == out.device(),
          "combine: pictures: expected ", out.scalar_type(), " on ", out.device(), ", got ",
          term.picture.scalar_type(), " on ", term.picture.device());
  }
  const bool plain = is_plain(out) && std::all_of(terms.begin(), terms.end(),
                                                  [](const Term& term) { return is_plain(term.picture); });
  if (plain && out.scalar_type() == at::kFloat)
    run<float, max_terms>(out, terms, limit);
  else if (plain && out.scalar_type() == at::kDouble)
    run<double, max_terms>(out, terms, limit);
  else
    run_aten(out, terms, limit);
}

}  // namespace pom::diffusion
