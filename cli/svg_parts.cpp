#include "cli/svg_parts.h"

#include <cmath>
#include <cstdio>

#include "pom/base/error.h"

namespace pom::cli {
namespace {

constexpr std::string_view kStyle = R"(
  .card { fill: #ffffff; stroke: #d9dde3 } .grid { stroke: #e8ebef } .axis { stroke: #aab2bd }
  text { font: 13px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: #5b6572 }
  .title { font-size: 19px; font-weight: 600; fill: #1d2430 }
  .head { font-size: 14px; font-weight: 600; fill: #1d2430 }
  .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round }
  .s0 { stroke: #6b7686; stroke-dasharray: 2 6 } .d0, .t0 { fill: #6b7686 }
  .s1 { stroke: #0d7d74 } .d1, .t1 { fill: #0d7d74 } .s2 { stroke: #c8541b } .d2, .t2 { fill: #c8541b }
  .t0, .t1, .t2 { font-weight: 600 } .dot { stroke: #ffffff; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #14181f; stroke: #2b323c } .grid { stroke: #242a33 } .axis { stroke: #4c5663 }
    text { fill: #9aa5b1 } .title, .head { fill: #e8ecf1 } .dot { stroke: #14181f }
    .s0 { stroke: #8d98a7 } .d0, .t0 { fill: #8d98a7 }
    .s1 { stroke: #3cc9b8 } .d1, .t1 { fill: #3cc9b8 } .s2 { stroke: #f08a4b } .d2, .t2 { fill: #f08a4b }
  }
)";

std::string svg_escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '"')
      safe += "&quot;";
    else
      safe += c;
  }
  return safe;
}

}  // namespace

std::string svg_begin(double width, double height, std::string_view title) {
  return detail::concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height,
                        "\" width=\"", width, "\" height=\"", height, "\" role=\"img\" aria-label=\"",
                        svg_escaped(title), "\">\n<style>", kStyle,
                        "</style>\n<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"", width - 1,
                        "\" height=\"", height - 1, "\" rx=\"12\"/>\n");
}

std::string svg_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::round(value * 10) / 10);
  return text;
}

std::string svg_text(double x, double y, std::string_view words, std::string_view kind,
                     std::string_view anchor) {
  return detail::concat("<text x=\"", svg_number(x), "\" y=\"", svg_number(y), "\"",
                        kind.empty() ? "" : detail::concat(" class=\"", kind, "\""), " text-anchor=\"",
                        anchor, "\">", svg_escaped(words), "</text>\n");
}

std::string svg_slanting(double x, double y, std::string_view words) {
  return detail::concat("<text transform=\"translate(", svg_number(x), ",", svg_number(y),
                        ") rotate(-40)\" text-anchor=\"end\">", svg_escaped(words), "</text>\n");
}

std::string svg_line(std::string_view kind, double x1, double y1, double x2, double y2) {
  return detail::concat("<line class=\"", kind, "\" x1=\"", svg_number(x1), "\" y1=\"", svg_number(y1),
                        "\" x2=\"", svg_number(x2), "\" y2=\"", svg_number(y2), "\"/>\n");
}

}  // namespace pom::cli
