#include "pom/train/probe.h"

#include <algorithm>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include "pom/base/error.h"
#include "pom/base/progress.h"
#include "pom/generate/process.h"
#include "pom/train/device.h"
#include "pom/train/encoders.h"
#include "pom/train/learner.h"

namespace pom::train {
namespace {

// A network so small that many steps pass sooner is known then.
constexpr double enough_seconds = 0.5;
constexpr std::int64_t enough_steps = 100;

constexpr double probe_seconds = 1.5;  // for each of the two networks, in each round
constexpr int probe_rounds = 3;

// Of memory that is read and written, more of it than caches hold.
double copied_bytes_per_second() {
  constexpr std::int64_t numbers = 32 << 20;
  const at::Tensor from = at::ones({numbers}), to = at::empty_like(from);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start = steady_seconds();
    to.copy_(from);
    best = std::min(best, steady_seconds() - start);
  }
  return 2.0 * 4 * static_cast<double>(numbers) / best;
}

void measure_blocks(const Recipe& recipe, Processor& p) {
  const at::Device device(at::kCPU);
  const data::Split data = open_data(recipe);
  Recipe one = recipe;
  one.network.variant.clear();
  complete_recipe(one, *data.training, latent_factor(recipe));
  // Not fewer: what a cache holds of a network of one block, it does not of a deep one.
  Recipe two = one;
  one.network.depth = std::max<std::int64_t>(1, recipe.network.depth / 3);
  two.network.depth = std::max(one.network.depth + 1, 2 * recipe.network.depth / 3);
  double seconds_one = 1e9, seconds_two = 1e9;
  for (int round = 0; round < probe_rounds; ++round) {
    seconds_one = std::min(seconds_one, measured_step(one, data, device, probe_seconds));
    seconds_two = std::min(seconds_two, measured_step(two, data, device, probe_seconds));
  }
  const auto blocks = static_cast<double>(one.network.depth);
  p.step_block =
      std::max(0.0, (seconds_two - seconds_one) / static_cast<double>(two.network.depth - one.network.depth));
  p.step_base = std::max(0.0, seconds_one - blocks * p.step_block);
}

}  // namespace

data::LoaderOptions probe_loader(const Recipe& recipe, const at::Device& device) {
  return {.batch = recipe.batch.size,
          .workers = recipe.data.workers,
          .seed = static_cast<std::uint64_t>(recipe.run.seed),
          .pinned = device.is_cuda()};
}

// The second step is the first that counts: libraries choose and prepare their code in the first.
double measured_step(const Recipe& recipe, const data::Split& data, const at::Device& device,
                     double seconds) {
  data::Loader loader(data.training, probe_loader(recipe, device));
  Learner learner(recipe, device);
  State state;
  Prepared prepared = learner.prepare(loader.next(), state.seed, state.draws);
  const auto step = [&] {
    Prepared next;
    learner.step(prepared, state,
                 [&] { next = learner.prepare(loader.next(), state.seed, state.draws + 1); });
    prepared = std::move(next);
  };
  step();
  synchronize(device);
  std::int64_t steps = 0;
  const double start = steady_seconds();
  do {
    step();
    ++steps;
  } while (steady_seconds() - start < (steps < enough_steps ? seconds : std::min(seconds, enough_seconds)));
  synchronize(device);
  return (steady_seconds() - start) / static_cast<double>(steps);
}

Processor this_processor(const Recipe& recipe, double step_seconds) {
  if (recipe.run.threads > 0) at::set_num_threads(static_cast<int>(recipe.run.threads));
  Processor p{.name = "cpu",
              .bytes_per_second = copied_bytes_per_second(),
              .memory = static_cast<double>(generate::available_bytes()),
              .fused = false,
              .overlaps = false};
  p.threads = at::get_num_threads();
  p.cores = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  if (step_seconds > 0) {
    p.step_base = step_seconds;
    p.sources = {detail::concat("cpu: a step of the whole batch on one process of ", p.threads,
                                " threads takes ", step_seconds * 1e3, " ms, as given")};
  } else {
    measure_blocks(recipe, p);
    p.sources = {detail::concat("cpu: measured now on this machine with ", p.threads, " of ", p.cores,
                                " cores, the fastest of ", probe_rounds, " rounds: a step takes ",
                                p.step_base * 1e3, " ms and ", p.step_block * 1e3, " ms for each block")};
  }
  p.sources.push_back(detail::concat("memory is copied at ", p.bytes_per_second / 1e9,
                                     " GB/s (measured now); processes share ", p.cores,
                                     " cores and one memory"));
  return p;
}

}  // namespace pom::train
