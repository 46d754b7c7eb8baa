#include "cli/experiment/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "cli/svg_parts.h"
#include "cli/values.h"
#include "pom/base/error.h"

namespace pom::cli::experiment {
namespace {

using detail::concat;

constexpr double panel_width = 420, panel_height = 260, gap = 90, margin = 84, top = 112, bottom = 96,
                 right = 40;
constexpr std::size_t most_panels = 3, names_across = 8;  // more names than that are written slanting

// Where a row stands, from 0 to 1.
std::vector<double> places_of(const Plan& plan, const Results& results) {
  std::vector<double> places;
  const bool numbers = !plan.file().axis.empty();
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const RowResult& row : results.rows) least = std::min(least, row.x), most = std::max(most, row.x);
  const bool logarithmic = numbers && least > 0 && most / least > 15;
  least = std::numeric_limits<double>::infinity(), most = -least;
  for (std::size_t i = 0; i < results.rows.size(); ++i) {
    const double x = results.rows[i].x;
    places.push_back(logarithmic ? std::log(x) : numbers ? x : static_cast<double>(i));
    least = std::min(least, places.back()), most = std::max(most, places.back());
  }
  for (double& place : places) place = most > least ? 0.06 + 0.88 * (place - least) / (most - least) : 0.5;
  return places;
}

// A range of values with round steps, a little wider than what it has to hold.
struct Levels {
  double low = 0, high = 1, step = 0.2;
};
Levels levels_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [least, most] = std::ranges::minmax(values);
  const double span = std::max(most - least, 1e-9 + 0.02 * std::abs(most)), raw = span / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  return {std::floor((least - 0.02 * span) / step) * step, std::ceil((most + 0.02 * span) / step) * step,
          step};
}

std::string tick_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", std::abs(value) < 1e-12 ? 0 : value);
  return text;
}

class Panel {
 public:
  Panel(const Plan& plan, const Results& results, const Metric& metric, double left)
      : plan_(plan), results_(results), metric_(metric), left_(left), places_(places_of(plan, results)) {
    std::vector<double> values;
    const auto add = [&](double value) {
      if (std::isfinite(value)) values.push_back(shown(value));
    };
    for (const RowResult& row : results.rows) {
      for (const auto& [seed, value] : row.values(metric.name)) add(value);
      if (const auto mean = row.mean(metric.name)) {
        const double reach = 3 * mean->deviation;  // the interval of two runs may be wider than all else
        add(std::max(mean->low, mean->mean - reach)), add(std::min(mean->high, mean->mean + reach));
      }
    }
    if (const double floor = score_named(results.floor, metric.name); !values.empty()) add(floor);
    levels_ = levels_of(values);
    if (metric.percent)
      levels_.low = std::max(levels_.low, 0.0), levels_.high = std::min(levels_.high, 100.0);
  }

  std::string svg() const { return axes() + floor() + means() + dots(); }

 private:
  double shown(double value) const { return metric_.percent ? 100 * value : value; }
  double x(std::size_t row) const { return left_ + places_[row] * panel_width; }
  double y(double value) const {
    const double share = (value - levels_.low) / (levels_.high - levels_.low);
    return top + panel_height * (1 - std::clamp(share, 0.0, 1.0));
  }

  std::string axes() const {
    std::string text = svg_text(left_, top - 18, metric_.title, "head");
    const auto steps = static_cast<int>(std::lround((levels_.high - levels_.low) / levels_.step));
    for (int i = 0; i <= steps; ++i) {
      const double value = levels_.low + i * levels_.step;
      text += svg_line(i == 0 ? "axis" : "grid", left_, y(value), left_ + panel_width, y(value));
      text += svg_text(left_ - 10, y(value) + 4.5, tick_text(value), "", "end");
    }
    const bool macs = plan_.file().axis == "macs";
    for (std::size_t i = 0; i < results_.rows.size(); ++i) {
      const double base = top + panel_height;
      text += svg_line("axis", x(i), base, x(i), base + 5);
      const bool slanting = results_.rows.size() > names_across;
      text += slanting ? svg_slanting(x(i) + 4, base + 18, results_.rows[i].name)
                       : svg_text(x(i), base + 22, results_.rows[i].name, "", "middle");
      if (macs) text += svg_text(x(i), base + 40, amount_text(results_.rows[i].x), "", "middle");
    }
    return text;
  }

  std::string floor() const {
    const double value = score_named(results_.floor, metric_.name);
    if (!std::isfinite(value)) return {};
    const double at = y(shown(value));
    return svg_line("line s0", left_, at, left_ + panel_width, at) +
           svg_text(left_ + panel_width - 4, at - 6, "drawings", "t0", "end");
  }

  std::string means() const {
    std::string text, places;
    for (std::size_t i = 0; i < results_.rows.size(); ++i) {
      const auto mean = results_.rows[i].mean(metric_.name);
      if (!mean) continue;
      const double at = y(shown(mean->mean));
      places += concat(places.empty() ? "" : " ", svg_number(x(i)), ",", svg_number(at));
      if (std::isfinite(mean->low))
        text += svg_line("line s1", x(i), y(shown(mean->low)), x(i), y(shown(mean->high)));
      text += svg_line("line s1", x(i) - 9, at, x(i) + 9, at);
    }
    const bool ordered = !plan_.file().axis.empty();
    return text +
           (ordered ? concat("<polyline class=\"line s1\" points=\"", places, "\"/>\n") : std::string());
  }

  std::string dots() const {
    std::string text;
    for (std::size_t i = 0; i < results_.rows.size(); ++i) {
      const std::map<std::int64_t, double> values = results_.rows[i].values(metric_.name);
      constexpr double apart = 5;
      double aside = -apart * static_cast<double>(values.size() - 1) / 2;
      for (const auto& [seed, value] : values) {
        text += concat("<circle class=\"dot d2\" cx=\"", svg_number(x(i) + aside), "\" cy=\"",
                       svg_number(y(shown(value))), "\" r=\"4\"/>\n");
        aside += apart;
      }
    }
    return text;
  }

  const Plan& plan_;
  const Results& results_;
  const Metric& metric_;
  double left_;
  std::vector<double> places_;
  Levels levels_;
};

}  // namespace

std::string results_svg(const Plan& plan, const Results& results) {
  const std::size_t count = std::min(most_panels, results.metrics.size());
  const auto panels = static_cast<double>(count);
  const double width = margin + panels * panel_width + (panels - 1) * gap + right,
               height = top + panel_height + bottom;
  const File& file = plan.file();
  const std::string title =
      (file.title.empty() ? plan.experiment.name : file.title) + (plan.experiment.quick ? " (quick)" : "");
  std::string text = svg_begin(width, height, title);
  text += svg_text(28, 38, title, "title") +
          svg_text(28, 60,
                   file.timed() ? "dots: repetitions; bars: means with 95 % intervals"
                                : "dots: runs; bars: means with 95 % intervals; broken line: drawings");
  for (std::size_t i = 0; i < count; ++i)
    text +=
        Panel(plan, results, results.metrics[i], margin + static_cast<double>(i) * (panel_width + gap)).svg();
  return text + "</svg>\n";
}

}  // namespace pom::cli::experiment
