#include "pom/train/plan.h"

#include <algorithm>

#include "pom/base/error.h"
#include "pom/models/counts.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

constexpr double day = 86400, hour = 3600;

// What several collectives of equal size take one after the other.
double in_buckets(Collective kind, double bytes, double buckets, const Cluster& cluster) {
  return buckets * collective_seconds(kind, bytes / buckets, cluster);
}

// Gradients of one backward pass, and of their last bucket alone, which nothing hides.
struct GradientTime {
  double all = 0, last = 0, bytes = 0;
};

GradientTime gradient_time(const Workload& work, const RankWork& mine, Shard shard, const Cluster& cluster) {
  const BucketCount buckets = buckets_of(work.parameters(), cluster.ranks);
  const double number = work.precision == "fp64" ? 8 : work.parallel.gradients == "bf16" ? 2 : 4;
  const double bytes = static_cast<double>(work.parameters()) * number,
               count = static_cast<double>(buckets.count);
  GradientTime t;
  const auto add = [&](Collective kind) {
    t.all += in_buckets(kind, bytes, count, cluster);
    t.last += collective_seconds(kind, bytes / count, cluster);
    t.bytes += bytes;
  };
  if (shard == Shard::none && !mine.exact) {
    add(Collective::sum);
  } else {
    add(Collective::exchange);
    if (shard == Shard::none) add(Collective::gather);
  }
  return t;
}

// The matrices of all blocks, gathered block by block; and of one block.
GradientTime matrices_time(const Workload& work, const Cluster& cluster) {
  const double number = work.precision == "fp64" ? 8 : 4, depth = static_cast<double>(work.network.depth);
  const double block = static_cast<double>(models::block_matrices(work.network).all) * number;
  const double one = collective_seconds(Collective::gather, block, cluster);
  return {depth * one, one, depth * block};
}

// The mixer's sums of this rank's examples, a layer forward and backward.
double sequence_time(const Workload& work, const RankWork& mine, const Cluster& cluster, double& bytes) {
  if (mine.sharing == 1) return 0;
  const models::NetworkConfig& c = work.network;
  const double numbers = static_cast<double>(mine.examples * c.features()),
               number = work.precision == "fp64" ? 8 : 4;
  const double passes = work.batch.checkpointing ? 3 : 2;
  const double layers = static_cast<double>(mine.parts * c.depth) * passes;
  bytes += layers * numbers * number;
  return layers * collective_seconds(Collective::sum, numbers * number, neighbours_of(cluster, mine.sharing));
}

// The sums of squares for the norm, and each example's loss.
double small_time(const Workload& work, Shard shard, const Cluster& cluster) {
  const double losses = 2 * 4 * static_cast<double>(work.batch.size);
  double seconds = 2 * collective_seconds(Collective::gather, losses, cluster);
  if (shard != Shard::none)
    seconds +=
        collective_seconds(Collective::sum, 8 * static_cast<double>(work.parameters()) / 1024, cluster);
  return seconds;
}

// As much of `work` as does not fit beside `beside`.
double exposed_of(double work, double beside) {
  return std::max(0.0, work - beside);
}

PlanRow row_of(const Workload& work, const PlanOptions& options, std::int64_t gpus) {
  PlanRow row{.gpus = gpus, .shard = shard_of(work.parallel.shard)};
  const bool cpu = options.processor.cores > 0;
  const Cluster cluster{gpus, options.per_node, options.inside, options.between};
  try {
    check_cluster(cluster, "gpus: ");
    row.work = rank_work(work, gpus, cpu);
  } catch (const Error& refusal) {
    row.refusal = refusal.what();
    return row;
  }
  const Processor& p = options.processor;
  const double memory = p.memory / (cpu ? static_cast<double>(gpus) : 1.0);  // one for all of them
  const auto bytes_with = [&](Shard shard) {
    return static_cast<double>(rank_memory(work, shard, gpus, cpu, p.fused).total()) + p.reserved;
  };
  row.memory = rank_memory(work, row.shard, gpus, cpu, p.fused);
  row.memory_bytes = bytes_with(row.shard);
  row.fits = p.memory == 0 || row.memory_bytes <= memory;
  if (!row.fits && gpus > 1)
    for (const Shard shard : all_shards)
      if (!row.fits_with && bytes_with(shard) <= memory) row.fits_with = shard;
  row.compute = compute_time(work, row.work, p, row.shard, gpus);
  if (options.step_seconds > 0) {
    const ComputeTime alone = compute_time(work, rank_work(work, 1, cpu), p, row.shard, 1);
    const double factor = options.step_seconds / alone.total();
    row.compute.forward *= factor, row.compute.backward *= factor;
    row.compute.update *= factor, row.compute.products *= factor;
  }
  row.communication = communication_time(work, row.work, row.shard, cluster, row.compute, p.overlaps);
  return row;
}

}  // namespace

