#include "cli/bench/cuda.h"

namespace pom::cli {

std::function<void()> captured(const std::function<void()>& work) {
  return work;
}
Gpu gpu_of(const c10::Device&) {
  return {};
}
void give_back_memory(const c10::Device&) {}
std::int64_t start_peak(const c10::Device&) {
  return 0;
}
std::int64_t peak_bytes(const c10::Device&) {
  return 0;
}
std::int64_t total_bytes(const c10::Device&) {
  return 0;
}

}  // namespace pom::cli
