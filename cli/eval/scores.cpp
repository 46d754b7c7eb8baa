// `pom eval fid`, `reference` and `compare`: the field's scores, with the recipe that makes them comparable.
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <ATen/Context.h>

#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/eval/picture_features.h"
#include "pom/eval/picture_scores.h"
#include "pom/eval/picture_set.h"
#include "pom/eval/score_file.h"
#include "pom/eval/shapes_eval.h"
#include "pom/generate/model_names.h"
#include "pom/io/sha256.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

// What was scored, and what of it the recipe names.
struct Side {
  eval::ScoredSide scored;
  std::int64_t count = 0;
  std::string kind, size, order;
};

std::string hash_of(const eval::Gaussian& g) {
  io::Sha256 hash;
  for (const at::Tensor& t : {g.mean.contiguous(), g.covariance.contiguous()})
    hash.update(std::span(static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()));
  return hash.hex();
}

class Scoring {
 public:
  Scoring(const EvalOptions& options, const StopSignals& signals)
      : options_(options),
        signals_(signals),
        rules_(as_usage([&] { return eval::score_rules(options.like); })),
        network_(open(options)) {
    at::globalContext().setAllowTF32CuDNN(false);  // scores that are published have all their bits
  }

  const eval::ScoreRules& rules() const { return rules_; }
  const eval::Inception& network() const { return network_; }

  // A file of statistics is taken as it is; pictures that a reference has beside them are for its neighbours.
  Side side(const std::string& path, const std::string& what) {
    const bool made = what == "samples", pictures = eval::may_have_pictures(path);
    std::optional<eval::Statistics> statistics;
    if (eval::has_statistics(path) && !(made && pictures)) statistics = eval::read_statistics(path);
    if (statistics && !(pictures && rules_.neighbours))
      return {{.features = {}, .statistics = std::move(statistics)}, 0, "statistics", "", ""};
    const std::unique_ptr<eval::PictureSet> set = eval::open_pictures(path);
    Side side{{}, set->count(), set->format(), "", "as they lie"};
    if (options_.count && *options_.count < side.count && what == "samples") side.count = *options_.count;
    side.scored.features = features(side, what, [&](std::int64_t i) { return set->read(i); });
    if (statistics) side.kind = "statistics, and pictures", side.scored.statistics = std::move(statistics);
    return side;
  }

