// Line plots with logarithmic axes, or of percents, as SVG: panels side by side on one card, readable on
// light and on dark pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace pom::cli {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>>
      points;  // (x, y), positive unless percents, by growing x; may be empty
};

// There are colours for three series: the first is drawn as a broken line, being a limit.
struct PlotPanel {
  std::string title;
  std::vector<PlotSeries> series;
  std::string x_label = {};  // of a panel whose x has nothing to do with the others'; empty: the plot's
};

struct Plot {
  std::string title, subtitle, x_label;
  std::vector<PlotPanel> panels;
  bool percent = false;  // y from 0 to 100, with steps of equal size
};

std::string plot_svg(const Plot& plot);

}  // namespace pom::cli
