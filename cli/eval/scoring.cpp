#include "cli/eval/scoring.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/zeros.h>

#include "cli/command.h"
#include "pom/eval/picture_set.h"
#include "pom/eval/score_file.h"
#include "pom/eval/shapes_eval.h"

namespace pom::cli {
namespace {

// The weights that the rules ask for, and no others.
std::string weights_of(const EvalOptions& options, const eval::ScoreRules& rules) {
  const bool dinov2 = rules.network == eval::ScoreNetwork::dinov2;
  const std::string &file = dinov2 ? options.dinov2 : options.inception,
                    &other = dinov2 ? options.inception : options.dinov2;
  if (!other.empty())
    throw UsageError(detail::concat(dinov2 ? "--inception" : "--dinov2",
                                    ": expected rules of that network, got ", "--like ", rules.name));
  if (!file.empty()) return file;
  if (dinov2)
    throw UsageError(
        "--dinov2: expected the weights of DINOv2 ViT-L/14 as .safetensors, got nothing; "
        "tools/unpickle.py dinov2_vitl14_pretrain.pth -o dinov2.safetensors makes them");
  throw UsageError(
      "--inception: expected the weights of Inception-v3 of 2015 as .safetensors, got nothing; "
      "tools/unpickle.py pt_inception-2015-12-05-6726825d.pth -o inception.safetensors makes them");
}

parallel::Share own_share(std::int64_t count) {
  const parallel::Ranks& ranks = parallel::world();
  return eval::feature_share(count, ranks.size(), ranks.rank());
}

}  // namespace

Scoring::Scoring(const EvalOptions& options, const StopSignals& signals)
    : options_(options),
      signals_(signals),
      rules_(as_usage([&] { return eval::score_rules(options.like); })) {
  const std::string file = weights_of(options, rules_);
  const at::Device device = as_usage([&] { return generate::device_named(options.device, "eval"); });
  network_ = eval::open_network(rules_, file, device);
  at::globalContext().setAllowTF32CuDNN(false);  // scores that are published have all their bits
  at::globalContext().setAllowTF32CuBLAS(false);
}

void Scoring::check_statistics(const eval::Statistics& statistics, const std::string& path) const {
  if (statistics.recipe.empty()) return;
  const eval::ScoreRecipe recipe = eval::parse_score(statistics.recipe, path + ": recipe").recipe;
  const auto same = [&](const char* what, const std::string& theirs, const std::string& ours) {
    check(theirs == ours, "eval: ", path, ": expected statistics of the same ", what, " (", ours, "), got ",
          theirs);
  };
  same("network", recipe.network, network_->name());
  same("weights", recipe.network_sha256, network_->sha256());
  same("resize", recipe.resize, network_->resize());
}

ScoringSide Scoring::side(const std::string& path, const std::string& what) {
  const bool made = what == "samples", pictures = eval::may_have_pictures(path);
  std::optional<eval::Statistics> statistics;
  if (eval::has_statistics(path) && !(made && pictures)) {
    statistics = eval::read_statistics(path);
    check_statistics(*statistics, path);
  }
  if (statistics && !(pictures && rules_.neighbours))
    return {{.features = {}, .statistics = std::move(statistics)}, 0, "statistics", "", ""};
  const std::unique_ptr<eval::PictureSet> set = eval::open_pictures(path);
  ScoringSide side{{}, set->count(), set->format(), "", "as they lie"};
  if (options_.count && *options_.count < side.count && made) side.count = *options_.count;
  side.scored.features = features(side, what, [&](std::int64_t i) { return set->read(i); });
  if (statistics) side.kind = "statistics, and pictures", side.scored.statistics = std::move(statistics);
  return side;
}

ScoringSide Scoring::model(const std::string& folder) {
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
  ScoringSide side{{}, std::ssize(job.items), "model", "", "class by class"};
  side.size = detail::concat(*job.first().width, "x", *job.first().height);
  const parallel::Share share = own_share(side.count);
  eval::FeatureRows rows(*network_, side.count, share);
  Watch watch(signals_, options_.quiet, "sampling", "evaluation");
  generate::Observer observer;
  observer.stop = &signals_.asked();
  observer.on_evaluation = [&](std::int64_t done, std::int64_t total) { watch(done, total); };
  observer.on_frames = [&](generate::Frames&& frames) {
    rows.add(frames.item, eval::stack_pictures(frames.images)[0]);
  };
  if (share.count > 0) engine.run(job, {.batch = options_.batch, .items = share}, observer);
  side.scored.features = gathered(rows.rows(), share, side.count);
  return side;
}

eval::PictureFeatures Scoring::features(ScoringSide& side, const std::string& what,
                                        const eval::PictureAt& picture) {
  const at::Tensor first = picture(0);
  side.size = detail::concat(first.size(2), "x", first.size(1));
  std::atomic<std::int64_t> mixed = 0;
  Watch watch(signals_, options_.quiet, "features of " + what, "image");
  const eval::PictureAt looked = [&](std::int64_t i) {
    const at::Tensor t = picture(i);
    if (t.sizes() != first.sizes()) mixed = 1;
    return t;
  };
  const parallel::Share share = own_share(side.count);
  const eval::PictureFeatures mine = eval::features_of(*network_, side.count, share, looked,
                                                       [&](std::int64_t done) { watch(done, share.count); });
  eval::PictureFeatures all = gathered(mine, share, side.count);
  if (parallel::world().largest({mixed}).front() != 0) side.size = "mixed";
  return all;
}

// A rank without pictures does not know how wide features are: the others tell.
eval::PictureFeatures Scoring::gathered(const eval::PictureFeatures& mine, const parallel::Share& share,
                                        std::int64_t count) {
  if (parallel::world().alone()) return mine;
  constexpr std::array parts = {&eval::PictureFeatures::main, &eval::PictureFeatures::spatial,
                                &eval::PictureFeatures::logits};
  wait_for_all();
  std::vector<std::int64_t> widths;
  for (const auto part : parts) widths.push_back((mine.*part).defined() ? (mine.*part).size(1) : 0);
  widths = parallel::world().largest(widths);
  eval::PictureFeatures all;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (widths[i] == 0) continue;
    at::Tensor rows = at::zeros({count, widths[i]}, at::kFloat);
    if (share.count > 0) rows.narrow(0, share.first, share.count).copy_(mine.*parts[i]);
    add_up(rows);
    all.*parts[i] = rows;
  }
  return all;
}

}  // namespace pom::cli