CommunicationTime communication_time(const Workload& work, const RankWork& mine, Shard shard,
                                     const Cluster& cluster, const ComputeTime& compute, bool overlaps) {
  CommunicationTime t;
  if (cluster.ranks == 1) return t;
  const double parts = static_cast<double>(mine.parts);
  const double forward = overlaps ? compute.forward / parts : 0,
               backward = overlaps ? compute.backward / parts : 0;
  const GradientTime gradients = gradient_time(work, mine, shard, cluster);
  const bool each_part = shard == Shard::gradients || shard == Shard::parameters;
  const double sent = each_part ? parts : 1;
  t.gradients = sent * gradients.all;
  t.bytes = sent * gradients.bytes;
  double beside = backward;  // what gradients can hide behind
  if (shard == Shard::parameters) {
    const GradientTime matrices = matrices_time(work, cluster);
    t.weights = 2 * parts * matrices.all;
    t.bytes += 2 * parts * matrices.bytes;
    // The first block of each pass is waited for; the others come while one computes.
    t.exposed += parts * (2 * matrices.last + exposed_of(matrices.all - matrices.last, forward) +
                          exposed_of(matrices.all - matrices.last, backward));
    beside = exposed_of(backward, matrices.all - matrices.last);
  } else if (shard != Shard::none) {  // the new weights, when all have been changed
    const double bytes = static_cast<double>(work.parameters()) * (work.precision == "fp64" ? 8 : 4);
    const auto buckets = static_cast<double>(buckets_of(work.parameters(), cluster.ranks).count);
    t.weights = in_buckets(Collective::gather, bytes, buckets, cluster);
    t.bytes += bytes;
    t.exposed += t.weights;
  }
  t.exposed += sent * (gradients.last + exposed_of(gradients.all - gradients.last, beside));
  t.sequence = sequence_time(work, mine, cluster, t.bytes);
  t.small = small_time(work, shard, cluster);
  t.exposed += t.sequence + t.small;
  return t;
}

double Plan::images_per_second(const PlanRow& row) const {
  return static_cast<double>(work.batch.size) / row.step();
}

double Plan::days(const PlanRow& row) const {
  return options.images / images_per_second(row) / day;
}

double Plan::gpu_hours(const PlanRow& row) const {
  return days(row) * day / hour * static_cast<double>(row.gpus);
}

Plan make_plan(const Workload& work, const PlanOptions& options) {
  refuse_unless(!options.gpus.empty(), "gpus: expected numbers of GPUs, such as 8,64, got nothing");
  Plan plan{work, options, {}};
  for (const std::int64_t gpus : options.gpus) plan.rows.push_back(row_of(work, options, gpus));
  return plan;
}

std::vector<std::string> assumptions(const Plan& plan) {
  const PlanOptions& o = plan.options;
  const Processor& p = o.processor;
  const bool cpu = p.cores > 0;
  std::vector<std::string> lines = p.sources;
  if (o.step_seconds > 0)
    lines.push_back(
        detail::concat("a step of the whole batch on one GPU takes ", o.step_seconds * 1e3,
                       " ms, as given; the model only says how that changes with the share of a GPU"));
  else if (!p.measured())
    lines.push_back(
        "beside its products a block passes 5.23 (1 + 140/width) times over what it keeps for the backward "
        "pass, and takes 30 us and 18 bytes a weight of its own; products: flops/rate + bytes/bandwidth + 2 "
        "us "
        "(fitted to pom bench figure1 and to recipes/shapes.toml on an H200)");
  lines.push_back(detail::concat("the optimizer moves ", update_bytes(plan.work.average_every),
                                 " bytes a number, at the speed of memory"));
  if (plan.work.muon && !p.measured()) lines.push_back("the products of Muon are not counted");
  lines.push_back("the backward pass is two thirds of both" +
                  std::string(plan.work.batch.checkpointing && !p.measured()
                                  ? "; checkpointing computes the forward pass again"
                                  : ""));
  lines.push_back("within a machine " + o.inside.name + ": " + o.inside.source);
  const bool several = std::ranges::any_of(o.gpus, [&](std::int64_t n) { return n > o.per_node; });
  if (several) lines.push_back("between machines " + o.between.name + ": " + o.between.source);
  lines.push_back(detail::concat(
      "machines of ", o.per_node, cpu ? " processes" : " GPUs, with one link to others for each GPU",
      "; sums and gathers go in rings over all of them, exchanges from rank to rank"));
  lines.push_back(p.overlaps ? "gradients travel during the backward pass, but for the last bucket; gathered "
                               "weights and sums of split sequences are waited for"
                             : "nothing is hidden: sending takes the cores that compute");
  lines.push_back("data comes as fast as it is wanted, and no rank is slower than another");
  if (p.reserved > 0)
    lines.push_back("1 GiB of a GPU for CUDA, libraries and NCCL; nothing is lost to fragmentation");
  lines.push_back("with shard = \"parameters\" copies of the matrices in bf16 are counted for all blocks");
  for (const std::string& assumed : plan.work.assumed) lines.push_back("data: " + assumed);
  return lines;
}

}  // namespace pom::train
