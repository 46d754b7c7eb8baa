// d += a b for the widths our tiles have: a is 64 rows and b N rows of 32 bytes, both in shared memory and
// described by hopper::matrix_of. d (64, N) lies in the warpgroup's registers: thread t of 128 holds, of rows
// 16 (t / 32) + t / 4 % 8 and 8 below, columns 8 j + 2 (t % 4) and the next as d[4 j .. 4 j + 3].
#pragma once

#include <type_traits>

#include "pom/kernels/sm90/hopper.cuh"

namespace pom::kernels::hopper {

// clang-format off
#define POM_D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define POM_D1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define POM_D2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define POM_D3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define POM_D4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define POM_D5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define POM_D6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define POM_D7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define POM_D8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define POM_D9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define POM_D10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define POM_D11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define POM_D12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define POM_D13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define POM_D14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define POM_D15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define POM_F8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define POM_LIST96 POM_D0 ", " POM_D1 ", " POM_D2 ", " POM_D3 ", " POM_D4 ", " POM_D5
#define POM_REGS96(d) POM_F8(d, 0), POM_F8(d, 8), POM_F8(d, 16), POM_F8(d, 24), POM_F8(d, 32), POM_F8(d, 40)
#define POM_LIST128 POM_D0 ", " POM_D1 ", " POM_D2 ", " POM_D3 ", " POM_D4 ", " POM_D5 ", " POM_D6 ", " POM_D7
#define POM_REGS128(d) POM_F8(d, 0), POM_F8(d, 8), POM_F8(d, 16), POM_F8(d, 24), POM_F8(d, 32), POM_F8(d, 40), POM_F8(d, 48), POM_F8(d, 56)
#define POM_LIST144 POM_D0 ", " POM_D1 ", " POM_D2 ", " POM_D3 ", " POM_D4 ", " POM_D5 ", " POM_D6 ", " POM_D7 ", " POM_D8
#define POM_REGS144(d) POM_F8(d, 0), POM_F8(d, 8), POM_F8(d, 16), POM_F8(d, 24), POM_F8(d, 32), POM_F8(d, 40), POM_F8(d, 48), POM_F8(d, 56), POM_F8(d, 64)
#define POM_LIST192 POM_D0 ", " POM_D1 ", " POM_D2 ", " POM_D3 ", " POM_D4 ", " POM_D5 ", " POM_D6 ", " POM_D7 ", " POM_D8 ", " POM_D9 ", " POM_D10 ", " POM_D11
#define POM_REGS192(d) POM_F8(d, 0), POM_F8(d, 8), POM_F8(d, 16), POM_F8(d, 24), POM_F8(d, 32), POM_F8(d, 40), POM_F8(d, 48), POM_F8(d, 56), POM_F8(d, 64), POM_F8(d, 72), POM_F8(d, 80), POM_F8(d, 88)

#define POM_LIST256 POM_LIST192 ", " POM_D12 ", " POM_D13 ", " POM_D14 ", " POM_D15
#define POM_REGS256(d) POM_REGS192(d), POM_F8(d, 96), POM_F8(d, 104), POM_F8(d, 112), POM_F8(d, 120)

#define POM_PRODUCT(N, R0, R1, R2, KIND, TYPES, TAIL)                                                        \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, %" R2 ", 0;\n"                                        \
               "wgmma.mma_async.sync.aligned.m64n" #N KIND ".f32" TYPES " {" POM_LIST##N "}, %" R0 ", %" R1     \
               ", keep, 1, 1" TAIL ";\n}\n"                                                                  \
               : POM_REGS##N(d)                                                                              \
               : "l"(a), "l"(b), "r"(keep))

#define POM_PRODUCTS(N, R0, R1, R2)                                                                          \
  template <class In>                                                                                        \
  __device__ __forceinline__ void gemm(float (&d)[N / 2], uint64_t a, uint64_t b, int keep) {             \
    if constexpr (std::is_same_v<In, __nv_bfloat16>)                                                         \
      POM_PRODUCT(N, R0, R1, R2, "k16", ".bf16.bf16", ", 0, 0");                                             \
    else if constexpr (std::is_same_v<In, __half>)                                                           \
      POM_PRODUCT(N, R0, R1, R2, "k16", ".f16.f16", ", 0, 0");                                               \
    else                                                                                                     \
      POM_PRODUCT(N, R0, R1, R2, "k32", ".e4m3.e4m3", "");                                                   \
  }

POM_PRODUCTS(96, "48", "49", "50")
POM_PRODUCTS(128, "64", "65", "66")
POM_PRODUCTS(144, "72", "73", "74")
POM_PRODUCTS(192, "96", "97", "98")
POM_PRODUCTS(256, "128", "129", "130")
// clang-format on

#undef POM_PRODUCTS
#undef POM_PRODUCT

}  // namespace pom::kernels::hopper
