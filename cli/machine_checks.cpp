// What `pom doctor` finds out about the machine and this build.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include "cli/checks.h"
#include "cli/processor.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "cli/version.h"
#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/base/progress.h"
#include "pom/generate/process.h"
#include "pom/io/picture.h"
#include "pom/ops/cpu_info.h"
#include "pom/ops/cuda/device.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool torch_has_cuda() {
  return at::show_config().find("USE_CUDA=1") != std::string::npos ||
         at::show_config().find("USE_CUDA=ON") != std::string::npos;
}

Check check_torch() {
  return {"LibTorch", State::ok,
          detail::concat(TORCH_VERSION, torch_has_cuda() ? ", with CUDA" : ", CPU only")};
}

Check check_processor() {
  const ops::CpuInfo cpu = ops::cpu_info();
  const std::string name = cpu.name.empty() ? "unknown" : cpu.name;
  if (!cpu.features.empty()) return {"processor", State::ok, name + ": " + joined(cpu.features)};
  return {"processor", State::note, name + ", without AVX2",
          "everything works, several times slower than with AVX2 or AVX-512"};
}

Check check_kernels() {
  const ops::CpuInfo cpu = ops::cpu_info();
  const std::string text =
      cpu.kernels == cpu.bf16_kernels ? cpu.kernels : cpu.kernels + ", bf16: " + cpu.bf16_kernels;
  if (environment("POM_CPU_ISA").empty()) return {"kernels", State::ok, text};
  return {"kernels", State::note, text + ", with POM_CPU_ISA=" + environment("POM_CPU_ISA"),
          "unset POM_CPU_ISA to let the processor decide"};
}

Check check_amx() {
  if (!ops::announces_amx()) return {"AMX", State::ok, "not announced by the processor"};
  const std::string limit = environment("ONEDNN_MAX_CPU_ISA");
  if (amx_was_avoided())
    return {"AMX", State::note, "announced, and left unused: this program sets ONEDNN_MAX_CPU_ISA=" + limit,
            "some virtual machines announce AMX and die of it (SIGILL); where it works, "
            "ONEDNN_MAX_CPU_ISA=DEFAULT "
            "allows it"};
  const bool allowed = limit.find("AMX") != std::string::npos || limit == "DEFAULT" || limit == "ALL";
  if (!allowed) return {"AMX", State::ok, "announced, and left unused: ONEDNN_MAX_CPU_ISA=" + limit};
  return {"AMX", State::note, "announced and allowed: ONEDNN_MAX_CPU_ISA=" + limit,
          "where programs end with SIGILL, set ONEDNN_MAX_CPU_ISA=" + std::string(kWithoutAmx)};
}

Check check_sums() {
  const std::string order = environment("MKL_CBWR");
  if (order == kSumsInOrder) return {"sums", State::ok, "the same bits for any number of threads"};
  return {"sums", State::note, "as MKL_CBWR=" + order + " has them",
          "unset MKL_CBWR for the same bits with any number of threads"};
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

Check check_threads() {
  const int threads = at::get_num_threads(), cores = usable_cores();
  const std::string text = detail::concat(threads, threads == 1 ? " thread" : " threads", " on ", cores,
                                          cores == 1 ? " core" : " cores");
  if (threads > cores)
    return {"threads", State::note, text,
            detail::concat("more threads than cores are slower: --threads ", cores)};
  const std::string limit = environment("OMP_NUM_THREADS");
  if (threads < cores && !limit.empty())
    return {"threads", State::note, text + ", with OMP_NUM_THREADS=" + limit,
            detail::concat("--threads ", cores, " may be faster")};
  return {"threads", State::ok, text};
}

Check check_memory() {
  const double free = static_cast<double>(generate::available_bytes());
  if (free <= 0)
    return {"memory", State::note, "the system does not say how much is free", "give --memory-limit"};
  if (free < 512.0 * 1024 * 1024)
    return {"memory", State::note, bytes_text(free) + " free",
            "end other programs, or see what fits with pom sample --dry-run"};
  return {"memory", State::ok, bytes_text(free) + " free"};
}

GpuFacts gpu_facts() {
  GpuFacts facts{.driver = driver_version(), .torch_has_cuda = torch_has_cuda()};
  if (facts.driver.empty() || !facts.torch_has_cuda) return facts;
  facts.count = at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0;
  facts.kernels = ops::cuda::has_kernels();
  if (facts.count > 0) facts.name = ops::cuda::device_name(c10::Device(c10::kCUDA, 0));
  return facts;
}

Check check_pictures() {
  const std::string libraries = io::picture_libraries();
  if (!libraries.empty()) return {"pictures", State::ok, libraries};
  return {"pictures", State::problem, "this build reads and writes neither PNG nor JPEG",
          "install libpng-dev and libjpeg-dev, and build libpom again"};
}

Check check_terminal() {
  if (!is_terminal(2))
    return {"terminal", State::ok, "stderr is not a terminal: progress comes as plain lines"};
  return {"terminal", State::ok,
          detail::concat(terminal_width(2), " columns", colours(2) ? ", colours" : ", no colours")};
}

Check check_disk() {
  std::error_code error;
  const fs::space_info space = fs::space(".", error);
  if (error)
    return {"disk", State::note, "this folder's free space is unknown: " + error.message(), "go to another"};
  const std::string text = bytes_text(static_cast<double>(space.available)) + " free in this folder";
  if (::access(".", W_OK) != 0)
    return {"disk", State::note, text + ", which cannot be written to", "give -o a folder that can"};
  if (space.available < 64u * 1024 * 1024) return {"disk", State::note, text, "make room before you sample"};
  return {"disk", State::ok, text};
}

Check check_version() {
  const bool debug = build_info().build_type == "Debug";
  return {"libpom", debug ? State::note : State::ok, build_line().substr(std::string("libpom ").size()),
          debug ? "a Debug build is slow: cmake --preset release" : ""};
}

}  // namespace

// From "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon …": the first word of numbers and
// dots.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  return {};
}

Check check_gpu(const GpuFacts& facts) {
  if (facts.driver.empty()) return {"GPU", State::ok, "no NVIDIA driver: CPU only"};
  const std::string driver = "NVIDIA driver " + facts.driver;
  if (!facts.torch_has_cuda)
    return {"GPU", State::note, driver + ", but this LibTorch is a CPU build: the GPU is not used",
            "build libpom against a torch with CUDA"};
  if (facts.count == 0)
    return {"GPU", State::note, driver + ", but torch finds no GPU",
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES"};
  const std::string found =
      detail::concat(facts.count == 1 ? "" : detail::concat(facts.count, " times "),
                     facts.name.empty() ? "a GPU" : facts.name, ", ", driver, ": --device cuda runs on it");
  if (facts.kernels) return {"GPU", State::ok, found};
  return {"GPU", State::note, found + ", without libpom's own kernels",
          "they are several times faster: build libpom where nvcc is found (docs/gpu.md)"};
}

std::vector<Check> check_machine() {
  std::vector<Check> checks = {check_version(), check_torch()};
  const Check kernels = guarded("kernels", "unset POM_CPU_ISA", [] { return ops::cpu_info().kernels; });
  if (kernels.state == State::problem) {
    checks.push_back(kernels);
  } else {
    checks.insert(checks.end(), {check_processor(), check_kernels()});
  }
  checks.insert(checks.end(), {check_amx(), check_sums(), check_threads(), check_memory(),
                               check_gpu(gpu_facts()), check_pictures()});
  for (const Check& part : check_parts()) checks.push_back(part);
  checks.insert(checks.end(), {check_terminal(), check_disk()});
  return checks;
}

}  // namespace pom::cli
