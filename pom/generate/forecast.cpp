// What a run will take: memory by counting and by looking at the process, time by sampling for a moment.
#include <algorithm>
#include <chrono>
#include <utility>

#include <torch/cuda.h>

#include "pom/base/error.h"
#include "pom/generate/clip_engine_impl.h"
#include "pom/generate/engine_impl.h"
#include "pom/generate/plan.h"
#include "pom/generate/process.h"
#include "pom/generate/resolve.h"
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

// Multiply-adds of one row (a picture, or its half without class).
double row_macs(const ModelConfig& config, std::int64_t factor, const Request& r) {
  return static_cast<double>(models::count_macs(config.network, *r.height / factor, *r.width / factor));
}

// Rows of one picture over all evaluations of the network.
std::int64_t total_rows(const Request& r) {
  const diffusion::Guidance guidance = guidance_of(r);
  std::int64_t rows = 0;
  for (const double t : diffusion::evaluation_times(*r.sampler, sampler_options(r)))
    rows += guidance.acts_at(t) ? 2 : 1;
  return rows;
}

// What is measured in place of the run's largest batch: the same where that is quick; else fewer pictures, or
// a part of one.
std::vector<Request> probe_of(std::vector<Request> batch, const ModelConfig& config, std::int64_t factor) {
  const std::int64_t unit = config.network.patch * factor;
  const double row = row_macs(config, factor, batch.front()) * static_cast<double>(rows_of(batch.front()));
  const auto fitting = static_cast<std::size_t>(macs_at_a_time / row);
  batch.resize(std::clamp<std::size_t>(fitting, 1, batch.size()));
  Request& r = batch.front();
  while (batch.size() == 1 &&
         row_macs(config, factor, r) * static_cast<double>(rows_of(r)) > macs_at_a_time && *r.height > unit)
    r.height = std::max(unit, *r.height / 2 / unit * unit);
  return batch;
}

// Seconds and rows of the evaluations so far.
struct Tally {
  double seconds = 0, rows = 0;
};

struct Enough {};

}  // namespace

Engine::Impl::Speed Engine::Impl::measure(std::span<const Request> probe) {
  const Request& r = probe.front();
  const diffusion::Guidance guidance = guidance_of(r);
  const std::vector<double> times = diffusion::evaluation_times(*r.sampler, sampler_options(r));
  Speed speed;
  Tally first, later;
  std::size_t done = 0;
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  Hooks hooks;
  hooks.before = [&] {
    if (done == 0) speed.setup = seconds_since(std::exchange(last, Clock::now()));
    if (done >= least && seconds_since(start) > speed.setup + patience) throw Enough();
  };
  hooks.after = [&] {  // what the sampler does between two evaluations counts with the later one
    if (device.is_cuda()) torch::cuda::synchronize(device.index());  // it only has been asked to compute
    Tally& tally = done == 0 ? first : later;
    tally.seconds += seconds_since(std::exchange(last, Clock::now()));
    tally.rows += static_cast<double>((guidance.acts_at(times[done]) ? 2 : 1) * probe.size());
    ++done;
  };
  try {
    const at::Tensor latents = sample_batch(probe, hooks);
    const Clock::time_point now = Clock::now();
    decode(latents, probe, 0);
    speed.decode = seconds_since(now) / static_cast<double>(probe.size());
  } catch (const Enough&) {
  }
  const Tally& usual = later.rows > 0 ? later : first;
  speed.per_mac = usual.seconds / usual.rows / row_macs(config, codec->factor(), r);
  speed.first = std::max(0.0, first.seconds - usual.seconds / usual.rows * first.rows);
  return speed;
}

