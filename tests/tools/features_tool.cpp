// features_tool NETWORK RULE DTYPE WEIGHTS PICTURES: the features of pictures (whatever pom eval reads) as
// fp64 on stdout, a row for each: of inception its 2048, 2023 and 1008, of dinov2 the class token. Where the
// weights are -, what the network would take: (3, 299, 299) or (3, 224, 224) of each. For
// python/tests/test_dinov2.py and test_score_referees.py.
#include <cstdio>
#include <exception>
#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "pom/eval/dinov2.h"
#include "pom/eval/inception.h"
#include "pom/eval/picture_set.h"

namespace {

using namespace pom::eval;

at::Tensor pictures_of(const std::string& path) {
  const std::unique_ptr<PictureSet> set = open_pictures(path);
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < set->count(); ++i) all.push_back(set->read(i));
  return at::stack(all);
}

at::Tensor features_of(const std::string& network, InputRule rule, at::ScalarType dtype,
                       const std::string& weights, const at::Tensor& pictures) {
  const at::Tensor input =
      network == "dinov2" ? dinov2_input(pictures, rule, dtype) : inception_input(pictures, rule, dtype);
  if (weights == "-") return input;
  if (network == "dinov2") return Dinov2::read(weights, dtype, at::kCPU).forward(input);
  const InceptionFeatures f = Inception::read(weights, dtype, at::kCPU)
                                  .forward(input, {.spatial = true, .pool3 = true, .logits = true});
  return at::cat({f.pool3, f.spatial, f.logits}, 1);
}

}  // namespace

int main(int count, char** words) try {
  if (count != 6) return 2;
  const at::ScalarType dtype = words[3] == std::string("fp64") ? at::kDouble : at::kFloat;
  const at::Tensor found = features_of(words[1], input_rule(words[2]), dtype, words[4], pictures_of(words[5]))
                               .to(at::kDouble)
                               .contiguous();
  std::fwrite(found.const_data_ptr(), 1, found.nbytes(), stdout);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
