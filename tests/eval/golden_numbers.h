// Numbers that anyone can make again, by name: for comparisons with what others computed from them.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

namespace pom::eval::golden {

inline std::uint64_t key_of(std::string_view name) {  // FNV-1a
  std::uint64_t key = 0xcbf29ce484222325;
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return key;
}

inline std::uint64_t bits_of(std::uint64_t key, std::uint64_t j) {  // splitmix64
  std::uint64_t z = key + (j + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

inline at::Tensor uniform(std::string_view name, at::IntArrayRef shape) {  // [0, 1), fp64
  at::Tensor numbers = at::empty(shape, at::kDouble);
  const std::uint64_t key = key_of(name);
  double* u = numbers.data_ptr<double>();
  for (std::int64_t j = 0; j < numbers.numel(); ++j)
    u[j] = static_cast<double>(bits_of(key, static_cast<std::uint64_t>(j)) >> 11) * 0x1p-53;
  return numbers;
}

inline at::Tensor symmetric(std::string_view name, at::IntArrayRef shape) {
  return uniform(name, shape) * 2 - 1;
}

inline at::Tensor bytes(std::string_view name, at::IntArrayRef shape) {
  at::Tensor numbers = at::empty(shape, at::kByte);
  const std::uint64_t key = key_of(name);
  auto* b = numbers.data_ptr<std::uint8_t>();
  for (std::int64_t j = 0; j < numbers.numel(); ++j)
    b[j] = static_cast<std::uint8_t>(bits_of(key, static_cast<std::uint64_t>(j)) >> 56);
  return numbers;
}

// (n, d): neighbours in a row are alike, later columns smaller.
inline at::Tensor vectors(std::string_view name, std::int64_t n, std::int64_t d, double c, double b) {
  at::Tensor t = (uniform(name, {n, d, 4}).sum(2) - 2) * c;
  t = t / (1 + at::arange(d, at::kDouble) / 8).sqrt();
  return t + t.roll(1, 1) / 2 + b;
}
inline at::Tensor vectors_a(std::int64_t n, std::int64_t d) {
  return vectors("frechet.a", n, d, 1, 0);
}
inline at::Tensor vectors_b(std::int64_t n, std::int64_t d) {
  return vectors("frechet.b", n, d, 1.2, 0.1);
}

}  // namespace pom::eval::golden
