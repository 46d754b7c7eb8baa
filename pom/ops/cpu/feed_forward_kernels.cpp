// Compiled once for each instruction set, with POM_ISA naming it; dispatch.cpp picks one at run time.
#include "pom/ops/cpu/feed_forward_tiles.h"

#define POM_JOIN2(a, b) a##b
#define POM_JOIN(a, b) POM_JOIN2(a, b)

namespace pom::ops::cpu {
namespace {

template <class S>
struct FeedForwardTable {
  using Tile = FeedForwardTile<Operand<S>>;

  static std::size_t scratch(const FeedForwardArgs& a) { return Tile(a, nullptr).scratch_bytes(); }
  static void forward(const FeedForwardArgs& a, void* scratch, std::int64_t tile) {
    Tile(a, scratch).forward(tile);
  }
  static void backward(const FeedForwardArgs& a, void* scratch, std::int64_t tile) {
    Tile(a, scratch).backward(tile);
  }
  static constexpr FeedForwardKernels kernels{
      .panel = kPanel<Operand<S>>, .scratch = scratch, .forward = forward, .backward = backward};
};

}  // namespace

// bf16 pairs are the one thing the avx512bf16 build adds; the other dtypes come from avx512.
const FeedForwardKernels* POM_JOIN(feed_forward_, POM_ISA)(DType dtype) {
#if defined(__AVX512BF16__)
  return dtype == DType::bf16 ? &FeedForwardTable<BF16>::kernels : nullptr;
#else
  switch (dtype) {
    case DType::f64:
      return &FeedForwardTable<double>::kernels;
    case DType::bf16:
      return &FeedForwardTable<BF16>::kernels;
    default:
      return &FeedForwardTable<float>::kernels;
  }
#endif
}

}  // namespace pom::ops::cpu
