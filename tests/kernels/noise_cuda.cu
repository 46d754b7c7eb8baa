// The noise of the GPU against that of the CPU, bit for bit. A program of its own, so that it needs nvcc and
// a GPU but neither torch nor GoogleTest:
//   g++ -std=c++20 -O3 -fno-math-errno -I. -c pom/base/noise.cpp -o noise.o
//   nvcc -std=c++20 -O3 -arch=native -I. tests/kernels/noise_cuda.cu pom/kernels/portable/noise.cu noise.o -o
//   noise_cuda
//   ./noise_cuda
#include "tests/kernels/sizes.cuh"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "pom/base/noise.h"
#include "pom/kernels/portable/noise.h"

namespace {

using pom::NoiseKey;
using pom::kernels::NoiseParams;

int passed = 0, failed = 0;

void expect(bool ok, const char* what) {
  ok ? ++passed : ++failed;
  if (!ok) std::printf("FAILED: %s\n", what);
}

void must(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n%d passed, %d failed\n", what, cudaGetErrorString(status), passed, failed + 1);
  std::exit(1);
}

using OnDevice = cudaError_t (*)(const NoiseParams&, cudaStream_t);
using OnHost = void (*)(float*, int64_t, const NoiseKey&, int64_t);

constexpr int64_t kGuard = 64;  // floats before and after that no fill may touch
constexpr unsigned kUntouched = 0xFFC00123u;

// Fills `pictures` rows on the GPU, at a pointer `shift` floats off alignment, and compares every word with
// the CPU.
void compare(const char* what, OnDevice device_fill, OnHost host_fill, NoiseParams p, int64_t shift = 0) {
  const int64_t stride = p.stride ? p.stride : p.count;
  const int64_t total = kGuard + shift + stride * p.pictures + kGuard;
  std::vector<unsigned> expected(static_cast<size_t>(total), kUntouched), got(expected);
  for (int64_t i = 0; i < p.pictures; ++i) {
    NoiseKey key = p.key;
    key.seed += static_cast<uint64_t>(i);
    host_fill(reinterpret_cast<float*>(expected.data() + kGuard + shift + i * stride), p.count, key,
              p.first_position);
  }
  float* memory = nullptr;
  const size_t bytes = static_cast<size_t>(total) * sizeof(float);
  must(cudaMalloc(&memory, bytes), "cudaMalloc");
  must(cudaMemcpy(memory, got.data(), bytes, cudaMemcpyHostToDevice), "copy to the device");
  p.out = memory + kGuard + shift;
  must(device_fill(p, nullptr), what);
  must(cudaMemcpy(got.data(), memory, bytes, cudaMemcpyDeviceToHost), what);
  must(cudaFree(memory), "cudaFree");

  int64_t different = 0, where = -1;
  for (int64_t i = 0; i < total; ++i)
    if (got[static_cast<size_t>(i)] != expected[static_cast<size_t>(i)] && different++ == 0) where = i;
  if (different)
    std::printf("%s: %lld of %lld differ, first at %lld: GPU %08x, CPU %08x\n", what, (long long)different,
                (long long)total, (long long)(where - kGuard - shift), got[static_cast<size_t>(where)],
                expected[static_cast<size_t>(where)]);
  expect(different == 0, what);
}

// So that not only do the two agree here: both agree with every other machine (see tests/base/noise.cpp).
void check_golden() {
  std::vector<float> values(1'000'000);
  pom::fill_normal(values.data(), 1'000'000, {0, 0, 0}, 0);
  uint64_t hash = 0xCBF29CE484222325u;
  for (float value : values) {
    unsigned word;
    std::memcpy(&word, &value, sizeof word);
    hash = (hash ^ word) * 0x100000001B3u;
  }
  expect(hash == 0xbbe9faacef02a4f8u, "the CPU's fingerprint is the golden one");
}

void compare_many() {
  const NoiseKey keys[] = {{0, 0, 0},
                           {1, 0, 0},
                           {0xFFFFFFFFFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu},
                           {0x0123456789ABCDEFu, pom::noise_for::train_noise, 123456},
                           {42, pom::noise_for::sampler, 17}};
  for (const NoiseKey& key : keys) {
    NoiseParams p;
    p.key = key;
    p.count = kEmulated ? 300'000 : 10'000'000;
    compare("normal, ten million", pom::kernels::fill_normal, pom::fill_normal, p);
    p.first_position = (int64_t{1} << 34) - p.count / 2 - 1;  // the block number passes 2^32 on the way
    compare("normal, ten million across 2^32 blocks", pom::kernels::fill_normal, pom::fill_normal, p);
    p.count = kEmulated ? 100'000 : 1'000'000;
    compare("uniform, one million", pom::kernels::fill_uniform, pom::fill_uniform, p);
  }
}

void compare_ragged() {
  for (int64_t count : {0, 1, 2, 3, 4, 5, 7, 63, 64, 65, 1021})
    for (int64_t first : {0, 1, 2, 3, 4, 61, 1000003})
      for (int64_t shift : {0, 1, 3}) {
        NoiseParams p;
        p.key = {7, 8, 9};
        p.count = count;
        p.first_position = first;
        p.pictures = 3;
        compare("normal, ragged", pom::kernels::fill_normal, pom::fill_normal, p, shift);
        p.stride = count + 5;
        compare("normal, ragged and strided", pom::kernels::fill_normal, pom::fill_normal, p, shift);
      }
  NoiseParams p;
  p.key = {0xFFFFFFFFFFFFFFFEu, 1, 2};  // seeds wrap around 2^64
  p.count = 21;
  p.pictures = 70'000;  // more than the grid has rows
  compare("normal, many pictures", pom::kernels::fill_normal, pom::fill_normal, p);
}

void refuse() {
  NoiseParams p;
  p.count = -1;
  expect(pom::kernels::fill_normal(p, nullptr) == cudaErrorInvalidValue, "a negative count is refused");
  p.count = 8;
  p.first_position = -1;
  expect(pom::kernels::fill_normal(p, nullptr) == cudaErrorInvalidValue, "a negative position is refused");
  p.first_position = INT64_MAX - 4;
  expect(pom::kernels::fill_normal(p, nullptr) == cudaErrorInvalidValue, "positions beyond 2^63 are refused");
  p.first_position = 0;
  p.pictures = 2;
  p.stride = 7;
  expect(pom::kernels::fill_normal(p, nullptr) == cudaErrorInvalidValue, "overlapping pictures are refused");
}

void measure() {
  NoiseParams p;
  p.count = int64_t{1} << (kEmulated ? 18 : 28);
  must(cudaMalloc(&p.out, static_cast<size_t>(p.count) * sizeof(float)), "cudaMalloc");
  cudaEvent_t start, stop;
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&stop), "event");
  float best = INFINITY;
  for (int run = 0; run < 10; ++run) {
    float ms = 0;
    must(cudaEventRecord(start), "event");
    must(pom::kernels::fill_normal(p, nullptr), "timed fill");
    must(cudaEventRecord(stop), "event");
    must(cudaEventSynchronize(stop), "event");
    must(cudaEventElapsedTime(&ms, start, stop), "event");
    best = std::fmin(best, ms);
  }
  std::printf("GPU: %.1f billion normals/s (best of 10, %lld values)\n", p.count / best * 1e-6,
              (long long)p.count);
  must(cudaFree(p.out), "cudaFree");
}

}  // namespace

int main() {
  cudaDeviceProp device;
  must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s, CPU fills: %s\n", device.name, pom::detail::noise_fills().back().isa);
  check_golden();
  compare_many();
  compare_ragged();
  refuse();
  measure();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