  // Pictures of a model, each class as often, class by class; each goes to the features as it is made.
  Side model(const std::string& folder) {
    generate::Engine engine(folder, options_.device);
    check(!engine.config().network.video(), "eval: fid: expected a model for images, got one for clips");
    generate::Request request = options_.request;
    const std::int64_t classes = std::max<std::int64_t>(1, std::ssize(engine.config().classes));
    const std::int64_t count = options_.count.value_or(50'000);
    check(count % classes == 0, "--count: expected a multiple of ", classes, ", the model's classes, got ",
          count);
    request.class_name = "all";
    request.count = count / classes;
    request.seed = {options_.seed};
    if (!options_.size.empty()) generate::set_size(request, options_.size);
    const generate::Job job = as_usage([&] { return engine.resolve(request); });
    Side side{{}, std::ssize(job.items), "model", "", "class by class"};
    std::vector<at::Tensor> made(job.items.size());
    Watch watch(signals_, options_.quiet, "sampling", "evaluation");
    generate::Observer observer;
    observer.stop = &signals_.asked();
    observer.on_evaluation = [&](std::int64_t done, std::int64_t total) { watch(done, total); };
    observer.on_frames = [&](generate::Frames&& frames) {
      made[static_cast<std::size_t>(frames.item)] = eval::stack_pictures(frames.images)[0];
    };
    engine.run(job, {.batch = options_.batch}, observer);
    side.scored.features =
        features(side, "samples", [&](std::int64_t i) { return made[static_cast<std::size_t>(i)]; });
    return side;
  }

 private:
  static eval::Inception open(const EvalOptions& options) {
    if (options.inception.empty())
      throw UsageError(
          "--inception: expected the weights of Inception-v3 of 2015 as .safetensors, got nothing; "
          "tools/unpickle.py pt_inception-2015-12-05-6726825d.pth -o inception.safetensors makes them");
    const at::Device device = as_usage([&] { return generate::device_named(options.device, "eval"); });
    return eval::Inception::read(options.inception, at::kFloat, device);
  }

  eval::InceptionFeatures features(Side& side, const std::string& what, const eval::PictureAt& picture) {
    const at::Tensor first = picture(0);
    side.size = detail::concat(first.size(2), "x", first.size(1));
    std::atomic<bool> mixed = false;
    Watch watch(signals_, options_.quiet, "features of " + what, "image");
    const eval::PictureAt looked = [&](std::int64_t i) {
      const at::Tensor t = picture(i);
      if (t.sizes() != first.sizes()) mixed = true;
      return t;
    };
    const eval::InceptionFeatures found =
        eval::features_of(network_, rules_.input, eval::wanted_by(rules_), side.count, looked,
                          [&](std::int64_t done) { watch(done, side.count); });
    if (mixed) side.size = "mixed";
    return found;
  }

  const EvalOptions& options_;
  const StopSignals& signals_;
  eval::ScoreRules rules_;
  eval::Inception network_;
};

eval::ScoreRecipe recipe_of(const Scoring& scoring, const Side& made, const Side& reference) {
  const eval::ScoreRules& rules = scoring.rules();
  eval::ScoreRecipe recipe;
  recipe.like = rules.name;
  recipe.network = "inception-v3-2015";
  recipe.network_sha256 = scoring.network().sha256();
  recipe.resize = eval::name_of(rules.input);
  recipe.dtype = "fp32";
  recipe.count = made.count, recipe.size = made.size, recipe.samples = made.kind, recipe.order = made.order;
  recipe.reference = reference.kind, recipe.reference_count = reference.count;
  recipe.reference_sha256 =
      hash_of(reference.scored.statistics ? reference.scored.statistics->pool3
                                          : eval::statistics_of(reference.scored.features).pool3);
  if (rules.inception_score)
    recipe.inception_splits =
        rules.splits.splits > 0
            ? detail::concat(rules.splits.splits, ", shuffled by RandomState(", rules.splits.shuffled, ")")
            : detail::concat("runs of ", rules.splits.run);
  if (rules.kernel)
    recipe.kernel_subsets = detail::concat(rules.subsets.subsets, " of ", rules.subsets.size,
                                           ", RandomState(", rules.subsets.seed, ")");
  if (rules.neighbours)
    recipe.neighbour_balls = detail::concat("k ", rules.balls.k, rules.balls.strict ? ", <, " : ", <=, ",
                                            rules.balls.dtype == at::kHalf ? "fp16" : "fp64");
  return recipe;
}

eval::ScoreFile file_of(const eval::PictureScores& scores) {
  eval::ScoreFile file;
  file.fid = scores.fid, file.fid_deviation = scores.fid_deviation, file.fid_unbiased = scores.fid_unbiased;
  file.sfid = scores.sfid;
  if (scores.inception_score)
    file.is = scores.inception_score->mean, file.is_deviation = scores.inception_score->deviation;
  if (scores.kid) file.kid = scores.kid->mean, file.kid_deviation = scores.kid->deviation;
  if (scores.neighbours) {
    file.precision = scores.neighbours->precision, file.recall = scores.neighbours->recall;
    file.density = scores.neighbours->density, file.coverage = scores.neighbours->coverage;
  }
  return file;
}

// "fid 12.345 ± 0.120", a line each.
std::string lines_of(eval::ScoreFile score) {
  std::string text;
  const auto add = [&](const char* name, const std::optional<double>& value,
                       const std::optional<double>& spread = {}) {
    if (!value) return;
    char line[96];
    if (spread)
      std::snprintf(line, sizeof line, "%-14s %.6g ± %.2g\n", name, *value, *spread);
    else
      std::snprintf(line, sizeof line, "%-14s %.6g\n", name, *value);
    text += line;
  };
  add("fid", score.fid, score.fid_deviation);
  add("fid, unbiased", score.fid_unbiased);
  add("sfid", score.sfid);
  add("is", score.is, score.is_deviation);
  add("kid", score.kid, score.kid_deviation);
  add("precision", score.precision);
  add("recall", score.recall);
  add("density", score.density);
  add("coverage", score.coverage);
  const eval::ScoreRecipe& r = score.recipe;
  text +=
      detail::concat("as ", r.like, ": ", grouped(r.count), " pictures of ", r.size, " against ", r.reference,
                     r.reference_count > 0 ? detail::concat(" of ", grouped(r.reference_count)) : "", "\n");
  return text;
}

fs::path output_file(const EvalOptions& options, const char* ending) {
  if (options.output.empty()) return {};
  if (!options.output.ends_with(ending))
    throw UsageError(
        detail::concat("--output: expected a name that ends in ", ending, ", got ", options.output));
  check_outputs(std::vector{fs::path(options.output)}, options.yes);
  return options.output;
}

}  // namespace

