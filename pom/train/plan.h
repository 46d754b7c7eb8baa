// What a recipe takes on GPUs that are not here: memory, the time of a step, how much of it is waiting for
// other ranks, days and cost until so many images were seen. Everything is counted; nothing runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pom/train/links.h"
#include "pom/train/memory.h"
#include "pom/train/step_model.h"
#include "pom/train/workload.h"

namespace pom::train {

struct PlanOptions {
  std::vector<std::int64_t> gpus = {8};
  std::int64_t per_node = 8;
  Link inside, between;
  Processor processor;
  double images = 950e6;    // that training sees
  double price = 2.5;       // of an hour of a GPU
  double step_seconds = 0;  // of the whole batch on one GPU, as measured; 0: by the model
};

// Seconds of a step in which ranks exchange something, on their links and, of that, while nothing is
// computed.
struct CommunicationTime {
  double gradients = 0, weights = 0, sequence = 0, small = 0;  // on the links
  double bytes = 0;                                            // that a rank hands in
  double exposed = 0;

  double total() const { return gradients + weights + sequence + small; }
};
CommunicationTime communication_time(const Workload& work, const RankWork& mine, Shard shard,
                                     const Cluster& cluster, const ComputeTime& compute, bool overlaps);

struct PlanRow {
  std::int64_t gpus = 0;
  std::string refusal = {};  // why this number cannot be; then nothing else is known
  Shard shard = Shard::none;
  RankWork work = {};
  RankMemory memory = {};
  double memory_bytes = 0;  // with what a process takes beside what is counted
  bool fits = true;
  std::optional<Shard> fits_with = {};  // the first way of dividing that does, where this one does not
  ComputeTime compute = {};
  CommunicationTime communication = {};

  double step() const { return compute.total() + communication.exposed; }
};

struct Plan {
  Workload work;
  PlanOptions options;
  std::vector<PlanRow> rows;

  double images_per_second(const PlanRow& row) const;
  double days(const PlanRow& row) const;  // until options.images
  double gpu_hours(const PlanRow& row) const;
  double cost(const PlanRow& row) const { return gpu_hours(row) * options.price; }
};

Plan make_plan(const Workload& work, const PlanOptions& options);

// Every constant that went into it, with where it comes from, a line each.
std::vector<std::string> assumptions(const Plan& plan);

}  // namespace pom::train
