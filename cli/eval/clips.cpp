// `pom eval clips`: what can be said of clips without others' networks, beside the same of a reference.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>

#include "cli/command.h"
#include "cli/eval/eval.h"
#include "cli/eval/scoring.h"
#include "cli/json.h"
#include "cli/output_names.h"
#include "cli/values.h"
#include "pom/base/build_info.h"
#include "pom/eval/clip_scores.h"
#include "pom/eval/shapes_eval.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

struct Mean {
  double value = 0, error = 0;  // the deviation of the mean over clips
  std::int64_t clips = 0;
};

Mean mean_of(const std::vector<eval::ClipMeasures>& clips, std::optional<double> eval::ClipMeasures::*what) {
  Mean mean;
  for (const eval::ClipMeasures& clip : clips)
    if (clip.*what) mean.value += *(clip.*what), ++mean.clips;
  if (mean.clips == 0) return mean;
  const auto n = static_cast<double>(mean.clips);
  mean.value /= n;
  double squares = 0;
  for (const eval::ClipMeasures& clip : clips)
    if (clip.*what) squares += (*(clip.*what) - mean.value) * (*(clip.*what) - mean.value);
  if (mean.clips > 1) mean.error = std::sqrt(squares / (n - 1) / n);
  return mean;
}

// Clips of one side, and the rows that distances are of.
struct ClipSide {
  std::vector<fs::path> files;
  std::vector<eval::ClipMeasures> clips;
  eval::ClipRows frames, stacks;

  // "24 clips of 16 frames at 8 fps, 32x32"; what differs among them is "mixed".
  std::string text() const {
    std::set<std::string> lengths, sizes, rates;
    for (const eval::ClipMeasures& clip : clips) {
      lengths.insert(std::to_string(clip.frames));
      sizes.insert(detail::concat(clip.width, "x", clip.height));
      rates.insert(detail::concat(clip.fps));
    }
    const auto one = [](const std::set<std::string>& all) {
      return all.size() == 1 ? *all.begin() : "mixed";
    };
    return detail::concat(clips.size(), " clips of ", one(lengths), " frames, ", one(sizes), ", ", one(rates),
                          " fps");
  }
};

class ClipScoring {
 public:
  ClipScoring(const EvalOptions& options, const StopSignals& signals) : options_(options), signals_(signals) {
    if (!options.inception.empty() || !options.dinov2.empty()) scoring_.emplace(options, signals);
  }
  std::string network() const { return scoring_ ? scoring_->network().name() : "pixels"; }
  std::string resize() const { return scoring_ ? scoring_->network().resize() : "means of 8x8 areas"; }
  std::string weights() const { return scoring_ ? scoring_->network().sha256() : ""; }

  ClipSide side(const std::string& path, const std::string& what) {
    ClipSide side;
    side.files = eval::clips_at(path);
    measure(side, what);
    std::vector<at::Tensor> pooled, stacks;
    for (const eval::ClipMeasures& clip : side.clips) {
      pooled.push_back(clip.pooled);
      stacks.push_back(clip.stacks);
      side.frames.counts.push_back(clip.frames);
      side.stacks.counts.push_back(clip.stacks.size(0));
    }
    side.stacks.rows = at::cat(stacks);
    side.frames.rows = scoring_ ? features(side, what) : at::cat(pooled);
    return side;
  }

 private:
  void measure(ClipSide& side, const std::string& what) {
    side.clips.resize(side.files.size());
    Watch watch(signals_, options_.quiet, what, "clip");
    constexpr std::int64_t at_a_time = 16;
    const std::int64_t count = std::ssize(side.files);
    for (std::int64_t first = 0; first < count; first += at_a_time) {
      const std::int64_t last = std::min(count, first + at_a_time);
      at::parallel_for(first, last, 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
          side.clips[i] = eval::measure_clip(side.files[i]);
      });
      watch(last, count);
    }
  }

  at::Tensor features(const ClipSide& side, const std::string& what) {
    std::int64_t count = 0, number = 0;
    for (const std::int64_t frames : side.frames.counts) count += frames;
    eval::FeatureRows rows(scoring_->network(), count, {0, count});
    Watch watch(signals_, options_.quiet, "features of " + what, "frame");
    for (const fs::path& file : side.files)
      eval::measure_clip(file, [&](const io::Image& frame) {
        rows.add(number++, eval::stack_pictures(std::span(&frame, 1))[0]);
        watch(number, count);
      });
    return rows.rows().main;
  }

  const EvalOptions& options_;
  const StopSignals& signals_;
  std::optional<Scoring> scoring_;
};

