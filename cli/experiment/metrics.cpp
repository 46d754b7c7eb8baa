#include "cli/experiment/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "pom/base/error.h"

namespace pom::cli::experiment {

std::vector<Metric> metrics_of(std::string_view judge) {
  std::vector<Metric> metrics;
  if (judge == "sprites")
    metrics = {{"kind", "shape, %", true, 2, true},
               {"hue", "colour, %", true, 2, true},
               {"direction", "direction, %", true, 2, true},
               {"kind_first", "shape, first frames, %", true, 2, true},
               {"kind_last", "shape, last frames, %", true, 2, true},
               {"steady", "same shape at both ends, %", true, 2, true},
               {"settles", "last less first, %", true, 2, true},
               {"frechet_frames", "FD of frames"},
               {"frechet_stacks", "FD of 8 frames"},
               {"speed_error", "error of speed", false, 3},
               {"misfit", "misfit", false, 4}};
  else if (judge == "figure1")
    return {{"forward_ratio", "attention / PoM", false, 2, true},
            {"training_ratio", "attention / PoM, training", false, 2, true},
            {"forward_pom", "PoM, ms", false, 3},
            {"forward_attention", "attention, ms", false, 3},
            {"training_pom", "PoM, training, ms", false, 3},
            {"training_attention", "attention, training, ms", false, 3}};
  else if (judge == "streaming")
    return {{"pom", "PoM, ms a block"},
            {"attention", "attention, ms a block"},
            {"pom_window", "PoM with a window, ms"},
            {"pom_state", "PoM's state, KiB", false, 1},
            {"attention_state", "attention's state, KiB", false, 1}};
  else if (judge == "scenes")
    metrics = {{"frechet", "FD"},
               {"frechet_infinity", "FD∞"},
               {"frechet_n", "FD of N"},
               {"frechet_random", "FD, random features"},
               {"frechet_inception", "FD, random Inception"},
               {"everything", "all right, %", true, 2, true},
               {"pairs", "shape and colour, %", true, 2, true},
               {"relations", "relations, %", true, 2, true},
               {"counts", "count, %", true, 2, true},
               {"fits", "clean, %", true, 2, true},
               {"read", "all right by the reader, %", true, 2, true},
               {"precision", "precision", false, 3, true},
               {"recall", "recall", false, 3, true},
               {"misfit", "misfit", false, 4}};
  else
    metrics = {{"frechet", "FD"},
               {"frechet_infinity", "FD∞"},
               {"frechet_n", "FD of N"},
               {"frechet_random", "FD, random features"},
               {"frechet_inception", "FD, random Inception"},
               {"recognised", "recognised, %", true, 2, true},
               {"inception", "judge-IS", false, 2, true},
               {"precision", "precision", false, 3, true},
               {"recall", "recall", false, 3, true},
               {"position", "position", false, 3, true},
               {"size", "size", false, 3, true},
               {"hue", "hue", false, 3, true}};
  metrics.push_back({"validation_loss", "validation loss", false, 4});
  return metrics;
}

const Metric& metric_named(const std::vector<Metric>& metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &Metric::name);
  check(found != metrics.end(), "metric: expected one of the judge's, got ", name);
  return *found;
}

std::string metric_text(const Metric& metric, double value) {
  if (!std::isfinite(value)) return "—";
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", metric.digits, metric.percent ? 100 * value : value);
  return text;
}

std::string mean_text(const Metric& metric, double mean, double half) {
  if (!std::isfinite(half)) return metric_text(metric, mean);
  return metric_text(metric, mean) + " ± " + metric_text(metric, half);
}

double score_named(const Scores& scores, std::string_view name) {
  for (const auto& [key, value] : scores)
    if (key == name) return value;
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace pom::cli::experiment
