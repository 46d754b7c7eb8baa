// A run from its recipe to its model: data, steps, checkpoints, logs and sheets in one folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "pom/base/progress.h"
#include "pom/parallel/ranks.h"
#include "pom/train/checkpoint.h"
#include "pom/train/recipe.h"
#include "pom/train/refusal.h"

namespace pom::train {

struct TrainOptions {
  std::filesystem::path folder;
  bool resume = false;              // go on from the newest checkpoint that is whole
  std::filesystem::path from;       // a checkpoint, of whatever run, that a run in a new folder goes on from
  std::filesystem::path init_from;  // a model folder whose weights are the first ones of a new run
  std::int64_t cooldown = 0;  // let the rate fall from the checkpoint on over so many steps, and end there
  double seconds = 0;         // save and leave after so long; 0: never
  std::string command;        // for run.json
  // On several ranks, all call train() with the same options; the first alone writes, and its folder counts.
  parallel::Ranks ranks = {};
  // Of who started the ranks and starts them again when one fails: a run that it began goes on. Empty: none.
  std::string launch = {};
  bool relaunched = false;  // by one whose name is not its own: only what it starts again goes on
};

// Called from the thread that trains.
struct Watch {
  ProgressSink sink = {};
  ProgressOptions progress = {};
  std::function<void(std::string_view line)> say = {};  // remarks: what was resumed, skipped, damaged
  const std::atomic<bool>* stop = nullptr;              // set by a signal handler: save and leave
};

enum class End { finished, stopped, out_of_time };

struct RunResult {
  End end = End::finished;
  State state;
  // The last ones; not a number where there was none.
  double loss = std::numeric_limits<double>::quiet_NaN(), validation_loss = loss;
  std::filesystem::path model;  // the model folder
};

// Throws pom::Error for anything wrong with recipe, data, folder or disk, and for a run that stays not
// finite; a Refusal for what a person asked wrongly, with nothing made or changed. Before it throws for
// something that came up on the way, nothing written before is lost, and a model is never replaced by an
// earlier one.
RunResult train(const Recipe& recipe, const TrainOptions& options, const Watch& watch = {});

struct TrainForecast {
  std::string device;
  std::int64_t parameters = 0, steps = 0;
  double seconds_per_step = 0, pictures_per_second = 0;
  double loader_pictures_per_second = 0;  // of the data alone
  std::int64_t memory_bytes = 0;          // of weights, moments, average, gradients and activations
  std::int64_t free_bytes = 0;            // what the device has for it; 0: unknown
  bool fits = true;                       // else nothing was measured
  std::int64_t checkpoint_bytes = 0;      // of one checkpoint
};

// Measures a few steps, alone, of what one of `ranks` computes of a batch; memory is that of one of them.
// Writes nothing.
TrainForecast forecast(const Recipe& recipe, std::int64_t ranks = 1);

}  // namespace pom::train
