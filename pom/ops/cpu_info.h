// What the processor offers, and which of our kernels run on it: for `pom doctor` and reports. No torch.
#pragma once

#include <string>
#include <vector>

namespace pom::ops {

struct CpuInfo {
  std::string name;  // "AMD EPYC 7763"; empty where the system does not say
  std::vector<std::string>
      features;              // of those that matter here: "avx2", "avx512f", "avx512_bf16", "amx_tile"
  std::string kernels;       // instruction set of the fp32 kernels in use, which POM_CPU_ISA may lower
  std::string bf16_kernels;  // and of the bf16 ones
};

// Throws pom::Error where POM_CPU_ISA is none of the names.
CpuInfo cpu_info();

// The instruction sets that this build has kernels for: "base", "avx2", "avx512", "avx512bf16".
std::vector<std::string> cpu_kernel_sets();

bool announces_amx();

// Whether this processor, and so oneDNN, has products of bf16: those in fp32 are slower here.
bool multiplies_bf16();
// Whether oneDNN uses AMX: the processor announces it, and ONEDNN_MAX_CPU_ISA does not forbid it.
bool uses_amx();

}  // namespace pom::ops
