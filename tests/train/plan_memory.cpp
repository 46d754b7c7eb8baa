// What training takes in memory: counted beforehand, and by an allocator that counts while it runs.
#include "tests/cpu_meter.h"
#include <cmath>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/models/counts.h"
#include "pom/train/learner.h"
#include "pom/train/memory.h"

namespace pom::train {
namespace {

Recipe small(std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), {"data.size=[32, 32]", "data.validation=8", "network.dim=64", "network.depth=4",
                             "network.patch=2", "batch.size=16"});
  Recipe recipe = parse_recipe("", "small", sets);
  recipe.network.classes = 10, recipe.network.channels = 3;
  return recipe;
}

// Beside the learner itself, in a step.
struct Taken {
  std::int64_t state = 0, peak = 0;
};

Taken taken_by(const Recipe& recipe) {
  tests::Meter meter;
  Taken taken;
  {
    data::Loader loader(data::open_dataset(recipe.data, 0).training, {.batch = recipe.batch.size});
    const data::Batch batch = loader.next();
    const std::int64_t before = meter.now();
    Learner learner(recipe, at::kCPU);
    taken.state = meter.now() - before;
    State state;
    learner.step(batch, state);
    meter.start_again();
    learner.step(batch, state);
    taken.peak = meter.peak() - before;
  }
  return taken;
}

void expect_near(std::int64_t counted, std::int64_t measured, double tolerance, const char* what) {
  EXPECT_NEAR(static_cast<double>(counted) / static_cast<double>(measured), 1, tolerance)
      << what << ": " << counted << " counted, " << measured << " measured";
}

TEST(TrainingMemory, OfAStepIsWhatWasCounted) {
  for (const std::vector<std::string>& sets : {std::vector<std::string>{},
                                               {"network.mixer=attention", "network.heads=4"},
                                               {"network.ffw_expand=4"}}) {
    const Recipe recipe = small(sets);
    const RankMemory counted = rank_memory(workload_of(recipe), Shard::none, 1, true, false);
    const Taken taken = taken_by(recipe);
    expect_near(counted.state(), taken.state, 0.05, "state");
    expect_near(counted.total(), taken.peak, 0.1, "peak");
  }
}

TEST(TrainingMemory, CheckpointingKeepsTheInputsOfBlocks) {
  const Recipe recipe = small({"batch.checkpointing=true", "network.depth=6"});
  const RankMemory counted = rank_memory(workload_of(recipe), Shard::none, 1, true, false);
  expect_near(counted.total(), taken_by(recipe).peak, 0.15, "peak");
}

// The state that ranks divide: n numbers, N ranks.
TEST(TrainingMemory, IsDividedAsTheShardSays) {
  const Workload work = workload_of(small());
  const double n = static_cast<double>(work.parameters());
  const auto bytes = [&](Shard shard, std::int64_t ranks) {
    return static_cast<double>(rank_memory(work, shard, ranks, true, false).state());
  };
  EXPECT_NEAR(bytes(Shard::none, 4), 20 * n, 100);
  EXPECT_NEAR(bytes(Shard::optimizer, 4), 8 * n + 12 * n / 4, 100);
  EXPECT_NEAR(bytes(Shard::gradients, 4), 4 * n + 20 * n / 4, 100);
  const models::BlockMatrices block = models::block_matrices(work.network);
  const double matrices = 4.0 * static_cast<double>(block.all);
  EXPECT_NEAR(bytes(Shard::parameters, 4), 4 * (n / 4 + n - matrices + 0.5 * matrices) + 20 * n / 4, 100);
  for (const Shard shard : all_shards) EXPECT_EQ(bytes(shard, 1), bytes(Shard::none, 1));
}

// bench/reports/h200-training.md: the peak beside weights, less all gradients, KiB a token; those of
// 1024 tokens and more, four pictures at a time.
TEST(TrainingMemory, IsWhatAnH200Needed) {
  struct Row {
    std::int64_t side;
    double pom, attention;
  };
  for (const Row& row :
       {Row{32, 601.3, 560.0}, Row{48, 921.6, 790.3}, Row{64, 1020.6, 865.5}, Row{128, 1126.5, 946.2}})
    for (const bool attention : {false, true}) {
      Workload work;
      work.network.dim = 1152, work.network.depth = 28, work.network.ffw_expand = 4;
      work.network.mixer = attention ? "attention" : "pom", work.network.heads = 16;
      work.height = work.width = 2 * row.side;
      work.precision = "bf16";
      work.batch.size = 4;
      const RankMemory m = rank_memory(work, Shard::none, 1, false, true);
      const double tokens = 4.0 * static_cast<double>(row.side * row.side), kib = 1024 * tokens;
      const double measured = (attention ? row.attention : row.pom) * kib;
      const double without =
          static_cast<double>(m.weights + m.gradients);  // the peak of forward and backward
      EXPECT_NEAR((static_cast<double>(m.activations + m.copies) + static_cast<double>(m.weights)) /
                      (measured + without),
                  1, 0.05)
          << row.side << attention;
    }
}

}  // namespace
}  // namespace pom::train
