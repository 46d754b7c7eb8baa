// Does what an experiment asks for, run after run, and leaves a file for each thing that is done: whoever is
// stopped goes on with what is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/experiment/backlog.h"
#include "cli/experiment/folder.h"
#include "cli/experiment/judge.h"
#include "cli/experiment/plan.h"
#include "cli/experiment/workers.h"
#include "cli/signals.h"
#include "pom/base/progress.h"

namespace pom::cli::experiment {

struct RunOptions {
  std::string device = "auto";
  std::int64_t threads = 0, batch = 0;
  double minutes = 0;  // 0: no limit
  bool lean = false;   // models go once they are judged
  bool quiet = false;
  std::string command;
  std::int64_t jobs = 1;                // trainings at the same time
  std::vector<std::string> again = {};  // words that start this experiment once more, for one run of it
};

enum class Outcome { complete, stopped, out_of_time };

class Runner {
 public:
  Runner(const Plan& plan, const Folder& folder, const RunOptions& options, const StopSignals& signals);
  Outcome run();
  // One training, by its folder within the experiment's, and nothing else: 2x6/seed-3.
  Outcome train_only(const std::string& name);

 private:
  struct Leave {  // thrown where there is no time left, or a signal asked
    Outcome outcome;
  };

  // A run of the experiment: of an arm and a seed, or of a value that the arm tries.
  struct Cell {
    const Arm* arm = nullptr;
    std::int64_t seed = 0;
    std::string value = {};  // of the sweep; empty: none
  };

  Outcome leaving(const std::function<void()>& work);  // what ends it early
  void measure_floor();
  std::vector<Cell> sweep_cells() const;
  std::vector<Cell> cells() const;
  std::filesystem::path run_of(const Cell& cell) const;
  std::string name_of(const Cell& cell) const;  // its folder within the experiment's
  void time_steps();
  // All of them, one after the other or several at once: trained, then judged.
  void work_through(const std::vector<Cell>& all);
  void work_at_once(const std::vector<Cell>& all);
  void start(Workers& workers, const Cell& cell);
  void settle(Workers& workers, const std::vector<Cell>& all);  // the next one that ends
  void train(const Cell& cell);
  void judge(const Cell& cell);
  void judge_tried(const Cell& cell);
  void time_points(std::int64_t seed);
  void train(const train::Recipe& recipe, const std::filesystem::path& run, const std::string& init_from,
             const std::string& what);
  void judge(const std::filesystem::path& model, const std::filesystem::path& run, const Point& point,
             std::int64_t seed, Judge& judge, const std::filesystem::path& sheet);
  void later(std::function<void()> piece);
  void finish();  // of all of them
  void remove_later(const std::filesystem::path& model);
  void check_time() const;
  double seconds_left() const;  // 0: no limit
  Judge& main_judge();
  Judge& sweep_judge();
  std::unique_ptr<Judge> new_judge(std::int64_t seed) const;
  void remark(const std::string& text) const;

  const Plan& plan_;
  const Folder& folder_;
  const RunOptions& options_;
  const StopSignals& signals_;
  const double began_ = steady_seconds();
  std::unique_ptr<Judge> judge_, sweep_judge_;
  Backlog backlog_;                                // goes before the judges that it uses
  std::map<std::int64_t, std::size_t> arms_done_;  // of a seed
};

// The assignments for more or fewer steps, with warm-up and cooldown in proportion.
std::vector<std::string> with_steps(const train::Recipe& recipe, std::int64_t steps);

// The value of the swept field that an arm has chosen; nothing where there is no sweep, or not all is done.
std::optional<std::string> swept_value(const Plan& plan, const Folder& folder, const Arm& arm);

// The recipe as it is trained: with what the sweep chose, and steps that make trainings equal. Step times
// that are not known yet are measured, where `measure` allows it; nothing where something is missing.
std::optional<train::Recipe> final_recipe(const Plan& plan, const Folder& folder, const Arm& arm,
                                          std::int64_t seed, const std::string& device, bool measure);

}  // namespace pom::cli::experiment
