#include "cli/processor.h"

#include <cstdlib>

#include <ATen/Parallel.h>

#include "pom/ops/cpu_info.h"

namespace pom::cli {
namespace {

bool avoided = false;

}  // namespace

void avoid_amx() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") || !ops::announces_amx()) return;
  avoided = ::setenv("ONEDNN_MAX_CPU_ISA", kWithoutAmx.data(), 0) == 0;
}

bool amx_was_avoided() {
  return avoided;
}

void keep_order_of_sums() {
  ::setenv("MKL_CBWR", kSumsInOrder.data(), 0);
}

void set_threads(std::int64_t threads) {
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
}

}  // namespace pom::cli
