#include "pom/eval/picture_features.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

constexpr std::array parts = {&InceptionFeatures::pool64,  &InceptionFeatures::pool192,
                              &InceptionFeatures::pool768, &InceptionFeatures::spatial,
                              &InceptionFeatures::pool3,   &InceptionFeatures::logits};

// A block is always whole for the network: a short last one is filled up with black.
at::Tensor block_input(const Inception& network, InputRule rule, std::int64_t first, std::int64_t count,
                       const PictureAt& picture) {
  at::Tensor input =
      at::zeros({feature_block, 3, inception_side, inception_side}, at::TensorOptions(network.dtype()));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::NoGradGuard no_grad;
    for (std::int64_t i = begin; i < end; ++i)
      input[i].copy_(inception_input(picture(first + i).unsqueeze(0), rule, network.dtype())[0]);
  });
  return input;
}

}  // namespace

InceptionFeatures features_of(const Inception& network, InputRule rule, const InceptionWanted& wanted,
                              std::int64_t count, const PictureAt& picture, const FeaturesDone& done) {
  const c10::NoGradGuard no_grad;
  check(count >= 1, "eval: expected at least one picture, got ", count);
  std::array<std::vector<at::Tensor>, parts.size()> rows;
  for (std::int64_t first = 0; first < count; first += feature_block) {
    const std::int64_t n = std::min(feature_block, count - first);
    const InceptionFeatures block = network.forward(block_input(network, rule, first, n, picture), wanted);
    for (std::size_t p = 0; p < parts.size(); ++p)
      if (const at::Tensor& t = block.*parts[p]; t.defined())
        rows[p].push_back(t.narrow(0, 0, n).to(at::kCPU));
    if (done) done(first + n);
  }
  InceptionFeatures all;
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (!rows[p].empty()) all.*parts[p] = at::cat(rows[p]);
  return all;
}

}  // namespace pom::eval
