#include "cli/version.h"

#include <ATen/Context.h>
#include <torch/headeronly/version.h>

#include "cli/parts.h"
#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/io/clip.h"
#include "pom/io/picture.h"
#include "pom/ops/cpu_info.h"

namespace pom::cli {
namespace {

// What a part that is there consists of.
std::string content_of(const Part& part) {
  if (part.name == "pictures") return io::picture_libraries();
  if (part.name == "clips") return io::clip_libraries();
  if (part.name == "CUDA kernels") return std::string(this_build().architectures);
  return std::string(part.brings);
}

std::string kernel_sets() {
  std::string text;
  for (const std::string& set : ops::cpu_kernel_sets()) text += (text.empty() ? "" : ", ") + set;
  return text;
}

std::string line(std::string_view name, const std::string& text) {
  constexpr std::size_t column = 14;
  return "\n" + std::string(name) + std::string(column - name.size(), ' ') + text;
}

}  // namespace

std::string version_text() {
  std::string text =
      build_line() +
      line("LibTorch",
           detail::concat(TORCH_VERSION, at::Context::hasCUDART() ? ", with CUDA" : ", CPU only")) +
      line("CPU kernels", kernel_sets());
  for (const Part& part : parts_of(this_build()))
    text += line(part.name, part.found == Found::yes ? content_of(part) : "left out: " + part.why);
  return text;
}

std::vector<Check> check_parts() {
  std::vector<Check> checks;
  for (const Part& part : parts_of(this_build())) {
    if (part.name == "pictures") continue;
    const std::string name(part.name);
    if (part.found == Found::yes)
      checks.push_back({name, State::ok, content_of(part)});
    else if (part.name == "CUDA kernels" && !this_build().torch_has_cuda)
      checks.push_back({name, State::ok, "none: this torch is a CPU build"});
    else
      checks.push_back(
          {name, State::note, detail::concat("left out of this build: ", part.brings), part.why});
  }
  return checks;
}

}  // namespace pom::cli
