#include "cli/training_table.h"

#include "cli/command.h"
#include "cli/plan_recipe.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/train/memory.h"

namespace pom::cli {
namespace {

constexpr const char* kRow = "  %-18s%12s%12s%12s";

train::Workload workload_of_cost(const Cost& cost, std::int64_t batch, std::int64_t gpus,
                                 const std::string& precision) {
  train::Workload work;
  work.network = cost.network;
  work.height = cost.latent_height(), work.width = cost.latent_width();
  work.precision = precision;
  work.batch.size = batch * gpus;
  return work;
}

train::RankMemory memory_on(const train::Workload& work, train::Shard shard, std::int64_t gpus) {
  return train::rank_memory(work, shard, gpus, /*cpu=*/false, /*fused=*/true);
}

std::string amount(std::int64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}

void print_ways(const train::Workload& work, std::int64_t gpus) {
  print(columns(kRow, detail::concat("training, ", work.precision), "in all", "state", "activations"));
  for (const train::Shard shard : train::all_shards) {
    if (gpus == 1 && shard != train::Shard::none) break;
    const train::RankMemory m = memory_on(work, shard, gpus);
    print(columns(kRow, detail::concat("shard ", train::name_of(shard)), amount(m.total()), amount(m.state()),
                  amount(m.activations)));
  }
}

JsonObject ways_json(const train::Workload& work, std::int64_t gpus) {
  JsonObject ways;
  for (const train::Shard shard : train::all_shards)
    ways.add(train::name_of(shard), memory_on(work, shard, gpus).total());
  return ways;
}

}  // namespace

void print_training_table(const Cost& cost, std::int64_t batch, std::int64_t gpus) {
  print("");
  print(detail::concat("  on each of ", gpus, " GPUs, ", batch, cost.network.video() ? " blocks" : " images",
                       " at a time on each:"));
  for (const char* precision : {"fp32", "bf16"})
    as_usage([&] { print_ways(workload_of_cost(cost, batch, gpus, precision), gpus); });
}

JsonObject training_table_json(const Cost& cost, std::int64_t batch, std::int64_t gpus) {
  JsonObject table;
  table.add("gpus", gpus);
  for (const char* precision : {"fp32", "bf16"})
    table.add(precision, ways_json(workload_of_cost(cost, batch, gpus, precision), gpus));
  return table;
}

int recipe_info(const std::string& path, std::int64_t gpus, bool json) {
  const train::Recipe recipe = recipe_to_plan(path);
  const train::Workload work = as_usage([&] { return train::workload_of(recipe); });
  as_usage([&] { train::rank_work(work, gpus, /*cpu=*/false); });
  const Cost cost{.name = recipe.run.name,
                  .network = work.network,
                  .width = recipe.data.size[0],
                  .height = recipe.data.size[1],
                  .factor = recipe.data.size[0] / work.width};
  const std::int64_t part = work.batch.size / work.batch.accumulate;
  if (json) {
    print(cost_json(cost, part)
              .add("training_memory", ways_json(work, gpus).add("gpus", gpus).add("batch", work.batch.size))
              .text());
    return Exit::ok;
  }
  print_cost(cost, part);
  print("");
  print(detail::concat("  by the recipe, batches of ", work.batch.size, " on ", gpus,
                       gpus > 1 ? " GPUs" : " GPU", work.batch.checkpointing ? ", checkpointing" : "",
                       "; memory of one of them:"));
  print_ways(work, gpus);
  return Exit::ok;
}

}  // namespace pom::cli
