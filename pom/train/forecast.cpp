// What a run will take: memory by counting, time by measuring a few steps. Nothing is written.
#include <ATen/Parallel.h>

#include "pom/generate/device.h"
#include "pom/generate/process.h"
#include "pom/models/counts.h"
#include "pom/ops/cuda/device.h"
#include "pom/train/device.h"
#include "pom/train/encoders.h"
#include "pom/train/memory.h"
#include "pom/train/probe.h"
#include "pom/train/trainer.h"

namespace pom::train {
namespace {

constexpr double measured_seconds = 5;  // of steps, and a fifth of it of the data alone

double loader_rate(const Recipe& recipe, const data::Split& data, const at::Device& device) {
  data::Loader loader(data.training, probe_loader(recipe, device));
  loader.next();
  std::int64_t pictures = 0;
  const double start = steady_seconds();
  do {
    pictures += loader.next().labels.size(0);
  } while (steady_seconds() - start < measured_seconds / 5);
  return static_cast<double>(pictures) / (steady_seconds() - start);
}

// The recipe of one rank's examples alone: what it computes between exchanges.
Recipe share_of_rank(const Recipe& recipe, const std::vector<std::int64_t>& shape, const at::Device& device,
                     std::int64_t ranks) {
  if (ranks == 1) return recipe;
  const RankWork mine = rank_work(workload_of(recipe, shape), ranks, device.is_cpu());
  Recipe share = recipe;
  share.batch.size = mine.parts * mine.examples;
  share.batch.accumulate = mine.parts;
  share.parallel.sequence = 1;
  return share;
}

// Of one of `ranks`.
std::int64_t memory_of(const Recipe& recipe, const std::vector<std::int64_t>& shape, const at::Device& device,
                       std::int64_t ranks) {
  const Workload work = workload_of(recipe, shape);
  return rank_memory(work, shard_of(recipe.parallel.shard), ranks, device.is_cpu(), device.is_cuda()).total();
}

std::int64_t free_bytes(const at::Device& device) {
  if (device.is_cpu()) return generate::available_bytes();
  return ops::cuda::free_bytes(device);
}

}  // namespace

TrainForecast forecast(const Recipe& recipe, std::int64_t ranks) {
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
  result.memory_bytes = memory_of(complete, data.training->shape(), device, ranks);
  result.checkpoint_bytes = result.parameters * 4 * (recipe.run.precision == "fp64" ? 8 : 4);
  result.free_bytes = free_bytes(device);
  result.fits = result.free_bytes == 0 || result.memory_bytes < result.free_bytes;
  if (!result.fits) return result;
  result.loader_pictures_per_second = loader_rate(complete, data, device);
  result.seconds_per_step = measured_step(share_of_rank(complete, data.training->shape(), device, ranks),
                                          data, device, measured_seconds);
  result.pictures_per_second = static_cast<double>(recipe.batch.size) / result.seconds_per_step;
  return result;
}

}  // namespace pom::train
