#include "pom/generate/device.h"

#include <charconv>

#include <ATen/Context.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/parallel/ranks.h"

namespace pom::generate {
namespace {

constexpr std::string_view gpu = "cuda";

// The one of this process: the first, or with several processes on a machine one for each, as far as they go.
int own_gpu(int count) {
  return count > 0 ? parallel::local_rank() % count : 0;
}

// The number after "cuda:", or -1 where the text is not of that form; "cuda" alone is the own one.
int gpu_number(std::string_view text, int count) {
  if (text == gpu) return own_gpu(count);
  if (!text.starts_with("cuda:")) return -1;
  text.remove_prefix(gpu.size() + 1);
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

int gpus() {
  return at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0;
}

std::string what_there_is(int count) {
  if (!at::Context::hasCUDART()) return "the torch of this build is one without CUDA";
  if (count == 0) return "torch finds no GPU on this machine";
  if (count == 1) return "there is one GPU, cuda:0";
  return detail::concat("there are ", count, " GPUs, cuda:0 to cuda:", count - 1);
}

}  // namespace

Field device_field(std::string_view group) {
  return {.name = "device",
          .help = "device: cpu, cuda, cuda:N, or auto (a GPU if available)",
          .value = "NAME",
          .group = group,
          .saved = false};
}

c10::Device device_named(std::string_view text, std::string_view operation) {
  if (text == "cpu") return c10::kCPU;
  const int count = gpus();
  if (text == "auto")
    return count > 0 ? c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(own_gpu(count)))
                     : c10::Device(c10::kCPU);
  const int number = gpu_number(text, count);
  check(number >= 0, operation, ": device: expected cpu, cuda, cuda:N or auto, got \"", shown(text), "\"");
  check(number < count, operation, ": device: no such device, \"", text, "\": ", what_there_is(count));
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

}  // namespace pom::generate
