// What a run will take: memory by counting and by looking at the process, time by sampling for a moment.
#include <algorithm>
#include <chrono>
#include <utility>

#include <torch/cuda.h>

#include "pom/base/error.h"
#include "pom/generate/engine_impl.h"
#include "pom/generate/plan.h"
#include "pom/generate/process.h"
#include "pom/models/counts.h"

namespace pom::generate {
namespace {

constexpr double patience = 1.5;         // seconds of measuring, once the least has been done
constexpr std::size_t least = 3;         // evaluations; the first one is slower and counts apart
constexpr double macs_at_a_time = 1e11;  // more in one evaluation would take seconds

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Multiply-adds of one row (a block of an item, or its half that guidance leads away from).
double row_macs(const ModelConfig& config, std::int64_t factor, const Request& r) {
  return static_cast<double>(models::count_macs(config.network, *r.height / factor, *r.width / factor));
}

// Rows of one block over all evaluations of the network.
std::int64_t total_rows(const Request& r) {
  const diffusion::Guidance guidance = guidance_of(r);
  std::int64_t rows = 0;
  if (!samples(r)) return rows;
  for (const double t : diffusion::evaluation_times(*r.sampler, sampler_options(r)))
    rows += guidance.acts_at(t) ? 2 : 1;
  return rows;
}

// What is measured in place of the run's largest batch: the same where that is quick; else fewer items, fewer
// blocks, or a part of one.
Job probe_of(const Job& job, std::int64_t batch, const ModelConfig& config, std::int64_t factor) {
  Job probe = job;
  probe.items.resize(static_cast<std::size_t>(batch));
  for (Request& item : probe.items) item.strength.reset(), item.init.clear();
  Request& r = probe.items.front();
  const std::int64_t unit = config.network.patch * factor;
  const double block = row_macs(config, factor, r) * static_cast<double>(rows_of(r));
  const auto fitting = static_cast<std::int64_t>(macs_at_a_time / block);
  probe.blocks = job.stream ? 1 : std::clamp<std::int64_t>(fitting, 1, job.blocks);
  probe.items.resize(static_cast<std::size_t>(
      std::clamp<std::int64_t>(fitting / probe.blocks, 1, std::max<std::int64_t>(1, batch))));
  while (probe.items.size() == 1 && job.continue_from.empty() &&
         row_macs(config, factor, r) * static_cast<double>(rows_of(r)) > macs_at_a_time && *r.height > unit)
    r.height = std::max(unit, *r.height / 2 / unit * unit);
  probe.frames = 0;
  probe.save_state.clear();
  std::erase_if(probe.changes, [&](const Job::Change& change) { return change.block >= probe.blocks; });
  return probe;
}

// Seconds and rows of the evaluations so far.
struct Tally {
  double seconds = 0, rows = 0;
};

struct Enough {};

}  // namespace

Engine::Impl::Speed Engine::Impl::measure(const Job& probe) {
  const Request& r = probe.first();
  const diffusion::Guidance guidance = guidance_of(r);
  const std::vector<double> times = diffusion::evaluation_times(*r.sampler, sampler_options(r));
  const double blocks = static_cast<double>(probe.blocks * std::ssize(probe.items));
  Speed speed;
  Tally first, later;
  std::size_t done = 0;
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  SamplingHooks hooks;
  hooks.before = [&] {
    if (done == 0) speed.setup = seconds_since(std::exchange(last, Clock::now()));
    if (done >= least && seconds_since(start) > speed.setup + patience) throw Enough();
  };
  hooks.after = [&] {  // what the sampler does between two evaluations counts with the later one
    if (device.is_cuda()) torch::cuda::synchronize(device.index());  // it only has been asked to compute
    Tally& tally = done == 0 ? first : later;
    tally.seconds += seconds_since(std::exchange(last, Clock::now()));
    tally.rows += (guidance.acts_at(times[done]) ? 2 : 1) * blocks;
    ++done;
  };
  Observer observer;
  observer.on_frames = [](Frames&&) {};
  try {
    BatchRun(*this, denoiser(probe.first()), probe, 0, std::ssize(probe.items), observer, {}, {}).run(hooks);
    speed.decode = seconds_since(last) / blocks;
    speed.decoded = true;
  } catch (const Enough&) {
  }
  const Tally& usual = later.rows > 0 ? later : first;
  speed.per_mac = usual.seconds / usual.rows / row_macs(config, codec->factor(), r);
  speed.first = std::max(0.0, first.seconds - usual.seconds / usual.rows * first.rows);
  return speed;
}

double Engine::macs(const Job& job) const {
  const Request& r = job.first();
  return row_macs(impl_->config, impl_->codec->factor(), r) *
         static_cast<double>(total_rows(r) * std::ssize(job.items)) *
         static_cast<double>(std::max<std::int64_t>(1, job.blocks));
}

std::int64_t Engine::memory(const Job& job, std::int64_t items) const {
  const std::scoped_lock lock(impl_->codec_options);
  const std::int64_t weights = job.stream ? impl_->files.weights.bytes() : 0;
  return run_memory(impl_->config, *impl_->codec, job.first(), impl_->work(job), weights).of(items);
}

std::int64_t Engine::good_batch(const Job& job) const {
  return batch_for_speed(impl_->config, impl_->codec->factor(), job.first(), impl_->work(job));
}

Forecast Engine::forecast(const Job& job, const Limits& limits) {
  const ModelConfig& config = impl_->config;
  const codecs::Codec& codec = *impl_->codec;
  const Request& r = job.first();
  const Work work = impl_->work(job);
  const Plan plan = impl_->plan(job, limits);
  const std::int64_t blocks = std::max<std::int64_t>(1, job.blocks);

  Forecast f;
  f.items = plan.items;
  f.batch = plan.batch;
  f.evaluations = plan.batches * (job.stream ? blocks : 1) * evaluations_of(r);
  f.macs = macs(job);
  f.peak_bytes = plan.peak_bytes;
  f.free_bytes = plan.free_bytes;
  f.fits = plan.fits;
  if (!f.fits) {
    f.advice = advice(config, codec, r, work, plan, impl_->stored_bytes(r));
    return f;
  }
  const Job probe = probe_of(job, plan.batch, config, codec.factor());
  const Clock::time_point start = Clock::now();
  impl_->denoiser(r);
  const double making = seconds_since(start);
  const Impl::Speed speed = impl_->measure(probe);
  f.seconds = making + speed.first + static_cast<double>(plan.batches) * speed.setup +
              speed.per_mac * f.macs + speed.decode * static_cast<double>(plan.items * blocks);
  f.peak_bytes = 0;
  if (work.on_gpu) return f;
  // What the process has now holds the buffers of the probe, which grow to those of a batch, but nothing of
  // what decoding took for a moment; nor the codec's weights where nothing was decoded. The codec's options
  // are those of the plan: strips, where it decodes in strips.
  RunMemory has = run_memory(config, codec, probe.first(), impl_->work(probe), 0);
  has.decode = 0;
  if (!speed.decoded) has.fixed -= codec.weight_bytes();
  const std::int64_t more =
      run_memory(config, codec, r, work, 0).of(plan.batch) - has.of(std::ssize(probe.items));
  f.peak_bytes = std::max(peak_bytes(), resident_bytes() + more);
  f.fits = f.peak_bytes <= f.free_bytes;
  if (!f.fits) f.advice = advice(config, codec, r, work, plan, impl_->stored_bytes(r));
  return f;
}

}  // namespace pom::generate
