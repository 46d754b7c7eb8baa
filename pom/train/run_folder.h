// The folder of a run, which explains itself:
//
//   recipe.toml    every field as it was resolved
//   run.json       versions, command, network, data, device; one object for each time the run was started
//   log.jsonl      one object a line: losses, rates, validation
//   log.txt        what was said, with times
//   events.out.*   the same figures for TensorBoard
//   samples/       sheets of fixed seeds
//   checkpoints/   what --resume takes
//   model/         the model folder of the newest checkpoint: pom sample --model RUN/model
//   model.json     the step of its weights
//   launch         who started it on several ranks
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/events.h"
#include "pom/io/folder_lock.h"
#include "pom/train/learner.h"

namespace pom::train {

// Throws a Refusal for a folder that a run cannot go into, and makes nothing: a new run where there is a
// model, a log or a checkpoint of another, or one that goes on (`resume`) where there is no checkpoint.
void check_run_folder(const std::filesystem::path& path, bool resume);

class RunFolder {
 public:
  // Makes the folder where it is missing and locks it. An error where another process trains in it or where
  // it cannot be written, and as check_run_folder().
  RunFolder(std::filesystem::path path, bool resume);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path recipe() const { return path_ / "recipe.toml"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path samples() const { return path_ / "samples"; }
  std::filesystem::path model() const { return path_ / "model"; }

  // The step whose weights are in model/; -1 where there is none. They are only ever replaced by those of the
  // same step or a later one, which is noted before they are written: a process that is killed in between
  // leaves a model that is older than its note, never one that is newer.
  std::int64_t model_step() const { return model_step_; }
  void note_model(std::int64_t step);

 private:
  std::filesystem::path path_;
  io::FolderLock lock_;
  std::int64_t model_step_ = -1;
};

// Figures of a stretch of training, for the log.
struct Figures {
  std::int64_t step = 0, skipped = 0;
  double loss = 0, rate = 0, norm = 0, pictures_per_second = 0, seconds = 0;
  int ranks = 1;
  double waiting = 0;  // share of the time for gradients of other ranks, after the backward pass
  std::vector<double> loss_by_time;
};

// The run's own record. Lines of steps after `step`, which a resumed run makes again, are cut off first; -1
// cuts all.
class RunLog {
 public:
  RunLog(const std::filesystem::path& folder, std::int64_t step);

  void figures(const Figures& figures);
  void validation(std::int64_t step, const ValidationResult& result);
  void message(std::string_view text);                      // into log.txt
  void recipe(std::int64_t step, const std::string& toml);  // for TensorBoard, beside the figures
  void sheet(std::int64_t step, const std::filesystem::path& png, int width, int height);

 private:
  void line(const std::string& json);

  std::filesystem::path folder_;
  io::EventWriter events_;
};

// Who started the run, for one that is started again; and whether it was this one, and left a checkpoint.
void note_launch(const std::filesystem::path& folder, const std::string& launch);
bool was_launched_by(const std::filesystem::path& folder, const std::string& launch);

// Adds an object to run.json's list.
void note_start(const std::filesystem::path& folder, const std::string& json);

}  // namespace pom::train
