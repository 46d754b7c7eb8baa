// Pieces of SVG that all plots share: a card with its colours, readable on light and on dark pages; words and
// lines on it.
#pragma once

#include <string>
#include <string_view>

namespace pom::cli {

// Classes of text: title, head, t0 to t2. Of lines: grid, axis, "line s0" (broken) to "line s2"; of dots:
// "dot d0" to "dot d2". The numbers are those of series.
std::string svg_begin(double width, double height, std::string_view title);

std::string svg_number(double value);  // to a tenth of a pixel
std::string svg_text(double x, double y, std::string_view words, std::string_view kind = "",
                     std::string_view anchor = "start");
std::string svg_slanting(double x, double y, std::string_view words);  // that end there
std::string svg_line(std::string_view kind, double x1, double y1, double x2, double y2);

}  // namespace pom::cli
