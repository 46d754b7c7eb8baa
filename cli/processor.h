// What must be decided about the processor before torch's first operation.
#pragma once

#include <cstdint>
#include <string_view>

namespace pom::cli {

inline constexpr std::string_view kWithoutAmx = "AVX512_CORE_BF16";

// Inside some virtual machines a processor announces AMX and then dies of it (SIGILL). Where it announces AMX
// and ONEDNN_MAX_CPU_ISA says nothing, oneDNN is kept off it.
void avoid_amx();
bool amx_was_avoided();

inline constexpr std::string_view kSumsInOrder = "AUTO,STRICT";

// MKL adds up long sums in another order for another number of threads, at least on Intel's processors. Where
// MKL_CBWR says nothing, it is told to keep to one.
void keep_order_of_sums();

// Threads of torch and of our kernels; 0 leaves as many as there are cores.
void set_threads(std::int64_t threads);

}  // namespace pom::cli
