// The fills: one loop body over batches of Philox blocks, compiled for several instruction sets and chosen at
// run time. All of them execute the same exactly rounded operations, so they differ in speed alone.
#include "pom/base/noise.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "pom/base/error.h"
#include "pom/base/noise_math.h"

namespace pom {
namespace {

using noise_math::Draw;
using noise_math::Four;
using noise_math::Words;

constexpr int kBlocks = 16;          // Philox blocks in a batch: one 512-bit vector of counters
constexpr int kBatch = 4 * kBlocks;  // values in a batch

POM_HD Words words_at(Draw draw, const NoiseKey& key, uint64_t block) {
  return noise_math::words_at(draw, key.seed, key.purpose, key.step, block);
}

struct Uniform {
  static constexpr Draw draw = Draw::uniform;
  static POM_HD Four from(Words words) { return noise_math::uniforms_from(words); }
};

struct Normal {
  static constexpr Draw draw = Draw::normal;
  static POM_HD Four from(Words words) { return noise_math::normals_from(words); }
};

template <class Kind>
POM_HD void batch(float* out, const NoiseKey& key, uint64_t block) {
  float lanes[4][kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    const Four four = Kind::from(words_at(Kind::draw, key, block + static_cast<uint64_t>(i)));
    lanes[0][i] = four.a;
    lanes[1][i] = four.b;
    lanes[2][i] = four.c;
    lanes[3][i] = four.d;
  }
  for (int i = 0; i < kBlocks; ++i)
    for (int j = 0; j < 4; ++j) out[4 * i + j] = lanes[j][i];
}

template <class Kind>
POM_HD void fill(float* out, int64_t count, const NoiseKey& key, int64_t first) {
  if (count == 0) return;
  const int64_t end = first + count;
  for (int64_t at = first / 4 * 4; at < end; at += kBatch) {
    const int64_t from = std::max(at, first), to = std::min(at + kBatch, end);
    if (to - from == kBatch) {
      batch<Kind>(out + (at - first), key, static_cast<uint64_t>(at) / 4);
    } else {  // the ragged ends
      float values[kBatch];
      batch<Kind>(values, key, static_cast<uint64_t>(at) / 4);
      std::memcpy(out + (from - first), values + (from - at), static_cast<size_t>(to - from) * sizeof(float));
    }
  }
}

void check_range(const char* operation, int64_t count, int64_t first) {
  check(count >= 0, operation, ": count: expected at least 0, got ", count);
  check(first >= 0, operation, ": first_position: expected at least 0, got ", first);
  check(count <= std::numeric_limits<int64_t>::max() - kBatch - first, operation,
        ": first_position: expected ", first, " + count ", count, " to stay below 2^63");
}

// The same two functions for each instruction set; the bodies are inlined into them and compiled for it.
#define POM_NOISE_FILLS(name, ...)                                                                 \
  __VA_ARGS__ void uniform_##name(float* out, int64_t count, const NoiseKey& key, int64_t first) { \
    fill<Uniform>(out, count, key, first);                                                         \
  }                                                                                                \
  __VA_ARGS__ void normal_##name(float* out, int64_t count, const NoiseKey& key, int64_t first) {  \
    fill<Normal>(out, count, key, first);                                                          \
  }

POM_NOISE_FILLS(plain)
#if defined(__x86_64__)
POM_NOISE_FILLS(avx2, __attribute__((target("avx2,fma"))))
POM_NOISE_FILLS(avx512, __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))))
#endif
#undef POM_NOISE_FILLS

constexpr detail::NoiseFills kFills[] = {
    {"plain", uniform_plain, normal_plain},
#if defined(__x86_64__)
    {"avx2", uniform_avx2, normal_avx2},
    {"avx512", uniform_avx512, normal_avx512},
#endif
};

size_t supported_fills() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx2 ? (avx512 ? 3 : 2) : 1;
#else
  return 1;
#endif
}

float pick(const Four& four, int64_t position) {
  const float values[] = {four.a, four.b, four.c, four.d};
  return values[position % 4];
}

Words words_of(Draw draw, const NoiseKey& key, int64_t position) {
  assert(position >= 0);
  return words_at(draw, key, static_cast<uint64_t>(position) / 4);
}

}  // namespace

uint32_t bits_at(const NoiseKey& key, int64_t position) {
  const Words words = words_of(Draw::bits, key, position);
  const uint32_t values[] = {words.a, words.b, words.c, words.d};
  return values[position % 4];
}

float uniform_at(const NoiseKey& key, int64_t position) {
  return pick(Uniform::from(words_of(Draw::uniform, key, position)), position);
}

float normal_at(const NoiseKey& key, int64_t position) {
  return pick(Normal::from(words_of(Draw::normal, key, position)), position);
}

void fill_uniform(float* out, int64_t count, const NoiseKey& key, int64_t first_position) {
  check_range("fill_uniform", count, first_position);
  detail::noise_fills().back().uniform(out, count, key, first_position);
}

void fill_normal(float* out, int64_t count, const NoiseKey& key, int64_t first_position) {
  check_range("fill_normal", count, first_position);
  detail::noise_fills().back().normal(out, count, key, first_position);
}

std::span<const detail::NoiseFills> detail::noise_fills() {
  static const size_t supported = supported_fills();
  return {kFills, supported};
}

}  // namespace pom
