#include "cli/eval/report.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "cli/terminal.h"
#include "cli/values.h"

namespace pom::cli {
namespace {

using eval::ShapesReport, eval::Spread;

constexpr std::size_t label_width = 28, column_width = 18;

std::string number(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

// Bytes that are no character of their own.
std::size_t columns_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string left(std::string text, std::size_t width) {
  const std::size_t columns = columns_of(text);
  return columns < width ? text + std::string(width - columns, ' ') : text;
}

std::string right(const std::string& text, std::size_t width) {
  const std::size_t columns = columns_of(text);
  return columns < width ? std::string(width - columns, ' ') + text : text;
}

// "99.30 ± 0.12": the spread only where there is more than one seed.
std::string with_spread(const Spread& spread, int decimals, bool several) {
  const std::string mean = number(spread.mean, decimals);
  return several ? mean + " ± " + number(spread.deviation, decimals) : mean;
}

std::string percent(const Spread& spread, bool several) {
  return with_spread({100 * spread.mean, 100 * spread.deviation}, 2, several) + " %";
}

std::string row(const std::string& label, const std::string& a, const std::string& b, const std::string& c) {
  std::string line = left(label, label_width) + left(a, column_width) + left(b, column_width) + c;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string summary(const ShapesReport& r) {
  const bool several = r.repetitions > 1;
  std::string text = bold(row("", "images", "drawings", "ratio"), 1);
  text += row("recognised", percent(r.recognised, several), percent(r.drawings_recognised, several), "");
  const auto beside = [&](const char* label, const ShapesReport::Beside& b) {
    text += row(label, with_spread(b.pictures, 3, several), with_spread(b.drawings, 3, several),
                with_spread(b.ratio, 3, several));
  };
  beside("hue, entropy in bits", r.hue_entropy);
  beside("position x, deviation", r.x);
  beside("position y, deviation", r.y);
  beside("size, deviation of log2", r.log2_radius);
  return text + row("Frechet distance", with_spread(r.frechet, 3, several),
                    with_spread(r.frechet_of_drawings, 3, several), "");
}

std::string confusion(const ShapesReport& r) {
  constexpr std::size_t name = 11, rate = 9, cell = 5;
  std::string text = bold(left("asked for", name) + left("right", rate) + "seen as", 1) + "\n";
  text += std::string(name + rate - 1, ' ');
  for (const std::string& shape : r.shapes) text += right(shape.substr(0, cell - 1), cell);
  text += "\n";
  for (std::size_t i = 0; i < r.classes.size(); ++i) {
    text += left(r.classes[i], name) + right(number(100 * r.by_class[i].mean, 1) + " %", rate - 2) + " ";
    for (const std::int64_t count : r.confusion[i]) text += right(count ? std::to_string(count) : ".", cell);
    text += "\n";
  }
  return text;
}

// Percent of all pictures, and of all drawings.
std::string hues(const ShapesReport& r) {
  constexpr std::size_t name = 11;
  std::string head = left("hue, in %", name), pictures = left("images", name),
              drawings = left("drawings", name);
  const double all = static_cast<double>(r.count * r.repetitions);
  for (std::size_t i = 0; i < r.hues.size(); ++i) {
    const std::size_t width = std::max<std::size_t>(r.hues[i].size(), 4) + 2;
    head += right(r.hues[i], width);
    pictures += right(number(100 * static_cast<double>(r.hue_counts[i]) / all, 1), width);
    drawings += right(number(100 * static_cast<double>(r.drawings_hue_counts[i]) / all, 1), width);
  }
  return bold(head, 1) + "\n" + pictures + "\n" + drawings + "\n";
}

JsonObject json_of(const Spread& spread) {
  return JsonObject().add("mean", spread.mean).add("deviation", spread.deviation);
}

JsonObject json_of(const ShapesReport::Beside& beside) {
  return JsonObject()
      .add("pictures", json_of(beside.pictures))
      .add("drawings", json_of(beside.drawings))
      .add("ratio", json_of(beside.ratio));
}

std::string numbers(const std::vector<std::int64_t>& values) {
  return json_list(values, [](std::int64_t value) { return std::to_string(value); });
}

JsonObject counts(const std::vector<std::string>& names, const std::vector<std::int64_t>& values) {
  JsonObject object;
  for (std::size_t i = 0; i < names.size(); ++i) object.add(names[i], values[i]);
  return object;
}

}  // namespace

std::string report_text(const ShapesReport& report) {
  return summary(report) + "\n" + confusion(report) + "\n" + hues(report);
}

void add_report(JsonObject& object, const ShapesReport& r) {
  JsonObject by_class;
  for (std::size_t i = 0; i < r.classes.size(); ++i) by_class.add(r.classes[i], json_of(r.by_class[i]));
  std::string by_seed;
  for (const double rate : r.recognised_by_seed) by_seed += (by_seed.empty() ? "" : ", ") + number(rate, 6);
  object.add("recognised", JsonObject()
                               .add("pictures", json_of(r.recognised))
                               .add("drawings", json_of(r.drawings_recognised))
                               .raw("by_seed", "[" + by_seed + "]"));
  object.add("by_class", by_class);
  object.add("confusion", JsonObject()
                              .add("asked_for", r.classes)
                              .add("seen_as", r.shapes)
                              .raw("counts", json_list(r.confusion, numbers)));
  object.add("hues", JsonObject()
                         .add("pictures", counts(r.hues, r.hue_counts))
                         .add("drawings", counts(r.hues, r.drawings_hue_counts)));
  object.add("diversity", JsonObject()
                              .add("hue_entropy", json_of(r.hue_entropy))
                              .add("x", json_of(r.x))
                              .add("y", json_of(r.y))
                              .add("log2_radius", json_of(r.log2_radius)));
  object.add(
      "frechet",
      JsonObject().add("pictures", json_of(r.frechet)).add("drawings", json_of(r.frechet_of_drawings)));
}

}  // namespace pom::cli
