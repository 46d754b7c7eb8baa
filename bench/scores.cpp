// The features of scores, for bench/scores.py:
//   scores_bench WEIGHTS DEVICE SIDE
// says "ready" and then, for each line "network" or "pictures" on stdin, runs one block of Inception-v3: of
// inputs that are there, or from pictures of SIDE x SIDE in bytes. The line that answers is a sum of
// features.
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include "pom/eval/picture_features.h"

namespace {

using namespace pom::eval;

// The same as in scores.py.
at::Tensor drawn_pictures(std::int64_t side) {
  const at::Tensor place = at::arange(feature_block * 3 * side * side, at::kLong);
  return (place * 2654435761)
      .remainder(1 << 20)
      .floor_divide(4096)
      .to(at::kByte)
      .view({feature_block, 3, side, side});
}

}  // namespace

int main(int count, char** words) try {
  if (count != 4) throw std::runtime_error("expected weights, a device and a side");
  const at::NoGradGuard no_gradients;
  at::globalContext().setAllowTF32CuDNN(false);
  const at::Device device(words[2]);
  const auto network = open_inception(words[1], InputRule::torch, {}, device);
  const at::Tensor pictures = drawn_pictures(std::stoll(words[3]));
  const at::Tensor input = network->input(pictures.to(device));
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const at::Tensor found =
        line == "network" ? network->forward(input).main
                          : features_of(*network, feature_block, {0, feature_block}, [&](std::int64_t i) {
                              return pictures[i];
                            }).main;
    std::cout << found.sum().item<double>() << std::endl;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
