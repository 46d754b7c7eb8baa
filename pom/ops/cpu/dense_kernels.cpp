// Compiled once for each instruction set, with POM_ISA naming it; dispatch.cpp picks one at run time.
#include "pom/ops/cpu/dense_tiles.h"

#define POM_JOIN2(a, b) a##b
#define POM_JOIN(a, b) POM_JOIN2(a, b)

namespace pom::ops::cpu {
namespace {

template <class S>
struct DenseTable {
  using Tile = DenseTile<Operand<S>>;

  static std::size_t scratch(const DenseArgs& a) { return Tile(a, nullptr).scratch_bytes(); }
  static void run(const DenseArgs& a, void* scratch, std::int64_t r0, std::int64_t r1, std::int64_t f0,
                  std::int64_t f1) {
    Tile(a, scratch).run(r0, r1, f0, f1);
  }
  static constexpr DenseKernels kernels{.panel = kPanel<Operand<S>>, .scratch = scratch, .run = run};
};

}  // namespace

const DenseKernels* POM_JOIN(dense_, POM_ISA)(DType dtype) {
#if defined(__AVX512BF16__)
  return dtype == DType::bf16 ? &DenseTable<BF16>::kernels : nullptr;
#else
  switch (dtype) {
    case DType::f32:
      return &DenseTable<float>::kernels;
    case DType::f64:
      return &DenseTable<double>::kernels;
    case DType::bf16:
      return &DenseTable<BF16>::kernels;
    case DType::f16:
      return &DenseTable<F16>::kernels;
  }
  return nullptr;
#endif
}

}  // namespace pom::ops::cpu
