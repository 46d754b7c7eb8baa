#include "cli/bench/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string_view>

#include "cli/svg_parts.h"
#include "pom/base/error.h"

namespace pom::cli {
namespace {

using detail::concat;

// Pixels: a plot's width and height, between two, and around them; a series' name is written right of its
// end.
constexpr double kWidth = 400, kHeight = 260, kGap = 150, kMargin = 76, kTop = 112, kBottom = 72,
                 kRight = 104;

std::string tick(double value) {  // 0.01, 100, 16k
  char text[32];
  const bool thousands = value >= 1024 && std::fmod(value, 1024) == 0;
  std::snprintf(text, sizeof text, thousands ? "%.4gk" : "%.6g", thousands ? value / 1024 : value);
  return text;
}

// Of an axis, from the values' range to a range of pixels.
class Scale {
 public:
  Scale(bool logarithmic, double low, double high, double start, double end)
      : start(start), end(end), logarithmic_(logarithmic), low_(of(low)), span_(of(high) - of(low)) {}
  double operator()(double value) const { return start + (of(value) - low_) / span_ * (end - start); }
  const double start, end;

 private:
  double of(double value) const { return logarithmic_ ? std::log(value) : value; }
  bool logarithmic_;
  double low_, span_;
};

// Powers of ten around the values of a panel.
std::vector<double> decades_of(const PlotPanel& panel) {
  double least = 1e300, most = 0;
  for (const PlotSeries& series : panel.series)
    for (const auto& [x, y] : series.points) least = std::min(least, y), most = std::max(most, y);
  const int low = most == 0 ? 0 : static_cast<int>(std::floor(std::log10(least)));
  const int high = most == 0 ? 1 : std::max(low + 1, static_cast<int>(std::ceil(std::log10(most))));
  std::vector<double> decades;
  for (int decade = low; decade <= high; ++decade) decades.push_back(std::pow(10.0, decade));
  return decades;
}

std::string axes(const Plot& plot, const PlotPanel& panel, const Scale& x, const Scale& y,
                 const std::vector<double>& ticks, const std::vector<double>& levels) {
  std::string text = svg_text(x.start, y.end - 18, panel.title, "head");
  for (const double value : levels) {
    const double at = y(value);
    text += svg_line(value == levels.front() ? "axis" : "grid", x.start, at, x.end, at);
    char words[32];
    std::snprintf(words, sizeof words, "%g", value);
    text += svg_text(x.start - 10, at + 4.5, words, "", "end");
  }
  for (const double value : ticks) {
    text += svg_line("axis", x(value), y.start, x(value), y.start + 5);
    text += svg_text(x(value), y.start + 22, tick(value), "", "middle");
  }
  return text + svg_text((x.start + x.end) / 2, y.start + 46,
                         panel.x_label.empty() ? plot.x_label : panel.x_label, "", "middle");
}

struct EndLabel {
  std::size_t series = 0;
  double x = 0, y = 0;
};

// Lines that end near each other have their names moved apart.
void spread_out(std::vector<EndLabel>& labels) {
  constexpr double apart = 16;
  std::ranges::sort(labels, {}, &EndLabel::y);
  for (int pass = 0; pass < 20; ++pass)
    for (std::size_t i = 1; i < labels.size(); ++i) {
      const double missing = apart - (labels[i].y - labels[i - 1].y);
      if (missing <= 0) continue;
      labels[i - 1].y -= missing / 2;
      labels[i].y += missing / 2;
    }
}

std::string lines(const PlotPanel& panel, const Scale& x, const Scale& y) {
  std::string text;
  std::vector<EndLabel> labels;
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    const auto& points = panel.series[i].points;
    if (points.empty()) continue;
    std::string places, dots;
    for (const auto& [a, b] : points) {
      places += concat(places.empty() ? "" : " ", svg_number(x(a)), ",", svg_number(y(b)));
      dots += concat("<circle class=\"dot d", i, "\" cx=\"", svg_number(x(a)), "\" cy=\"", svg_number(y(b)),
                     "\" r=\"4\"/>\n");
    }
    text += concat("<polyline class=\"line s", i, "\" points=\"", places, "\"/>\n", dots);
    labels.push_back({i, x(points.back().first), y(points.back().second)});
  }
  spread_out(labels);
  for (const EndLabel& end : labels)
    text += svg_text(end.x + 11, end.y + 4.5, panel.series[end.series].name, concat("t", end.series));
  return text;
}

// Panels of one kind have one axis.
std::vector<double> ticks_of(const Plot& plot, const std::string& x_label) {
  std::set<double> all;
  for (const PlotPanel& panel : plot.panels)
    if (panel.x_label == x_label)
      for (const PlotSeries& series : panel.series)
        for (const auto& [x, y] : series.points) all.insert(x);
  if (all.empty()) all = {1, 10};
  return {all.begin(), all.end()};
}

}  // namespace

std::string plot_svg(const Plot& plot) {
  const auto panels = static_cast<double>(plot.panels.size());
  const double width = kMargin + panels * kWidth + (panels - 1) * kGap + kRight;
  const double height = kTop + kHeight + kBottom;
  std::string text = svg_begin(width, height, plot.title);
  text += svg_text(28, 38, plot.title, "title") + svg_text(28, 60, plot.subtitle);
  double left = kMargin;
  for (const PlotPanel& panel : plot.panels) {
    const std::vector<double> ticks = ticks_of(plot, panel.x_label);
    const std::vector<double> levels =
        plot.percent ? std::vector<double>{0, 20, 40, 60, 80, 100} : decades_of(panel);
    const Scale x(true, ticks.front() / 1.15, ticks.back() * 1.15, left, left + kWidth);
    const Scale y(!plot.percent, levels.front(), levels.back(), kTop + kHeight, kTop);
    text += axes(plot, panel, x, y, ticks, levels) + lines(panel, x, y);
    left += kWidth + kGap;
  }
  return text + "</svg>\n";
}

}  // namespace pom::cli
