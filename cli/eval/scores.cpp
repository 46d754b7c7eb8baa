// `pom eval fid`, `reference` and `compare`: the field's scores, with the recipe that makes them comparable.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/eval/scoring.h"
#include "cli/output_names.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/eval/picture_set.h"
#include "pom/eval/score_file.h"
#include "pom/generate/model_names.h"
#include "pom/io/sha256.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

std::string hash_of(const eval::Gaussian& g) {
  io::Sha256 hash;
  for (const at::Tensor& t : {g.mean.contiguous(), g.covariance.contiguous()})
    hash.update(std::span(static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()));
  return hash.hex();
}

eval::ScoreRecipe recipe_of(const Scoring& scoring, const ScoringSide& made, const ScoringSide& reference) {
  const eval::ScoreRules& rules = scoring.rules();
  eval::ScoreRecipe recipe;
  recipe.like = rules.name;
  recipe.network = scoring.network().name();
  recipe.network_sha256 = scoring.network().sha256();
  recipe.resize = scoring.network().resize();
  recipe.dtype = "fp32";
  recipe.count = made.count, recipe.size = made.size, recipe.samples = made.kind, recipe.order = made.order;
  recipe.reference = reference.kind, recipe.reference_count = reference.count;
  recipe.reference_sha256 =
      hash_of(reference.scored.statistics ? reference.scored.statistics->main
                                          : eval::statistics_of(reference.scored.features).main);
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
  recipe.infinity_sizes =
      detail::concat(eval::infinity_points, " from a tenth on, RandomState(", eval::infinity_seed, ")");
  return recipe;
}

eval::ScoreFile file_of(const eval::PictureScores& scores, const eval::ScoreRules& rules) {
  eval::ScoreFile file;
  const eval::SampledDistance& d = scores.frechet;
  if (rules.network == eval::ScoreNetwork::inception)
    file.fid = d.all, file.fid_deviation = d.deviation, file.fid_unbiased = d.unbiased,
    file.fid_infinity = d.infinity;
  else
    file.fd = d.all, file.fd_deviation = d.deviation, file.fd_unbiased = d.unbiased,
    file.fd_infinity = d.infinity;
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
  add("fid, infinity", score.fid_infinity);
  add("fd", score.fd, score.fd_deviation);
  add("fd, unbiased", score.fd_unbiased);
  add("fd, infinity", score.fd_infinity);
  add("sfid", score.sfid);
  add("is", score.is, score.is_deviation);
  add("kid", score.kid, score.kid_deviation);
  add("precision", score.precision);
  add("recall", score.recall);
  add("density", score.density);
  add("coverage", score.coverage);
  const eval::ScoreRecipe& r = score.recipe;
  text += detail::concat(
      "as ", r.like, ", ", r.network, ": ", grouped(r.count), " pictures of ", r.size, " against ",
      r.reference, r.reference_count > 0 ? detail::concat(" of ", grouped(r.reference_count)) : "", "\n");
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
    const ScoringSide reference = scoring.side(options.reference, "the reference");
    const ScoringSide made = options.samples.empty()
                                 ? scoring.model(generate::model_folder(options.model, "model").string())
                                 : scoring.side(options.samples, "samples");
    if (!parallel::world().first()) return Findings{};
    const eval::PictureScores scores = eval::scores_of(made.scored, reference.scored, scoring.rules());
    eval::ScoreFile file = file_of(scores, scoring.rules());
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
    const ScoringSide side = scoring.side(options.model, "the reference");
    check(side.scored.pictures(), "eval: reference: expected pictures, got statistics: ", options.model);
    if (!parallel::world().first()) return Findings{};
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
  std::snprintf(text, sizeof text, "%s: %s %.6g, then %.6g: %+.4g (95 %%: %+.4g to %+.4g)",
                c.low > 0    ? "worse"
                : c.high < 0 ? "better"
                             : "not distinguishable",
                a.distance_name(), *a.distance(), *b.distance(), c.difference, c.low, c.high);
  print(text);
  return Exit::ok;
}

}  // namespace pom::cli