Forecast Engine::forecast(const Request& request, const Limits& limits) {
  const std::vector<Request> pictures = resolve(request);
  const ModelConfig& config = impl_->config;
  const codecs::Codec& codec = *impl_->codec;
  const Request& r = pictures.front();
  const Plan plan = impl_->plan(r, std::ssize(pictures), limits);

  Forecast f;
  f.pictures = plan.pictures;
  f.batch = plan.batch;
  f.evaluations = plan.batches * diffusion::evaluations(*r.sampler, sampler_options(r));
  const double row = row_macs(config, codec.factor(), r);
  f.macs = row * static_cast<double>(total_rows(r) * plan.pictures);
  f.peak_bytes = plan.peak_bytes;
  f.free_bytes = plan.free_bytes;
  f.fits = plan.fits;
  if (!f.fits) {
    f.advice = advice(config, codec, r, plan, impl_->stored_bytes(r));
    return f;
  }
  const std::vector<Request> probe =
      probe_of({pictures.begin(), pictures.begin() + plan.batch}, config, codec.factor());
  const Clock::time_point start = Clock::now();
  impl_->denoiser(dtype_of(r));
  const double making = seconds_since(start);
  const Impl::Speed speed = impl_->measure(probe);
  f.seconds = making + speed.first + static_cast<double>(plan.batches) * speed.setup +
              speed.per_mac * f.macs + speed.decode * static_cast<double>(plan.pictures);
  if (!impl_->device.is_cpu()) return f;
  // What the process has now holds the buffers of the probe, which grow to those of a batch.
  const std::int64_t more = run_memory(config, codec, r, 0).of(plan.batch) -
                            run_memory(config, codec, probe.front(), 0).of(std::ssize(probe));
  f.peak_bytes = std::max(peak_bytes(), resident_bytes() + more);
  f.fits = f.peak_bytes <= f.free_bytes;
  if (!f.fits) f.advice = advice(config, codec, r, plan, impl_->stored_bytes(r));
  return f;
}

// Of one block, in as many at a time as are quick to evaluate.
double ClipEngine::Impl::step_seconds(const ClipJob& job) {
  const double macs =
      row_macs(config, codec->factor(), job.request) * static_cast<double>(rows_of(job.request));
  ClipJob probe = job;
  probe.blocks = 1, probe.frames = 0;
  if (!job.stream)
    probe.blocks = std::clamp<std::int64_t>(static_cast<std::int64_t>(macs_at_a_time / macs), 1, job.blocks);
  probe.save_state.clear();
  std::erase_if(probe.prompts, [&](const ClipJob::Prompt& prompt) { return prompt.block >= probe.blocks; });
  std::vector<Clock::time_point> steps = {Clock::now()};
  ClipObserver observer;
  observer.on_step = [&](std::int64_t, std::int64_t) {
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
    steps.push_back(Clock::now());
    if (steps.size() > least && seconds_since(steps[1]) > patience) throw Enough();
  };
  try {
    sample(probe, observer);
  } catch (const Enough&) {
  }
  const std::size_t first = steps.size() > 2 ? 1 : 0;  // the first one reads the weights too
  return std::chrono::duration<double>(steps.back() - steps[first]).count() /
         static_cast<double>(steps.size() - 1 - first) / static_cast<double>(probe.blocks);
}

Forecast ClipEngine::forecast(const ClipJob& job, const Limits& limits) {
  const Request& r = job.request;
  const ModelConfig& config = impl_->config;
  const codecs::Codec& codec = *impl_->codec;
  const ClipWork work = impl_->work(job);
  const Plan plan = make_clip_plan(config, codec, r, work, limits, impl_->stored_bytes());
  const std::int64_t blocks = std::max<std::int64_t>(1, job.blocks);
  Forecast f;
  f.pictures = f.batch = 1;
  f.evaluations = (job.stream ? blocks : 1) * diffusion::evaluations(*r.sampler, sampler_options(r));
  f.macs =
      row_macs(config, codec.factor(), r) * static_cast<double>(total_rows(r)) * static_cast<double>(blocks);
  f.peak_bytes = plan.peak_bytes;
  f.free_bytes = plan.free_bytes;
  f.fits = plan.fits;
  if (f.fits)
    f.seconds = impl_->step_seconds(job) * static_cast<double>(*r.steps) * static_cast<double>(blocks);
  else
    f.advice = clip_advice(config, codec, r, work, plan, impl_->stored_bytes());
  f.peak_bytes = work.on_gpu ? 0 : std::max(f.peak_bytes, peak_bytes());
  return f;
}

}  // namespace pom::generate
