// torch.ops.pom.build: what this library is and has, for `python -m libpom`.
#include <string>

#include <ATen/core/Dict.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include "pom/base/build_info.h"
#include "pom/ops/cpu_info.h"
#include "pom/ops/cuda/block.h"

namespace pom::ops {
namespace {

// "version", "line" as `pom --version` begins, "torch" it was built for, "cpu": the instruction set of the
// kernels in use, "cuda_kernels": "yes" or "no".
c10::Dict<std::string, std::string> build() {
  c10::Dict<std::string, std::string> about;
  about.insert("version", std::string(build_info().version));
  about.insert("line", build_line());
  about.insert("torch", TORCH_VERSION);
  about.insert("cpu", cpu_info().kernels);
  about.insert("cuda_kernels", cuda::has_kernels() ? "yes" : "no");
  return about;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.def("build() -> Dict(str, str)", build);
}

}  // namespace pom::ops