struct ClipScores {
  Mean flickering, smoothness, reference_flickering, reference_smoothness;
  eval::ClipDistance frames;
  std::optional<eval::ClipDistance> stacks;
};

ClipScores scores_of(const ClipSide& made, const ClipSide& reference) {
  using eval::ClipMeasures;
  ClipScores scores{mean_of(made.clips, &ClipMeasures::flickering),
                    mean_of(made.clips, &ClipMeasures::smoothness),
                    mean_of(reference.clips, &ClipMeasures::flickering),
                    mean_of(reference.clips, &ClipMeasures::smoothness),
                    {},
                    {}};
  scores.frames = eval::clip_distance(made.frames, reference.frames.rows);
  if (made.stacks.rows.size(0) >= 2 && reference.stacks.rows.size(0) >= 2)
    scores.stacks = eval::clip_distance(made.stacks, reference.stacks.rows);
  return scores;
}

std::string text_of(const ClipScores& s, const ClipSide& made, const ClipSide& reference,
                    const std::string& network) {
  std::string text;
  char line[160];
  const auto add = [&](const char* name, const Mean& a, const Mean& b) {
    if (a.clips == 0) return;
    std::snprintf(line, sizeof line, "%-12s %.6g ± %.2g; of the reference %.6g ± %.2g\n", name, a.value,
                  a.error, b.value, b.error);
    text += line;
  };
  const auto distance = [&](const char* name, const eval::ClipDistance& d) {
    if (d.deviation)
      std::snprintf(line, sizeof line, "%-12s %.6g ± %.2g\n", name, d.value, *d.deviation);
    else
      std::snprintf(line, sizeof line, "%-12s %.6g\n", name, d.value);
    text += line;
  };
  add("flickering", s.flickering, s.reference_flickering);
  add("smoothness", s.smoothness, s.reference_smoothness);
  distance("fd, frames", s.frames);
  if (s.stacks) distance("fd, stacks", *s.stacks);
  return text + made.text() + "; reference: " + reference.text() + "; frames by " + network + "\n";
}

std::string json_of(const ClipScores& s, const ClipSide& made, const ClipSide& reference,
                    const ClipScoring& scoring, const EvalOptions& options) {
  JsonObject result;
  const auto add = [&](const std::string& name, const Mean& mean) {
    if (mean.clips > 0) result.add(name, mean.value).add(name + "_error", mean.error);
  };
  const auto distance = [&](const std::string& name, const eval::ClipDistance& d) {
    result.add(name, d.value);
    if (d.deviation) result.add(name + "_deviation", *d.deviation);
  };
  add("flickering", s.flickering);
  add("smoothness", s.smoothness);
  add("reference_flickering", s.reference_flickering);
  add("reference_smoothness", s.reference_smoothness);
  distance("fd_frames", s.frames);
  if (s.stacks) distance("fd_stacks", *s.stacks);
  result.add("recipe", JsonObject()
                           .add("network", scoring.network())
                           .add("network_sha256", scoring.weights())
                           .add("resize", scoring.resize())
                           .add("stacks", "8 frames of 4x4 means")
                           .add("clips", made.text())
                           .add("reference", reference.text()));
  result.add("source", options.model).add("reference", options.reference);
  result.add("version", build_info().version);
  return result.text();
}

}  // namespace

int eval_clips(const EvalOptions& options) {
  if (options.model.empty()) throw UsageError("expected clips: a folder or a file, got nothing");
  if (options.reference.empty()) throw UsageError("--reference: expected clips to compare with, got nothing");
  const fs::path output = options.output;
  if (!output.empty() && !options.output.ends_with(".json"))
    throw UsageError("--output: expected a name that ends in .json, got " + options.output);
  if (!output.empty()) check_outputs(std::vector{output}, options.yes);
  const StopSignals signals;
  return print_findings(options, signals, [&] {
    ClipScoring scoring(options, signals);
    const ClipSide reference = scoring.side(options.reference, "the reference"),
                   made = scoring.side(options.model, "clips");
    const ClipScores scores = scores_of(made, reference);
    const std::string json = json_of(scores, made, reference, scoring, options);
    if (!output.empty()) write_text(output, json + "\n");
    return Findings{text_of(scores, made, reference, scoring.network()), json};
  });
}

}  // namespace pom::cli
