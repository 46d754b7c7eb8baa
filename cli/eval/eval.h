// What the kinds of `pom eval` share: the options, the progress, and how a report is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/common_fields.h"
#include "cli/json.h"
#include "cli/signals.h"
#include "pom/base/fields.h"
#include "pom/base/progress.h"
#include "pom/eval/judge.h"
#include "pom/generate/device.h"
#include "pom/generate/engine.h"
#include "pom/generate/request.h"
#include "pom/parallel/ranks.h"

namespace pom::cli {

struct EvalOptions {
  std::string what, model, other, device = "auto", size, sheet, output;
  std::optional<std::int64_t> count;
  std::int64_t seed = 0, batch = 0, threads = 0, gpus = 0;
  generate::Request request;  // how to sample
  bool drawings = false, yes = false, json = false, quiet = false;
  // Of scores.
  std::string samples, reference, inception, dinov2, like = "torch-fidelity";
  // Of shapes.
  std::int64_t seeds = 3, judge_seed = 0;
  std::optional<std::int64_t> judge_steps;
  std::string judge;
  // Of sprites.
  std::vector<std::string> splits, window;
  std::optional<std::int64_t> frames;
  std::vector<std::int64_t> lengths;
  std::int64_t changes = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    about_fields(visit);
    sampling_fields(visit);
    scores_fields(visit);
    shapes_fields(visit);
    sprites_fields(visit);
    place_fields(visit);
    work_fields(visit);
  }

 private:
  template <class Visit>
  void about_fields(Visit&& visit) {
    constexpr std::string_view about = "About";
    visit(Field{.name = "what",
                .help =
                    "fid (and the field's other scores), reference, compare; clips; shapes, sprites, scenes: "
                    "by a judge of drawings",
                .value = "WHAT",
                .group = about,
                .choices = {"fid", "reference", "compare", "clips", "shapes", "sprites", "scenes"}},
          what);
    visit(Field{.name = "model",
                .help =
                    "model folder; of reference, pictures; of compare, a file of scores; of clips, a folder "
                    "of them or one",
                .value = "MODEL",
                .group = about},
          model);
    visit(Field{.name = "other", .help = "of compare, the other file", .value = "FILE", .group = about},
          other);
    visit(Field{.name = "drawings",
                .help = "judge new drawings instead of a model: the upper bound",
                .group = about},
          drawings);
    visit(Field{.name = "count",
                .help = "images, spread evenly over the classes (default: 50000; of shapes, per seed, 1000), "
                        "or clips or images per split (500)",
                .value = "N",
                .group = about,
                .least = 1,
                .most = 1'000'000},
          count);
    visit(Field{.name = "seed",
                .help = "seed of the first image or clip",
                .value = "N",
                .group = about,
                .least = 0,
                .most = 1'000'000'000'000},
          seed);
    visit(Field{.name = "size",
                .help = "width and height in pixels, 64x48 or 64 (default: the model's own)",
                .value = "WxH",
                .group = about},
          size);
  }

  // Those of a request that say how, not what.
  template <class Visit>
  void sampling_fields(Visit&& visit) {
    request.fields([&](const Field& field, auto& value) {
      if (field.group == "How to sample") visit(field, value);
    });
  }

  template <class Visit>
  void scores_fields(Visit&& visit) {
    constexpr std::string_view scores = "Of scores";
    visit(Field{.name = "samples",
                .help = "pictures to score instead of a model's: a folder, a .npz with arr_0, .tar files, or "
                        "statistics (.npz with mu and sigma)",
                .value = "PATH",
                .group = scores},
          samples);
    visit(Field{.name = "reference",
                .help = "what they are compared with, likewise",
                .value = "PATH",
                .group = scores},
          reference);
    visit(Field{.name = "inception",
                .help = "weights of Inception-v3 of 2015 (.safetensors, by tools/unpickle.py)",
                .value = "FILE",
                .group = scores},
          inception);
    visit(Field{.name = "dinov2",
                .help = "weights of DINOv2 ViT-L/14 (.safetensors, likewise), of --like edm2 and dgm-eval",
                .value = "FILE",
                .group = scores},
          dinov2);
    visit(Field{.name = "like",
                .help = "implementation whose rules are followed",
                .value = "NAME",
                .group = scores,
                .choices = {"torch-fidelity", "adm", "clean-fid", "pytorch-fid", "edm2", "dgm-eval"}},
          like);
  }

  template <class Visit>
  void shapes_fields(Visit&& visit) {
    constexpr std::string_view shapes = "Of shapes";
    visit(Field{.name = "seeds",
                .help = "repetitions with other images, for the spread",
                .value = "N",
                .group = shapes,
                .least = 1,
                .most = 1000},
          seeds);
    visit(Field{.name = "judge",
                .help = "judge file: read if it exists, else trained and written; of scenes a second judge",
                .value = "FILE",
                .group = shapes},
          judge);
    visit(Field{.name = "judge_steps",
                .help = "training steps of the judge (default: 1200)",
                .value = "N",
                .group = shapes,
                .least = 1,
                .most = 1'000'000},
          judge_steps);
    visit(Field{.name = "judge_seed",
                .help = "seed of the judge's drawings",
                .value = "N",
                .group = shapes,
                .least = 0},
          judge_seed);
  }

