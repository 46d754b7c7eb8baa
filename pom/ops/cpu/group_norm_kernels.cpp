// Compiled once for each instruction set, with POM_ISA naming it; dispatch.cpp picks one at run time.
#include "pom/ops/cpu/group_norm.h"
#include "pom/ops/cpu/math.h"

#define POM_JOIN2(a, b) a##b
#define POM_JOIN(a, b) POM_JOIN2(a, b)

namespace pom::ops::cpu {
namespace {

template <class S>
class GroupNormBlock {
  using Vec = V<float>;
  static constexpr int L = kLanes<float>;

 public:
  GroupNormBlock(const GroupNormArgs& a, std::int64_t block)
      : a_(a), block_(block), first_(block * kNormPixels * a.channels), count_(a.pixels_of(block)) {}

  // Channels of a vector at a time: the block is in cache for the second look.
  void measure() const {
    const S* x = static_cast<const S*>(a_.x) + first_;
    float* means = a_.moments + block_ * 2 * a_.channels;
    const Vec part = splat(1.0f / static_cast<float>(count_));
    for (std::int64_t c = 0; c < a_.channels; c += L) {
      const std::int64_t n = a_.channels - c;
      Vec sum = {}, squares = {};
      for (std::int64_t p = 0; p < count_; ++p) sum += load_some(x + p * a_.channels + c, n);
      const Vec mean = sum * part;
      for (std::int64_t p = 0; p < count_; ++p) {
        const Vec off = load_some(x + p * a_.channels + c, n) - mean;
        squares = fma<float>(off, off, squares);
      }
      store_some(means + c, mean, n);
      store_some(means + a_.channels + c, squares, n);
    }
  }

  void apply() const {
    for (std::int64_t p = 0; p < count_; ++p) {
      const std::int64_t at = first_ + p * a_.channels;
      a_.silu ? row<true>(at) : row<false>(at);
    }
  }

 private:
  template <bool Silu>
  POM_INLINE void row(std::int64_t at) const {
    const S* x = static_cast<const S*>(a_.x) + at;
    S* y = static_cast<S*>(a_.y) + at;
    for (std::int64_t c = 0; c < a_.channels; c += L) {
      const std::int64_t n = a_.channels - c;
      const Vec value =
          fma<float>(load_some(x + c, n), load_some(a_.scale + c, n), load_some(a_.shift + c, n));
      store_some(y + c, Silu ? value * sigmoid<float>(value) : value, n);
    }
  }

  const GroupNormArgs& a_;
  std::int64_t block_, first_, count_;
};

template <class S>
struct GroupNormTable {
  static void measure(const GroupNormArgs& a, std::int64_t block) { GroupNormBlock<S>(a, block).measure(); }
  static void apply(const GroupNormArgs& a, std::int64_t block) { GroupNormBlock<S>(a, block).apply(); }
  static constexpr GroupNormKernels kernels{.measure = measure, .apply = apply};
};

}  // namespace

const GroupNormKernels* POM_JOIN(group_norm_, POM_ISA)(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return &GroupNormTable<float>::kernels;
    case DType::bf16:
      return &GroupNormTable<BF16>::kernels;
    case DType::f16:
      return &GroupNormTable<F16>::kernels;
    case DType::f64:
      break;
  }
  return nullptr;
}

}  // namespace pom::ops::cpu
