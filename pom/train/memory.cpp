#include "pom/train/memory.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

#include "pom/models/counts.h"
#include "pom/train/division.h"
#include "pom/train/shares.h"

namespace pom::train {
namespace {

// What torch's allocator gives to cuBLAS and cuBLASLt, 32 MiB each on Hopper for every stream that
// multiplies, and to batches on their way: measured on small networks, of which it is a part that shows
// (bench/parallel_cuda.py).
constexpr std::int64_t gpu_workspaces = std::int64_t{96} << 20;

at::ScalarType dtype_of_products(const std::string& precision) {
  return precision == "bf16" ? at::kBFloat16 : precision == "fp64" ? at::kDouble : at::kFloat;
}

std::int64_t share_of(std::int64_t count, std::int64_t ranks) {
  return (count + ranks - 1) / ranks;
}

// Of one rank's tokens of one part of the batch.
std::int64_t activations_of(const Workload& work, const RankWork& mine, bool fused) {
  const models::TrainingActivations each = models::training_activations(
      work.network, work.height, work.width, dtype_of_products(work.precision), fused && mine.sharing == 1);
  const std::int64_t depth = work.network.depth;
  const bool again = work.batch.checkpointing && depth > 1;
  const std::int64_t kept = again ? each.kept / depth + depth * each.input : each.kept;
  return mine.examples * work.blocks * (kept + each.working) / mine.sharing;
}

}  // namespace

BucketCount buckets_of(std::int64_t parameters, std::int64_t ranks) {
  const std::int64_t unit = flat_piece * ranks, wanted = bucket_size(parameters);
  const std::int64_t size = (wanted + unit - 1) / unit * unit;
  return {size, std::max<std::int64_t>(1, (parameters + size - 1) / size)};
}

RankMemory rank_memory(const Workload& work, Shard shard, std::int64_t ranks, bool cpu, bool fused) {
  const RankWork mine = rank_work(work, ranks, cpu);
  const std::int64_t n = work.parameters(), number = work.precision == "fp64" ? 8 : 4;
  const std::int64_t all = n * number, own = share_of(n, ranks) * number;
  const models::BlockMatrices block = models::block_matrices(work.network);
  const std::int64_t matrices = work.network.depth * block.all;
  const bool alone = ranks == 1, divided = shard != Shard::none && !alone;
  const bool own_gradients = divided && shard != Shard::optimizer;
  RankMemory m;
  m.weights = all;
  const bool by_layer = divided && shard == Shard::parameters;
  if (by_layer)  // the own part of all, what is not in blocks whole, and two blocks at a time
    m.weights = own + (n - matrices + 2 * block.all) * number;
  m.gradients = own_gradients ? 2 * own : all;  // the sum, and that of the parts under way
  m.moments = 2 * (divided ? own : all);
  m.average = divided ? own : all;
  m.aside = tree_depth(tree_steps(mine.parts)) * (own_gradients ? own : all);
  // What comes from the others, and with divided gradients the bucket itself.
  const std::int64_t bucket = (by_layer ? block.all : buckets_of(n, ranks).size) * number;
  const bool exchanged = divided || mine.exact;
  if (!alone && exchanged) m.buckets = (own_gradients ? 2 : 1) * bucket;
  m.copies = work.precision == "bf16" ? 2 * work.network.depth * block.products : 0;
  m.activations = activations_of(work, mine, fused);
  m.workspaces = cpu ? 0 : gpu_workspaces;
  return m;
}

}  // namespace pom::train
