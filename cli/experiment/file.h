// An experiment as a person writes it down: recipes/experiments/*.toml, declared field by field. What is
// compared, what is measured and which tests decide stand in it before anything runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "pom/base/fields.h"
#include "pom/train/recipe.h"

namespace pom::cli::experiment {

// Seeds of trainings are 1 to this: judges have 0 and those above for drawings of their own, and questions of
// two judges would meet from 1000 on.
inline constexpr std::int64_t most_seed = 899;

// Who looks at what a run has learnt to make.
struct JudgeConfig {
  std::string kind = "shapes";
  std::int64_t seed = 1;      // of its drawings and of the noise of all samples
  std::int64_t steps = 1200;  // of its training, where it learns
  std::string file = {};      // one that has learnt already, for the judge of this seed
  std::int64_t count = 1000;  // samples of each run
  std::int64_t reference = 10000;
  bool doses = true;                      // whether it also looks at drawings that are spoilt
  bool inception = false;                 // distances by an Inception-v3 of drawn weights too
  std::vector<std::string> metrics = {};  // columns of the table; all of them where empty

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind",
                .help = "who judges: shapes, scenes or sprites; or what is timed",
                .choices = {"shapes", "scenes", "sprites", "figure1", "streaming"}},
          kind);
    visit(Field{.name = "seed", .help = "seed of its drawings and of the samples' noise", .least = 0}, seed);
    visit(Field{.name = "steps", .help = "training steps of a judge that learns", .least = 1, .most = 1e6},
          steps);
    visit(Field{.name = "file", .help = "a judge that has learnt already; from the project's folder"}, file);
    visit(Field{.name = "count", .help = "samples of each run", .least = 4, .most = 1e6}, count);
    visit(Field{.name = "reference", .help = "drawings they are compared with", .least = 4, .most = 1e7},
          reference);
    visit(Field{.name = "doses", .help = "score drawings that are spoilt a little, for a scale"}, doses);
    visit(Field{.name = "inception", .help = "distances by Inception-v3 with drawn weights; wants a GPU"},
          inception);
    visit(Field{.name = "metrics", .help = "columns of the table; none: all"}, metrics);
  }
};

// A field of the recipe that each arm chooses for itself, on seeds and drawings that nothing else uses.
struct SweepConfig {
  std::string field = {};  // empty: none
  std::vector<std::string> values = {};
  std::vector<std::int64_t> seeds = {};
  std::int64_t steps = 0;  // of such a training; 0: as many as the others
  std::string metric = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "field", .help = "field of the recipe, e.g. optimizer.lr"}, field);
    visit(Field{.name = "values", .help = "what is tried"}, values);
    visit(Field{.name = "seeds", .help = "seeds of these trainings, no others'"}, seeds);
    visit(Field{.name = "steps", .help = "their steps; 0: the recipe's", .least = 0, .most = 1e9}, steps);
    visit(Field{.name = "metric", .help = "what decides"}, metric);
  }
};

struct File {
  std::string title = {}, about = {}, claim = {}, larger = {};
  std::vector<std::string> arms = {}, points = {}, tests = {}, quick = {};
  std::vector<std::int64_t> seeds = {};
  std::string axis = {};
  std::vector<std::string> paper = {}, paper_columns = {};
  JudgeConfig judge;
  SweepConfig sweep;
  train::Recipe recipe;

  // Nothing is trained and judged, but timed.
  bool timed() const { return judge.kind == "figure1" || judge.kind == "streaming"; }

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "title", .help = "of table and plot"}, title);
    visit(Field{.name = "about", .help = "what is done"}, about);
    visit(Field{.name = "claim", .help = "what the paper says"}, claim);
    visit(Field{.name = "larger", .help = "what a larger run would show"}, larger);
    visit(Field{.name = "arms", .help = "\"NAME: FIELD=VALUE FIELD=VALUE\", changes of the recipe"}, arms);
    visit(Field{.name = "points", .help = "\"NAME: FIELD=VALUE\", ways of sampling each run"}, points);
    visit(Field{.name = "seeds", .help = "of the trainings, the same for all arms", .least = 0}, seeds);
    visit(Field{.name = "tests", .help = "what has to hold, stated before: \"METRIC: A > B\""}, tests);
    visit(Field{.name = "axis", .help = "what rows are plotted against", .choices = {"", "macs", "point"}},
          axis);
    visit(Field{.name = "paper_columns", .help = "names of the paper's figures"}, paper_columns);
    visit(Field{.name = "paper", .help = "\"ROW: FIGURE FIGURE\", the paper's own"}, paper);
    visit(Field{.name = "quick", .help = "\"FIELD=VALUE\" of this file, for --quick"}, quick);
    visit(Field{.name = "judge", .help = "who judges"}, judge);
    visit(Field{.name = "sweep", .help = "what each arm chooses for itself"}, sweep);
    visit(Field{.name = "recipe", .help = "recipe that all arms share"}, recipe);
  }
};

// What was read, with the assignments that make its recipe ("network.dim=192").
struct Experiment {
  std::string name;  // of the file
  bool quick = false;
  File file;
  std::vector<std::string> recipe = {};
};

// Where experiments are found by name: recipes/experiments below the working folder, or beside the program.
std::filesystem::path experiments_folder();
std::vector<std::string> experiment_names();

// By name or by path; `sets` change fields after --quick has. Errors name file, line and field.
Experiment read_experiment(const std::string& name, bool quick, std::span<const std::string> sets);

// As it was resolved, for the folder of its results, and what differs from such a text, a line each: fields
// that are only words do not count.
std::string experiment_text(const Experiment& experiment);
std::vector<std::string> changes_since(const std::string& before, const Experiment& experiment);

}  // namespace pom::cli::experiment