  template <class Visit>
  void sprites_fields(Visit&& visit) {
    constexpr std::string_view sprites = "Of sprites";
    visit(Field{.name = "splits",
                .help = "splits to evaluate, also of scenes (default: all); new_both is of sprites, "
                        "new_relations and new_all are of scenes",
                .value = "A,B",
                .group = sprites,
                .choices = {"training", "new_wordings", "new_pairs", "new_both", "new_relations", "new_all"}},
          splits);
    visit(Field{.name = "frames",
                .help = "frames per clip (default: the model's own)",
                .value = "N",
                .group = sprites,
                .least = 2,
                .most = 1'000'000},
          frames);
    visit(Field{.name = "lengths",
                .help = "clip lengths, as multiples of --frames: the last part, as long as one clip, is "
                        "judged (default: 1); more than 1 needs a block-causal model",
                .value = "N,N",
                .group = sprites,
                .least = 1,
                .most = 100'000},
          lengths);
    visit(Field{.name = "window",
                .help = "blocks a block sees while sampling: a number, none, or model; each gives its own "
                        "table",
                .value = "N,N",
                .group = sprites},
          window);
    visit(
        Field{.name = "changes",
              .help = "judge so many streams whose prompt changes once, from 16 frames after the change on, "
                      "beside streams of the second prompt alone",
              .value = "N",
              .group = sprites,
              .least = 1,
              .most = 1'000'000},
        changes);
  }

  template <class Visit>
  void place_fields(Visit&& visit) {
    constexpr std::string_view where = "Where it goes";
    visit(
        Field{.name = "output",
              .help = "of scores and clips a .json, of a reference its .npz; else a folder for report.txt, "
                      "report.json "
                      "and a sheet of images; for shapes also the judge, for sprites curve.svg if there are "
                      "several lengths",
              .value = "PATH",
              .group = where},
        output);
    visit(Field{.name = "sheet",
                .help = "a sheet of images, with what was not recognised: star?moon is a star taken for a "
                        "moon; of scenes with captions, and what is wrong",
                .value = "FILE",
                .group = where},
          sheet);
    visit(yes_field(where), yes);
    visit(json_field(where), json);
    visit(quiet_field(where), quiet);
  }

  template <class Visit>
  void work_fields(Visit&& visit) {
    constexpr std::string_view work = "How to work";
    visit(generate::device_field(work), device);
    visit(Field{.name = "batch",
                .help = "images or clips at a time (default: what memory and speed suggest)",
                .value = "N",
                .group = work,
                .least = 1,
                .most = 65536},
          batch);
    visit(gpus_field(work), gpus);
    visit(threads_field(work), threads);
  }
};

// Everything of the work that can be shown as one bar; throws generate::Stopped where a signal asked.
class Watch {
 public:
  Watch(const StopSignals& signals, bool quiet, std::string what, std::string unit)
      : signals_(signals), quiet_(quiet), what_(std::move(what)), unit_(std::move(unit)) {}
  void operator()(std::int64_t done, std::int64_t total, const std::string& note = {});

 private:
  const StopSignals& signals_;
  const bool quiet_;
  const std::string what_, unit_;
  const double began_ = steady_seconds();
  std::optional<Progress> progress_;
};

// On several ranks each makes its share of a job's items, the bytes of all are added up where each rank has
// zeros for those of the others, and the first one judges them.
void run_share(generate::Engine& engine, const generate::Job& job, std::int64_t batch,
               generate::Observer& observer);
void add_up(at::Tensor bytes);
void wait_for_all();  // also where one of them is busy for long

void write_text(const std::filesystem::path& path, const std::string& text);

// Which model was evaluated and how it was asked, for programs.
void add_model(JsonObject& result, const generate::Engine& engine, const generate::Request& request);

// What an evaluation found, for people and for programs; the text ends its last line.
struct Findings {
  std::string text, json;
};
// The exit code of one that prints what `work` finds, or nothing where a signal stopped it.
int print_findings(const EvalOptions& options, const StopSignals& signals,
                   const std::function<Findings()>& work);

int eval_fid(const EvalOptions& options);
int eval_reference(const EvalOptions& options);
int eval_compare(const EvalOptions& options);
int eval_clips(const EvalOptions& options);
int eval_shapes(const EvalOptions& options);
int eval_sprites(const EvalOptions& options);
int eval_sprite_changes(const EvalOptions& options);
int eval_scenes(const EvalOptions& options);

}  // namespace pom::cli
