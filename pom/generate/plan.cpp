#include "pom/generate/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "pom/base/error.h"
#include "pom/generate/process.h"
#include "pom/generate/resolve.h"
#include "pom/models/counts.h"

namespace pom::generate {
namespace {

// Fewer tokens at a time leave the matrix products short of work.
constexpr std::int64_t tokens_in_flight = 1024, gpu_tokens_in_flight = 1 << 16;

std::string bytes_text(std::int64_t bytes) {
  constexpr double mib = 1 << 20, gib = 1 << 30;
  const double size = static_cast<double>(bytes);
  if (size < gib) return pom::detail::concat(std::round(size / mib), " MiB");
  return pom::detail::concat(std::round(size / gib * 100) / 100, " GiB");
}

std::int64_t batch_for_speed(const ModelConfig& config, std::int64_t factor, const Request& request,
                             std::int64_t in_flight) {
  const std::int64_t tokens = config.network.tokens(*request.height / factor, *request.width / factor);
  const std::int64_t each = tokens * rows_of(request);
  return (in_flight + each - 1) / each;
}

// At most `most` at a time, in batches of nearly one size.
void cut(Plan& plan, std::int64_t most) {
  plan.batch = std::max<std::int64_t>(1, std::min(most, plan.pictures));
  plan.batches = (plan.pictures + plan.batch - 1) / plan.batch;
  plan.batch = (plan.pictures + plan.batches - 1) / plan.batches;
}

}  // namespace

at::ScalarType dtype_of(const Request& request) {
  if (request.dtype == "bf16") return at::kBFloat16;
  if (request.dtype == "fp16") return at::kHalf;
  if (request.dtype == "fp64") return at::kDouble;
  if (request.dtype == "fp8") return at::kFloat8_e4m3fn;
  return at::kFloat;
}

std::int64_t rows_of(const Request& request) {
  return *request.cfg_scale == 1 ? 1 : 2;
}

RunMemory run_memory(const ModelConfig& config, const codecs::Codec& codec, const Request& r,
                     std::int64_t stored) {
  const std::int64_t height = *r.height / codec.factor(), width = *r.width / codec.factor();
  const models::SamplingMemory m =
      models::sampling_memory(config.network, height, width, dtype_of(r), rows_of(r) == 2, *r.steps);
  const std::int64_t pixels = *r.height * *r.width, colours = 3;
  RunMemory memory;
  memory.fixed = m.fixed;
  // Decoded in fp32 and then in 8 bits, on top of what the sampler holds.
  memory.per_picture = m.per_picture + codec.decode_bytes(*r.height, *r.width) +
                       pixels * colours * (1 + std::int64_t{sizeof(float)});
  // Each stored tensor is given back when its conversion is there.
  if (stored > 0) memory.weights = std::max(stored, m.weights);
  return memory;
}

Plan make_plan(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
               std::int64_t pictures, const Limits& limits, std::int64_t stored) {
  check(limits.batch >= 0, "sample: batch: expected at least 1, got ", limits.batch);
  check(limits.memory_bytes >= 0, "sample: memory: expected a number of bytes, got ", limits.memory_bytes);
  const RunMemory memory = run_memory(config, codec, request, stored);
  const std::int64_t have = resident_bytes();
  Plan plan;
  plan.pictures = pictures;
  const std::int64_t available = available_bytes();  // 0 where the system does not say
  const std::int64_t machine = available > 0 ? have + available : std::numeric_limits<std::int64_t>::max();
  plan.free_bytes = limits.memory_bytes > 0 ? limits.memory_bytes : machine;
  const std::int64_t room = plan.free_bytes - have - memory.of(0);
  const std::int64_t most =
      limits.batch > 0 ? limits.batch : batch_for_speed(config, codec.factor(), request, tokens_in_flight);
  cut(plan, std::min(most, room / memory.per_picture));
  plan.peak_bytes = have + memory.of(plan.batch);
  plan.fits = plan.peak_bytes <= plan.free_bytes;
  return plan;
}

Plan make_gpu_plan(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
                   std::int64_t pictures, const Limits& limits) {
  check(limits.batch >= 0, "sample: batch: expected at least 1, got ", limits.batch);
  Plan plan;
  plan.pictures = pictures;
  cut(plan, limits.batch > 0 ? limits.batch
                             : batch_for_speed(config, codec.factor(), request, gpu_tokens_in_flight));
  return plan;
}

std::string advice(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
                   const Plan& plan, std::int64_t stored) {
  const std::int64_t have = resident_bytes();
  const auto fits = [&](const Request& r) {
    return have + run_memory(config, codec, r, stored).of(1) <= plan.free_bytes;
  };
  for (const char* dtype : {"fp32", "bf16"}) {
    Request other = request;
    other.dtype = dtype;
    if (dtype_of(other) != dtype_of(request) && fits(other))
      return pom::detail::concat("--dtype ", dtype, " would fit");
  }
  const std::int64_t unit = config.network.patch * codec.factor();
  Request other = request;
  while (*other.width > unit && *other.height > unit) {
    other.width = std::max(unit, *other.width / 2 / unit * unit);
    other.height = std::max(unit, *other.height / 2 / unit * unit);
    if (fits(other)) return pom::detail::concat("--size ", *other.width, "x", *other.height, " would fit");
  }
  return {};
}

std::string refusal(const Plan& plan, const std::string& advice) {
  return pom::detail::concat("sample: memory: one picture at a time takes about ",
                             bytes_text(plan.peak_bytes), ", and there are ", bytes_text(plan.free_bytes),
                             advice.empty() ? "; a smaller model might fit" : "; " + advice);
}

}  // namespace pom::generate
