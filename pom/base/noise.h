// Random numbers that are a function of what they are for: the same on any device, batch, thread count or
// sharding. Nothing here has state; noise_math.h holds the arithmetic, which pom/kernels/portable/noise.cu
// shares.
//
// Every value has an address (seed, purpose, step, position), and all of it goes into Philox4x32-10:
//
//   key      word 0..1   seed                                          64 bits
//   counter  word 0..1   position / 4, and in the top two bits
//                        what is drawn (bits, uniform, normal)         61 + 2 bits
//            word 2      step                                          32 bits
//            word 3      purpose                                       32 bits
//
// The mapping is one to one and Philox is a bijection for each key, so two addresses never share a Philox
// block unless they are neighbours in one (position / 4), where they take different words of it. A position
// takes word position % 4; a normal takes the pair of words it lies in, of which the two positions get the
// two halves of a Box-Muller transform.
//
// Picture i of a run with --seed S has seed S + i (modulo 2^64); neighbouring seeds are unrelated.
#pragma once

#include <cstdint>
#include <span>

namespace pom {

// What noise is for. Numbers are part of every picture's identity: add new ones, never change or reuse one.
namespace noise_for {
inline constexpr uint32_t latent = 0;       // where sampling starts
inline constexpr uint32_t sampler = 1;      // what a stochastic sampler adds in a step
inline constexpr uint32_t weights = 2;      // initial weights of a network
inline constexpr uint32_t train_noise = 3;  // the noise mixed into a training example
inline constexpr uint32_t train_time = 4;   // the time at which it is mixed
inline constexpr uint32_t label_drop = 5;   // whether a training example loses its label, for guidance
inline constexpr uint32_t dropout = 6;
inline constexpr uint32_t data_order = 7;    // shuffling
inline constexpr uint32_t data_content = 8;  // procedural examples, crops and flips
inline constexpr uint32_t codec = 9;         // the sampled latent of a variational encoder
inline constexpr uint32_t test = 10;
inline constexpr uint32_t clip_cut = 11;  // whether the clips of a training step are cut
}  // namespace noise_for

struct NoiseKey {
  uint64_t seed = 0;
  uint32_t purpose = noise_for::latent;
  uint32_t step = 0;
};

// 32 uniform random bits.
uint32_t bits_at(const NoiseKey& key, int64_t position);

// Uniform in (0, 1): an odd multiple of 2^-24, so never 0 or 1, with mean exactly 1/2.
float uniform_at(const NoiseKey& key, int64_t position);

// Standard normal. |z| is at most 7.539 (Box-Muller with a 40-bit radius; a true normal exceeds that once in
// 2·10^13 draws) and at least 10^-13; within 5 units in the last place of the exact transform.
float normal_at(const NoiseKey& key, int64_t position);

// out[i] = uniform_at or normal_at(key, first_position + i), bit for bit, for i < count. One thread,
// vectorised for the CPU it runs on. Any partition of the positions over calls, threads and machines gives
// the same values. Throws pom::Error where count or first_position is negative or their sum leaves 63 bits.
void fill_uniform(float* out, int64_t count, const NoiseKey& key, int64_t first_position = 0);
void fill_normal(float* out, int64_t count, const NoiseKey& key, int64_t first_position = 0);

namespace detail {

// One of the instruction sets that the fills are compiled for. Tests compare them; fill_… uses the last one.
struct NoiseFills {
  using Fill = void (*)(float* out, int64_t count, const NoiseKey& key, int64_t first_position);
  const char* isa;
  Fill uniform, normal;
};

// Those that run on this CPU, the plainest first.
std::span<const NoiseFills> noise_fills();

}  // namespace detail
}  // namespace pom
