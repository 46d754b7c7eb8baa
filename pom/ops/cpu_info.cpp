#include "pom/ops/cpu_info.h"

#include <cstdlib>
#include <fstream>

#include "pom/ops/cpu/kernels.h"

#if defined(POM_X86)
#include <cpuid.h>
#endif

namespace pom::ops {
namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return trimmed(line.substr(line.find(':') + 1));
  return {};
}

#if defined(POM_X86)
std::vector<std::string> features_here() {
  __builtin_cpu_init();
  std::vector<std::string> features;
  if (__builtin_cpu_supports("avx2")) features.push_back("avx2");
  if (__builtin_cpu_supports("fma")) features.push_back("fma");
  if (__builtin_cpu_supports("f16c")) features.push_back("f16c");
  if (__builtin_cpu_supports("avx512f")) features.push_back("avx512f");
  if (__builtin_cpu_supports("avx512vl")) features.push_back("avx512vl");
  if (__builtin_cpu_supports("avx512bw")) features.push_back("avx512bw");
  if (__builtin_cpu_supports("avx512dq")) features.push_back("avx512dq");
  if (__builtin_cpu_supports("avx512vnni")) features.push_back("avx512_vnni");
  if (__builtin_cpu_supports("avx512bf16")) features.push_back("avx512_bf16");
  if (announces_amx()) features.push_back("amx_tile");
  return features;
}
#else
std::vector<std::string> features_here() {
  return {};
}
#endif

}  // namespace

bool announces_amx() {
#if defined(POM_X86)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_tile = 1u << 24;  // leaf 7, register d
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx_tile);
#else
  return false;
#endif
}

bool multiplies_bf16() {
  return std::string(cpu::kernel_table(cpu::DType::bf16).isa) == "avx512bf16";
}

bool uses_amx() {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string most = limit == nullptr ? "" : limit;
  const bool allowed =
      most.empty() || most == "DEFAULT" || most == "ALL" || most.find("AMX") != std::string::npos;
  return announces_amx() && allowed;
}

std::vector<std::string> cpu_kernel_sets() {
#if defined(POM_X86)
  return {"base", "avx2", "avx512", "avx512bf16"};
#else
  return {"base"};
#endif
}

CpuInfo cpu_info() {
  return {.name = processor_name(),
          .features = features_here(),
          .kernels = cpu::kernel_table(cpu::DType::f32).isa,
          .bf16_kernels = cpu::kernel_table(cpu::DType::bf16).isa};
}

}  // namespace pom::ops
