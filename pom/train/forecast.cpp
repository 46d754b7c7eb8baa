// What a run will take: memory by counting, time by measuring a few steps. Nothing is written.
#include <ATen/Parallel.h>

#include "pom/generate/device.h"
#include "pom/generate/process.h"
#include "pom/models/counts.h"
#include "pom/ops/cuda/device.h"
#include "pom/train/device.h"
#include "pom/train/encoders.h"
#include "pom/train/learner.h"
#include "pom/train/trainer.h"

namespace pom::train {
namespace {

// Of steps, and a fifth of it of the data alone; a network so small that many steps pass sooner is known
// then.
constexpr double measured_seconds = 5, enough_seconds = 0.5;
constexpr std::int64_t enough_steps = 100;

data::LoaderOptions loader_options(const Recipe& recipe, const at::Device& device) {
  return {.batch = recipe.batch.size,
          .workers = recipe.data.workers,
          .seed = static_cast<std::uint64_t>(recipe.run.seed),
          .pinned = device.is_cuda()};
}

double loader_rate(const Recipe& recipe, const data::Split& data, const at::Device& device) {
  data::Loader loader(data.training, loader_options(recipe, device));
  loader.next();
  std::int64_t pictures = 0;
  const double start = steady_seconds();
  do {
    pictures += loader.next().labels.size(0);
  } while (steady_seconds() - start < measured_seconds / 5);
  return static_cast<double>(pictures) / (steady_seconds() - start);
}

// The second step is the first that counts: libraries choose and prepare their code in the first.
double step_seconds(const Recipe& recipe, const data::Split& data, const at::Device& device) {
  data::Loader loader(data.training, loader_options(recipe, device));
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
  } while (steady_seconds() - start < (steps < enough_steps ? measured_seconds : enough_seconds));
  synchronize(device);
  return (steady_seconds() - start) / static_cast<double>(steps);
}

// Of clips, a picture is one block.
std::int64_t memory_of(const Recipe& recipe, const std::vector<std::int64_t>& shape) {
  const std::int64_t height = shape.at(shape.size() - 2), width = shape.back();
  const std::int64_t blocks = recipe.network.video() ? shape.at(1) / recipe.network.patch_time : 1;
  const at::ScalarType dtype = recipe.run.precision == "bf16"   ? at::kBFloat16
                               : recipe.run.precision == "fp64" ? at::kDouble
                                                                : at::kFloat;
  models::NetworkConfig network = recipe.network;
  const std::int64_t part = blocks * recipe.batch.size / recipe.batch.accumulate;
  const std::int64_t all = models::training_memory(network, height, width, dtype, part);
  if (!recipe.batch.checkpointing || network.depth == 1) return all;
  const std::int64_t still = models::training_memory(network, height, width, dtype, 0);
  const std::int64_t kept = part * network.tokens(height, width) * network.dim * 4;  // a block's input
  return still + (all - still) / network.depth + network.depth * kept;
}

std::int64_t free_bytes(const at::Device& device) {
  if (device.is_cpu()) return generate::available_bytes();
  return ops::cuda::free_bytes(device);
}

}  // namespace

TrainForecast forecast(const Recipe& recipe) {
  check_recipe(recipe, "train");
  if (recipe.run.threads > 0) at::set_num_threads(static_cast<int>(recipe.run.threads));
  const data::Split data = open_data(recipe);
  Recipe complete = recipe;
  complete_recipe(complete, *data.training, latent_factor(recipe));
  const at::Device device = generate::device_named(recipe.run.device, "train: run");
  make_deterministic(device);
  TrainForecast result;
  result.device = device_text(device);
  result.parameters = models::count_parameters(complete.network);
  result.steps = recipe.run.steps;
  result.memory_bytes = memory_of(complete, data.training->shape());
  result.checkpoint_bytes = result.parameters * 4 * (recipe.run.precision == "fp64" ? 8 : 4);
  result.free_bytes = free_bytes(device);
  result.fits = result.free_bytes == 0 || result.memory_bytes < result.free_bytes;
  if (!result.fits) return result;
  result.loader_pictures_per_second = loader_rate(complete, data, device);
  result.seconds_per_step = step_seconds(complete, data, device);
  result.pictures_per_second = static_cast<double>(recipe.batch.size) / result.seconds_per_step;
  return result;
}

}  // namespace pom::train
