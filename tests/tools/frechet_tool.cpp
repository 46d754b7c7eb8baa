// frechet_tool FILE: the Fréchet distance of the tensors `a` and `b` (N, F) of a safetensors file, both F64,
// for python/tests/test_eval.py.
#include <cstdio>
#include <cstring>
#include <exception>

#include <ATen/ops/empty.h>

#include "pom/eval/frechet.h"
#include "pom/io/safetensors.h"

namespace {

at::Tensor tensor(const pom::io::safetensors::File& file, const char* name) {
  const auto& view = file.at(name);
  at::Tensor out =
      at::empty(at::IntArrayRef(view.shape.data(), view.shape.size()), at::TensorOptions(at::kDouble));
  std::memcpy(out.data_ptr(), view.data.data(), out.nbytes());
  return out;
}

}  // namespace

int main(int count, char** words) try {
  if (count != 2) return 2;
  const auto file = pom::io::safetensors::File::open(words[1]);
  using pom::eval::fit_gaussian, pom::eval::frechet_distance;
  std::printf("%.17g\n", frechet_distance(fit_gaussian(tensor(file, "a")), fit_gaussian(tensor(file, "b"))));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
