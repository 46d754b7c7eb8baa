#include "cli/eval/sprites_report.h"

#include <array>
#include <cstdio>

#include "cli/bench/svg.h"
#include "pom/base/error.h"

namespace pom::cli {
namespace {

using eval::Interval, eval::ScoreTable, eval::SpriteScores, eval::SpritesReport;

struct Measure {
  const char* name;
  std::int64_t SpriteScores::*hits;
};
constexpr std::array<Measure, 3> measures = {{{"shape", &SpriteScores::kinds},
                                              {"colour", &SpriteScores::hues},
                                              {"direction", &SpriteScores::directions}}};

double percent(std::int64_t hits, std::int64_t of) {
  return of > 0 ? 100 * static_cast<double>(hits) / static_cast<double>(of) : 0;
}

std::string line(const std::string& label, const std::array<std::string, 3>& cells) {
  char text[160];
  std::snprintf(text, sizeof text, "%-24s%-19s%-19s%s", label.c_str(), cells[0].c_str(), cells[1].c_str(),
                cells[2].c_str());
  return std::string(text) + "\n";
}

// The rows of one split: each length, then the drawings of all of them.
std::string rows(const std::string& split, const ScoreTable* clips, const ScoreTable& drawings,
                 const auto& scores_at, const SpriteScores& drawn) {
  std::string text;
  const ScoreTable& table = clips ? *clips : drawings;
  const bool several = table.lengths().size() > 1;
  for (std::size_t i = 0; (clips || several) && i < table.lengths().size(); ++i)
    text += score_row(i == 0 ? split : "", several ? detail::concat(table.lengths()[i], " x") : "clips",
                      scores_at(table, i));
  return text + score_row(text.empty() ? split : "", "drawings", drawn);
}

std::string table(const std::string& title, const ScoreTable* clips, const ScoreTable& drawings) {
  std::string text = score_head();
  if (!title.empty()) text = title + "\n" + text;
  for (std::size_t split = 0; split < drawings.splits().size(); ++split)
    text += rows(
        drawings.splits()[split], clips, drawings,
        [&](const ScoreTable& t, std::size_t i) { return t.at(split, i); }, drawings.over_lengths(split));
  if (drawings.splits().size() > 1)
    text += rows(
        "all", clips, drawings, [](const ScoreTable& t, std::size_t i) { return t.over_splits(i); },
        drawings.over_all());
  if (clips) text += misfit_row("misfit", "clips", clips->over_all());
  return text + misfit_row(clips ? "" : "misfit", "drawings", drawings.over_all());
}

std::vector<JsonObject> objects(const ScoreTable& table, const std::int64_t* window) {
  std::vector<JsonObject> all;
  for (std::size_t split = 0; split < table.splits().size(); ++split)
    for (std::size_t length = 0; length < table.lengths().size(); ++length) {
      const SpriteScores& scores = table.at(split, length);
      JsonObject& object = all.emplace_back();
      if (window) object.add("window", *window);
      object.add("split", table.splits()[split]).add("length", table.lengths()[length]);
      add_scores(object, scores);
    }
  return all;
}

PlotSeries series(const std::string& name, const ScoreTable& table, const Measure& measure) {
  PlotSeries made{.name = name, .points = {}};
  for (std::size_t i = 0; i < table.lengths().size(); ++i) {
    const SpriteScores scores = table.over_splits(i);
    made.points.emplace_back(static_cast<double>(table.lengths()[i]),
                             percent(scores.*measure.hits, scores.clips));
  }
  return made;
}

}  // namespace

std::string rate_text(std::int64_t hits, std::int64_t of) {
  const Interval interval = eval::wilson_interval(hits, of);
  char text[48];
  std::snprintf(text, sizeof text, "%.1f (%.1f-%.1f)", percent(hits, of), 100 * interval.low,
                100 * interval.high);
  return text;
}

std::string score_head() {
  return line("in % (95 % interval)", {"shape", "colour", "direction"});
}

std::string score_row(const std::string& name, const std::string& what, const SpriteScores& scores) {
  std::array<std::string, 3> cells;
  for (std::size_t i = 0; i < measures.size(); ++i)
    cells[i] = rate_text(scores.*measures[i].hits, scores.clips);
  char label[64];
  std::snprintf(label, sizeof label, "%-14s%s", name.c_str(), what.c_str());
  return line(label, cells);
}

std::string misfit_row(const std::string& name, const std::string& what, const SpriteScores& scores) {
  char text[160];
  std::snprintf(text, sizeof text, "%-14s%-10smean %.4f, worst %.4f; %lld of %lld fit no shape\n",
                name.c_str(), what.c_str(), scores.mean_misfit(), scores.worst_misfit,
                static_cast<long long>(scores.clips - scores.fitting), static_cast<long long>(scores.clips));
  return text;
}

void add_rate(JsonObject& object, const char* name, std::int64_t hits, std::int64_t of) {
  const Interval interval = eval::wilson_interval(hits, of);
  object.add(name, JsonObject()
                       .add("right", hits)
                       .add("rate", percent(hits, of) / 100)
                       .add("low", interval.low)
                       .add("high", interval.high));
}

void add_scores(JsonObject& object, const SpriteScores& scores) {
  object.add("count", scores.clips);
  for (const Measure& measure : measures) add_rate(object, measure.name, scores.*measure.hits, scores.clips);
  add_rate(object, "shape_and_colour", scores.kinds_and_hues, scores.clips);
  object.add("misfit", JsonObject()
                           .add("mean", scores.mean_misfit())
                           .add("worst", scores.worst_misfit)
                           .add("most_allowed", eval::worst_fit)
                           .add("of_no_shape", scores.found - scores.fitting)
                           .add("nothing_found", scores.clips - scores.found));
}

std::string window_text(std::int64_t window) {
  return window == 0 ? "no window" : detail::concat("window of ", window, window == 1 ? " block" : " blocks");
}

std::string sprites_text(const SpritesReport& report) {
  if (report.windows.empty()) return table("", nullptr, report.drawings);
  std::string text;
  const bool several = report.windows.size() > 1;
  for (const SpritesReport::OfWindow& of : report.windows) {
    if (!text.empty()) text += "\n";
    text += table(several ? window_text(of.window) : std::string(), &of.clips, report.drawings);
  }
  return text;
}

void add_sprites(JsonObject& object, const SpritesReport& report) {
  object.add("drawings", objects(report.drawings, nullptr));
  if (report.windows.empty()) return;
  std::vector<JsonObject> all;
  for (const SpritesReport::OfWindow& of : report.windows)
    for (JsonObject& one : objects(of.clips, &of.window)) all.push_back(std::move(one));
  object.add("clips", all);
}

std::string sprites_curve(const SpritesReport& report, const std::string& subtitle) {
  Plot plot{.title = "What a stream still shows",
            .subtitle = subtitle,
            .x_label = "length of the stream, in clips",
            .panels = {},
            .percent = true};
  for (const Measure& measure : measures) {
    PlotPanel& panel = plot.panels.emplace_back();
    panel.title = detail::concat(measure.name, " as in the caption, %");
    panel.series.push_back(series("drawings", report.drawings, measure));
    for (const SpritesReport::OfWindow& of : report.windows)
      panel.series.push_back(
          series(of.window == 0 ? "no window" : detail::concat("window ", of.window), of.clips, measure));
  }
  return plot_svg(plot);
}

}  // namespace pom::cli
