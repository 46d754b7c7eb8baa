// For tests of kernels by themselves: what ends a program that cannot go on, and its messages.
#pragma once

#include "tests/kernels/sizes.cuh"
#include <chrono>
#include <cstdio>
#include <cuda_runtime.h>
#include <string>
#include <unistd.h>

namespace {

void must(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what.c_str(), cudaGetErrorString(status));
  std::fflush(stdout);
  _exit(2);
}
// A kernel that never ends must not hold the machine.
void finish_within(double seconds, const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t status = cudaStreamQuery(nullptr);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) must(status, what);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) continue;
    std::printf("FAILED: %s: still running after %.0f s\n", what.c_str(), seconds);
    std::fflush(stdout);
    _exit(3);
  }
}
template <class... A>
std::string text(const char* format, A... a) {
  char buffer[512];
  std::snprintf(buffer, sizeof buffer, format, a...);
  return buffer;
}

}  // namespace
