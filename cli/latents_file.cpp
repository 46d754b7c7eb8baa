#include "cli/latents_file.h"

#include "pom/base/error.h"
#include "pom/generate/tensor_file.h"

namespace pom::cli {
namespace {

constexpr const char* kLatents = "latents";

}  // namespace

at::Tensor read_latents(const std::string& path) {
  const generate::TensorFile file = generate::read_tensors(io::safetensors::Reader(path));
  const auto found = file.tensors.find(kLatents);
  check(found != file.tensors.end(), path, ": expected a tensor \"", kLatents, "\", got none");
  return found->second;
}

void save_latents(const std::string& path, const at::Tensor& latents) {
  generate::write_tensors(path, {{kLatents, latents}}, {});
}

}  // namespace pom::cli
