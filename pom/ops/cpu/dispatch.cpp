#include <cstdlib>
#include <sched.h>
#include <string>

#include "pom/base/error.h"
#include "pom/ops/cpu/dense.h"
#include "pom/ops/cpu/feed_forward.h"
#include "pom/ops/cpu/group_norm.h"
#include "pom/ops/cpu/kernels.h"
#include "pom/ops/cpu/modulation.h"
#include "pom/ops/cpu/winograd.h"

namespace pom::ops::cpu {

const Kernels* kernels_base(DType dtype);
const DenseKernels* dense_base(DType dtype);
const FeedForwardKernels* feed_forward_base(DType dtype);
const ModulationKernels* modulation_base(DType stream, DType branch);
const WinogradKernels* winograd_base(DType dtype);
const GroupNormKernels* group_norm_base(DType dtype);
#if defined(POM_X86)
const Kernels* kernels_avx2(DType dtype);
const Kernels* kernels_avx512(DType dtype);
const Kernels* kernels_avx512bf16(DType dtype);
const DenseKernels* dense_avx2(DType dtype);
const DenseKernels* dense_avx512(DType dtype);
const DenseKernels* dense_avx512bf16(DType dtype);
const FeedForwardKernels* feed_forward_avx2(DType dtype);
const FeedForwardKernels* feed_forward_avx512(DType dtype);
const FeedForwardKernels* feed_forward_avx512bf16(DType dtype);
const ModulationKernels* modulation_avx2(DType stream, DType branch);
const ModulationKernels* modulation_avx512(DType stream, DType branch);
const WinogradKernels* winograd_avx2(DType dtype);
const WinogradKernels* winograd_avx512(DType dtype);
const GroupNormKernels* group_norm_avx2(DType dtype);
const GroupNormKernels* group_norm_avx512(DType dtype);
#endif

namespace {

enum Level { base = 0, avx2 = 1, avx512 = 2, avx512bf16 = 3 };

int machine_level() {
#if defined(POM_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    return __builtin_cpu_supports("avx512bf16") ? avx512bf16 : avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    return avx2;
#endif
  return base;
}

int chosen_level() {
  const int machine = machine_level();
  const char* wanted = std::getenv("POM_CPU_ISA");
  if (!wanted || !*wanted) return machine;
  const char* names[] = {"base", "avx2", "avx512", "avx512bf16"};
  for (int level = base; level <= avx512bf16; ++level)
    if (std::string(wanted) == names[level]) return level < machine ? level : machine;
  fail("POM_CPU_ISA: expected base, avx2, avx512 or avx512bf16, got '", wanted, "'");
}

int level() {
  static const int level = chosen_level();
  return level;
}

}  // namespace

void yield_thread() {
  sched_yield();
}

const Kernels& kernel_table(DType dtype) {
#if defined(POM_X86)
  if (level() == avx512bf16)
    if (const Kernels* table = kernels_avx512bf16(dtype)) return *table;
  if (level() >= avx512) return *kernels_avx512(dtype);
  if (level() >= avx2) return *kernels_avx2(dtype);
#endif
  return *kernels_base(dtype);
}

const DenseKernels& dense_table(DType dtype) {
#if defined(POM_X86)
  if (level() == avx512bf16)
    if (const DenseKernels* table = dense_avx512bf16(dtype)) return *table;
  if (level() >= avx512) return *dense_avx512(dtype);
  if (level() >= avx2) return *dense_avx2(dtype);
#endif
  return *dense_base(dtype);
}

const FeedForwardKernels& feed_forward_table(DType dtype) {
#if defined(POM_X86)
  if (level() == avx512bf16)
    if (const FeedForwardKernels* table = feed_forward_avx512bf16(dtype)) return *table;
  if (level() >= avx512) return *feed_forward_avx512(dtype);
  if (level() >= avx2) return *feed_forward_avx2(dtype);
#endif
  return *feed_forward_base(dtype);
}

const ModulationKernels& modulation_table(DType stream, DType branch) {
#if defined(POM_X86)
  if (level() >= avx512) return *modulation_avx512(stream, branch);
  if (level() >= avx2) return *modulation_avx2(stream, branch);
#endif
  return *modulation_base(stream, branch);
}

const WinogradKernels& winograd_table(DType dtype) {
#if defined(POM_X86)
  if (level() >= avx512) return *winograd_avx512(dtype);
  if (level() >= avx2) return *winograd_avx2(dtype);
#endif
  return *winograd_base(dtype);
}

const GroupNormKernels& group_norm_table(DType dtype) {
#if defined(POM_X86)
  if (level() >= avx512) return *group_norm_avx512(dtype);
  if (level() >= avx2) return *group_norm_avx2(dtype);
#endif
  return *group_norm_base(dtype);
}

}  // namespace pom::ops::cpu
