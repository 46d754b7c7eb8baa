// A program of someone else: one layer of the Polynomial Mixer on random tokens.
#include <iostream>

#include <ATen/ops/randn.h>

#include "pom/ops/mixer.h"

int main() {
  const at::Tensor x = at::randn({2, 10, 16});  // B, n, d
  const pom::ops::LayerWeights weights{at::randn({64, 16}), {}, at::randn({64, 16}), {},
                                       at::randn({16, 64}), {}};
  std::cout << pom::ops::mixer_layer(x, x, weights, /*order=*/2).sizes() << "\n";
}
