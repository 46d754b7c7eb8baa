// Weights that were never learnt: every number follows from the name of its tensor and its place in it, so
// that everybody can have the same network.
#include <cmath>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "pom/eval/inception.h"

namespace pom::eval {
namespace {

std::uint64_t hash_of_name(std::string_view name) {  // FNV-1a
  std::uint64_t key = 0xcbf29ce484222325;
  for (const char c : name) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return key;
}

// splitmix64: the j-th number of a key, evenly in [-1, 1).
double drawn_number(std::uint64_t key, std::uint64_t j) {
  std::uint64_t z = key + (j + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

at::Tensor drawn_tensor(const std::string& name, at::IntArrayRef shape, double middle, double reach) {
  at::Tensor numbers = at::empty(shape, at::kDouble);
  const std::uint64_t key = hash_of_name(name);
  double* each = numbers.data_ptr<double>();
  for (std::int64_t j = 0; j < numbers.numel(); ++j)
    each[j] = middle + reach * drawn_number(key, static_cast<std::uint64_t>(j));
  return numbers.to(at::kFloat);
}

}  // namespace

Inception::Weights drawn_inception_weights() {
  Inception::Weights weights;
  const auto add = [&](const std::string& name, at::IntArrayRef shape, double middle, double reach) {
    weights[name] = drawn_tensor(name, shape, middle, reach);
  };
  for (const InceptionConv& conv : inception_convs()) {
    const auto inputs = static_cast<double>(conv.in * conv.kernel[0] * conv.kernel[1]);
    add(conv.name + ".conv.weight", {conv.out, conv.in, conv.kernel[0], conv.kernel[1]}, 0,
        std::sqrt(6 / inputs));
    add(conv.name + ".bn.weight", {conv.out}, 1, 0.1);
    add(conv.name + ".bn.bias", {conv.out}, 0, 0.1);
    add(conv.name + ".bn.running_mean", {conv.out}, 0, 0.1);
    add(conv.name + ".bn.running_var", {conv.out}, 1, 0.5);
  }
  add("fc.weight", {inception_outputs, inception_features}, 0, 0.1);
  add("fc.bias", {inception_outputs}, 0, 1);
  return weights;
}

}  // namespace pom::eval
