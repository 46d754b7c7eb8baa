// scores_tool FILE SCORE …: a score of the tensors of a safetensors file, all F64, for
// python/tests/test_score_referees.py:
//   frechet                   the Fréchet distance of the samples `a` and `b` (N, F)
//   kernel SUBSETS SIZE SEED  their kernel distance: mean and deviation
//   neighbours K STRICT       precision, recall, density, coverage of `b` against the real `a`
//   inception SPLITS SEED     the Inception score of the logits `a`: mean and deviation
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include <ATen/ops/empty.h>

#include "pom/eval/feature_scores.h"
#include "pom/io/safetensors.h"

namespace {

using namespace pom::eval;

at::Tensor tensor(const pom::io::safetensors::File& file, const char* name) {
  const auto& view = file.at(name);
  at::Tensor out =
      at::empty(at::IntArrayRef(view.shape.data(), view.shape.size()), at::TensorOptions(at::kDouble));
  std::memcpy(out.data_ptr(), view.data.data(), out.nbytes());
  return out;
}

}  // namespace

int main(int count, char** words) try {
  if (count < 3) return 2;
  const auto file = pom::io::safetensors::File::open(words[1]);
  const std::string score = words[2];
  const auto number = [&](int i) { return i < count ? std::stoll(words[i]) : 0; };
  const at::Tensor a = tensor(file, "a");
  if (score == "inception") {
    const ScoreSpread s = inception_score(a, {.splits = number(3), .shuffled = number(4)});
    std::printf("%.17g %.17g\n", s.mean, s.deviation);
    return 0;
  }
  const at::Tensor b = tensor(file, "b");
  if (score == "frechet") {
    std::printf("%.17g\n", frechet_of_samples(a, b));
  } else if (score == "kernel") {
    const ScoreSpread s = kernel_distance(a, b, {.subsets = number(3), .size = number(4), .seed = number(5)});
    std::printf("%.17g %.17g\n", s.mean, s.deviation);
  } else if (score == "neighbours") {
    const Neighbours n = neighbours(a, b, {.k = number(3), .strict = number(4) != 0});
    std::printf("%.17g %.17g %.17g %.17g\n", n.precision, n.recall, n.density, n.coverage);
  } else {
    return 2;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
