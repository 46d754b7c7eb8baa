#include "pom/generate/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "pom/base/error.h"
#include "pom/generate/process.h"
#include "pom/models/counts.h"

namespace pom::generate {
namespace {

// Fewer tokens at a time leave the matrix products short of work.
constexpr std::int64_t tokens_in_flight = 1024, gpu_tokens_in_flight = 1 << 16;

constexpr double most_bytes = 0x1p60;  // where more are wanted, how many does not matter

std::string bytes_text(std::int64_t bytes) {
  constexpr double mib = 1 << 20, gib = 1 << 30, tib = gib * 1024;
  const double size = static_cast<double>(bytes);
  if (size < gib) return pom::detail::concat(std::round(size / mib), " MiB");
  if (size < tib) return pom::detail::concat(std::round(size / gib * 100) / 100, " GiB");
  return pom::detail::concat(std::round(size / tib * 100) / 100, " TiB");
}

// At most `most` at a time, in batches of nearly one size.
void cut(Plan& plan, std::int64_t most) {
  plan.batch = std::max<std::int64_t>(1, std::min(most, plan.items));
  plan.batches = (plan.items + plan.batch - 1) / plan.batch;
  plan.batch = (plan.items + plan.batches - 1) / plan.batches;
}

// So many at a time as are wanted and fit.
Plan planned(RunMemory memory, std::int64_t items, std::int64_t most, const Limits& limits) {
  check(limits.memory_bytes >= 0, "sample: memory: expected a number of bytes, got ", limits.memory_bytes);
  const std::int64_t have = resident_bytes();
  Plan plan;
  plan.items = items;
  const std::int64_t available = available_bytes();  // 0 where the system does not say
  const std::int64_t machine = available > 0 ? have + available : std::numeric_limits<std::int64_t>::max();
  plan.free_bytes = limits.memory_bytes > 0 ? limits.memory_bytes : machine;
  plan.decode_memory = memory.decode_within(plan.free_bytes - have);
  const std::int64_t room = plan.free_bytes - have - memory.of(0);
  cut(plan, std::min(most, room / memory.per_item));
  plan.peak_bytes = have + memory.of(plan.batch);
  plan.fits = plan.peak_bytes <= plan.free_bytes;
  return plan;
}

template <class Fits>
std::string smaller_size(const ModelConfig& config, const codecs::Codec& codec, Request r, Fits&& fits) {
  const std::int64_t unit = config.network.patch * codec.factor();
  while (*r.width > unit && *r.height > unit) {
    r.width = std::max(unit, *r.width / 2 / unit * unit);
    r.height = std::max(unit, *r.height / 2 / unit * unit);
    if (fits(r)) return pom::detail::concat("--size ", *r.width, "x", *r.height, " would fit");
  }
  return {};
}

// Of a stream: one block, and what it keeps of those before it in each evaluation. Keys and values of
// attention are as many as blocks are seen; of a stream without end and without a window that is not known.
std::int64_t stream_bytes(const ModelConfig& config, std::int64_t height, std::int64_t width,
                          const Request& r, std::int64_t blocks) {
  const models::NetworkConfig n = network_of(config, r);
  const std::int64_t evaluations = evaluations_of(r);
  const models::SamplingMemory m =
      models::sampling_memory(n, height, width, dtype_of(r), rows_of(r) == 2, evaluations);
  const double layers = static_cast<double>(rows_of(r) * evaluations * n.depth);
  const std::int64_t seen = std::max<std::int64_t>(1, n.window > 0 ? n.window : blocks);
  constexpr double doubled = 2, both = 2;  // room grows by doubling; keys and values
  const double kept = n.attention() ? doubled * both * static_cast<double>(n.tokens(height, width)) *
                                          static_cast<double>(seen) * static_cast<double>(n.dim)
                                    : static_cast<double>(1 + std::max<std::int64_t>(1, n.window)) *
                                          static_cast<double>(n.features());  // of the block being made
  return m.per_picture + static_cast<std::int64_t>(std::min(layers * kept * sizeof(float), most_bytes));
}

}  // namespace

at::ScalarType dtype_of(const Request& request) {
  if (request.dtype == "bf16") return at::kBFloat16;
  if (request.dtype == "fp16") return at::kHalf;
  if (request.dtype == "fp64") return at::kDouble;
  if (request.dtype == "fp8") return at::kFloat8_e4m3fn;
  return at::kFloat;
}

at::ScalarType codec_dtype(const Request& request) {
  const at::ScalarType dtype = dtype_of(request);
  return dtype == at::kFloat8_e4m3fn ? at::kBFloat16 : dtype;
}

std::int64_t rows_of(const Request& request) {
  return *request.cfg_scale == 1 ? 1 : 2;
}

std::int64_t RunMemory::decode_within(std::int64_t bytes) {
  // What libraries take when they are first used is in no count, nor the gaps between what comes and goes.
  constexpr std::int64_t uncounted = std::int64_t{64} << 20, gaps = 8;
  const std::int64_t room = bytes - (of(1) - decode);
  if (decode <= room || least_decode >= decode) return 0;
  decode = std::max(room, least_decode);
  return std::max(room - room / gaps - uncounted, least_decode);
}

RunMemory run_memory(const ModelConfig& config, const codecs::Codec& codec, const Request& r,
                     const Work& work, std::int64_t stored) {
  const std::int64_t height = *r.height / codec.factor(), width = *r.width / codec.factor();
  const bool clips = config.network.video(), guided = rows_of(r) == 2;
  const std::int64_t frames = clips ? config.network.patch_time * codec.time_factor() : 1, colours = 3;
  const std::int64_t frame = *r.height * *r.width * colours;
  const models::SamplingMemory m =
      models::sampling_memory(config.network, height, width, dtype_of(r), guided, *r.steps);
  RunMemory memory;
  // A block is decoded at a time, in fp32 and then in 8 bits, on top of what the sampler holds.
  memory.per_item = frames * frame * (1 + std::int64_t{sizeof(float)});
  // What a file of a whole clip holds waits for its end in memory.
  if (work.clip && !work.stream)
    memory.per_item += static_cast<std::int64_t>(
        std::min(static_cast<double>(frame * frames) * static_cast<double>(work.blocks), most_bytes));
  // What it begins with is there whole, as pixels and as latents.
  if (r.strength)
    memory.fixed +=
        static_cast<std::int64_t>(std::min(2.0 * sizeof(float) * static_cast<double>(frame * frames) *
                                               static_cast<double>(std::max<std::int64_t>(1, work.blocks)),
                                           most_bytes));
  if (work.on_gpu) return memory;
  memory.fixed += m.fixed + codec.weight_bytes();
  memory.decode = codec.decode_bytes(*r.height, *r.width, frames);
  memory.least_decode = codec.least_decode_bytes(*r.height, *r.width, frames);
  if (!clips)
    memory.per_item += m.per_picture;
  else if (work.stream)
    memory.per_item += stream_bytes(config, height, width, r, work.blocks);
  else
    memory.per_item += models::whole_clip_memory(config.network, height, width, work.blocks,
                                                 config.text.limit, dtype_of(r), guided);
  // Each stored tensor is given back when its conversion is there.
  if (stored > 0) memory.weights = std::max(stored, m.weights);
  return memory;
}

std::int64_t batch_for_speed(const ModelConfig& config, std::int64_t factor, const Request& request,
                             const Work& work) {
  const std::int64_t in_flight = work.on_gpu ? gpu_tokens_in_flight : tokens_in_flight;
  const std::int64_t tokens = config.network.tokens(*request.height / factor, *request.width / factor);
  const double each = static_cast<double>(tokens * rows_of(request)) *
                      static_cast<double>(std::max<std::int64_t>(1, work.blocks_at_once()));
  return std::max<std::int64_t>(1,
                                static_cast<std::int64_t>(std::ceil(static_cast<double>(in_flight) / each)));
}

Plan make_plan(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
               const Work& work, const Limits& limits, std::int64_t stored) {
  check(limits.batch >= 0, "sample: batch: expected at least 1, got ", limits.batch);
  const std::int64_t most =
      limits.batch > 0 ? limits.batch : batch_for_speed(config, codec.factor(), request, work);
  return planned(run_memory(config, codec, request, work, stored), work.items, most, limits);
}

std::string advice(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
                   const Work& work, const Plan& plan, std::int64_t stored) {
  const std::int64_t have = resident_bytes();
  const auto fits = [&](const Request& r, const Work& w) {
    RunMemory memory = run_memory(config, codec, r, w, stored);
    memory.decode_within(plan.free_bytes - have);
    return have + memory.of(1) <= plan.free_bytes;
  };
  Work other = work;
  other.stream = true;
  if (work.clip && !work.stream && config.network.block_causal() && fits(request, other))
    return "--stream would fit";
  for (const char* dtype : {"fp32", "bf16"}) {
    Request cheaper = request;
    cheaper.dtype = dtype;
    if (!work.clip && dtype_of(cheaper) != dtype_of(request) && fits(cheaper, work))
      return pom::detail::concat("--dtype ", dtype, " would fit");
  }
  other = work;
  while (work.clip && !work.stream && other.blocks > 1) {
    other.blocks /= 2;
    if (fits(request, other))
      return pom::detail::concat("--frames ", other.blocks * config.network.patch_time * codec.time_factor(),
                                 " would fit");
  }
  return smaller_size(config, codec, request, [&](const Request& r) { return fits(r, work); });
}

std::string refusal(const Work& work, const Plan& plan, const std::string& advice) {
  const char* what = !work.clip ? "one image at a time" : work.items == 1 ? "the clip" : "one clip at a time";
  return pom::detail::concat("sample: memory: ", what, " takes about ", bytes_text(plan.peak_bytes),
                             ", and there are ", bytes_text(plan.free_bytes),
                             advice.empty() ? "; a smaller model might fit" : "; " + advice);
}

}  // namespace pom::generate