int eval_fid(const EvalOptions& options) {
  if (options.model.empty() == options.samples.empty())
    throw UsageError("expected a model or --samples, got " +
                     std::string(options.model.empty() ? "neither" : "both"));
  if (options.reference.empty())
    throw UsageError("--reference: expected pictures or statistics (.npz), got nothing");
  const fs::path output = output_file(options, ".json");
  for (const std::string& path : {options.samples, options.reference})  // mistakes before the work
    if (!path.empty() && !eval::has_statistics(path)) eval::open_pictures(path);
  const StopSignals signals;
  return print_findings(options, signals, [&] {
    Scoring scoring(options, signals);
    const Side reference = scoring.side(options.reference, "the reference");
    const Side made = options.samples.empty()
                          ? scoring.model(generate::model_folder(options.model, "model").string())
                          : scoring.side(options.samples, "samples");
    const eval::PictureScores scores = eval::scores_of(made.scored, reference.scored, scoring.rules());
    eval::ScoreFile file = file_of(scores);
    file.recipe = recipe_of(scoring, made, reference);
    file.source = options.samples.empty() ? options.model : options.samples;
    file.version = build_info().version, file.device = scoring.network().device().str();
    const std::string json = eval::score_text(file);
    if (!output.empty()) write_text(output, json + "\n");
    if (!options.quiet)
      for (const std::string& why : scores.left_out) say("left out: " + why);
    return Findings{lines_of(file), json};
  });
}

int eval_reference(const EvalOptions& options) {
  if (options.model.empty()) throw UsageError("expected pictures to make a reference of, got nothing");
  const fs::path output = output_file(options, ".npz");
  if (output.empty()) throw UsageError("--output: expected a name for the statistics (.npz), got nothing");
  const StopSignals signals;
  return print_findings(options, signals, [&] {
    Scoring scoring(options, signals);
    const Side side = scoring.side(options.model, "the reference");
    check(side.scored.pictures(), "eval: reference: expected pictures, got statistics: ", options.model);
    eval::Statistics statistics = eval::statistics_of(side.scored.features);
    eval::ScoreFile file;
    file.recipe = recipe_of(scoring, side, side);
    file.source = options.model, file.version = build_info().version;
    statistics.recipe = eval::score_text(file);
    make_folder_of(output);
    eval::write_statistics(output, statistics);
    return Findings{options.output + "\n", statistics.recipe};
  });
}

int eval_compare(const EvalOptions& options) {
  if (options.model.empty() || options.other.empty())
    throw UsageError("expected two files of scores, got " +
                     std::string(options.model.empty() ? "none" : "one"));
  const eval::ScoreFile a = eval::read_score(options.model), b = eval::read_score(options.other);
  const std::vector<std::string> differ = eval::recipe_differences(a.recipe, b.recipe);
  if (!differ.empty()) {
    print("not comparable:");
    for (const std::string& line : differ) print("  " + line);
    return Exit::failed;
  }
  const eval::ScoreComparison c = eval::compare_scores(a, b);
  char text[160];
  std::snprintf(text, sizeof text, "%s: fid %.6g, then %.6g: %+.4g (95 %%: %+.4g to %+.4g)",
                c.low > 0    ? "worse"
                : c.high < 0 ? "better"
                             : "not distinguishable",
                *a.fid, *b.fid, c.difference, c.low, c.high);
  print(text);
  return Exit::ok;
}

}  // namespace pom::cli
