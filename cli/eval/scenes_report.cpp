#include "cli/eval/scenes_report.h"

#include <array>
#include <cstdio>

#include "pom/base/error.h"

namespace pom::cli {
namespace {

using eval::Interval, eval::SceneScores, eval::SceneTable;

struct SceneMeasure {
  const char* name;
  std::int64_t SceneScores::*hits;
  std::int64_t SceneScores::*of = &SceneScores::pictures;
};
constexpr std::array<SceneMeasure, 6> scene_measures = {
    {{"objects", &SceneScores::objects},
     {"colours", &SceneScores::colours},
     {"pairs", &SceneScores::pairs},
     {"relations", &SceneScores::relations, &SceneScores::relations_asked},
     {"count", &SceneScores::counts},
     {"everything", &SceneScores::everything}}};
using Cells = std::array<std::string, scene_measures.size()>;

double percent_of(std::int64_t hits, std::int64_t of) {
  return of > 0 ? 100 * static_cast<double>(hits) / static_cast<double>(of) : 0;
}

// "95.4-98.3"
std::string interval_text(std::int64_t hits, std::int64_t of) {
  const Interval interval = eval::wilson_interval(hits, of);
  char text[48];
  std::snprintf(text, sizeof text, "%.1f-%.1f", 100 * interval.low, 100 * interval.high);
  return text;
}

std::string scene_line(const std::string& label, const Cells& cells) {
  constexpr int label_width = 15, cell_width = 11;
  char text[160];
  std::snprintf(text, sizeof text, "%-*s", label_width, label.c_str());
  std::string line = text;
  for (const std::string& cell : cells) {
    std::snprintf(text, sizeof text, "%-*s", cell_width, cell.c_str());
    line += text;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// The rates, and their intervals under them.
std::string scene_rows(const std::string& label, const std::string& below, const SceneScores& scores) {
  Cells rates, intervals;
  for (std::size_t i = 0; i < scene_measures.size(); ++i) {
    const std::int64_t hits = scores.*scene_measures[i].hits, of = scores.*scene_measures[i].of;
    char text[16];
    std::snprintf(text, sizeof text, "%.1f", percent_of(hits, of));
    rates[i] = text;
    intervals[i] = interval_text(hits, of);
  }
  return scene_line(label, rates) + scene_line(below, intervals);
}

std::string split_rows(const std::string& split, const SceneScores* pictures, const SceneScores& drawings) {
  if (pictures == nullptr) return scene_rows(split, "", drawings);
  return scene_rows(split, "", *pictures) + scene_rows("  drawings", "", drawings);
}

// "pictures   12 of 500 (1.4-4.1 %), 30 of 1800 objects", and the misfits and residues under it.
std::string rest_row(const std::string& name, const SceneScores& scores) {
  const std::int64_t misfits = scores.pictures - scores.fitting;
  char text[200];
  std::snprintf(text, sizeof text, "  %-13s%lld of %lld (%s %%), %lld of %lld objects\n", name.c_str(),
                static_cast<long long>(misfits), static_cast<long long>(scores.pictures),
                interval_text(misfits, scores.pictures).c_str(), static_cast<long long>(scores.blobs),
                static_cast<long long>(scores.found));
  std::string rows = text;
  const auto spread = [&](const char* what, double mean, double worst) {
    std::snprintf(text, sizeof text, "%15s%-9smean %.4f, worst %.4f\n", "", what, mean, worst);
    rows += text;
  };
  if (scores.found > 0) spread("misfit", scores.mean_misfit(), scores.worst_misfit);
  spread("residue", scores.mean_residue(), scores.worst_residue);
  return rows;
}

std::string share_row(const std::string& name, std::int64_t hits, std::int64_t of) {
  char text[160];
  std::snprintf(text, sizeof text, "  %-13s%.1f %% of %lld (%s)\n", name.c_str(), percent_of(hits, of),
                static_cast<long long>(of), interval_text(hits, of).c_str());
  return text;
}

template <class Row>
std::string both_rows(const ScenesFindings& findings, Row row) {
  std::string text;
  if (findings.pictures) text += row("pictures", findings.pictures->over_all());
  return text + row("drawings", findings.drawings.over_all());
}

std::string network_text(const ScenesFindings& findings) {
  const NetworkFindings& network = *findings.network;
  std::string text =
      "read alike by the network\n" + both_rows(findings, [](const char* name, const SceneScores& s) {
        return share_row(name, s.read_alike, s.read_twice);
      });
  char line[160];
  std::snprintf(line, sizeof line,
                "of drawings it never saw, it has all objects of %.1f %% right (shapes %.1f, hues %.1f)\n",
                100 * network.rates.everything, 100 * network.rates.objects, 100 * network.rates.colours);
  text += line;
  const auto distance = [&](const char* name, const std::optional<double>& value) {
    if (!value) return;
    std::snprintf(line, sizeof line, "  %-13s%.3f\n", name, *value);
    text += line;
  };
  if (network.of_drawings) text += "Frechet distance of its features to those of other drawings\n";
  distance("pictures", network.of_pictures);
  distance("drawings", network.of_drawings);
  return text;
}

std::string footnotes(const ScenesFindings& findings) {
  std::string text = "pictures with something that fits no shape\n" + both_rows(findings, rest_row);
  if (findings.drawings.over_all().grounds_asked > 0)
    text += "ground as named\n" + both_rows(findings, [](const char* name, const SceneScores& s) {
              return share_row(name, s.grounds, s.grounds_asked);
            });
  if (findings.network) text += network_text(findings);
  return text;
}

JsonObject rate_json(std::int64_t hits, std::int64_t of) {
  const Interval interval = eval::wilson_interval(hits, of);
  return JsonObject()
      .add("right", hits)
      .add("rate", percent_of(hits, of) / 100)
      .add("low", interval.low)
      .add("high", interval.high);
}

JsonObject scores_json(const std::string& split, const SceneScores& scores) {
  JsonObject object;
  object.add("split", split).add("count", scores.pictures);
  for (const SceneMeasure& measure : scene_measures)
    object.add(std::string_view(measure.name) == "count" ? "counted" : measure.name,
               rate_json(scores.*measure.hits, scores.*measure.of).add("of", scores.*measure.of));
  object.add("ground", rate_json(scores.grounds, scores.grounds_asked).add("asked", scores.grounds_asked));
  object.add("fits", rate_json(scores.fitting, scores.pictures));
  object.add("misfit", JsonObject()
                           .add("objects", scores.found)
                           .add("of_no_shape", scores.blobs)
                           .add("mean", scores.mean_misfit())
                           .add("worst", scores.worst_misfit)
                           .add("most_allowed", eval::worst_scene_fit));
  object.add("residue", JsonObject()
                            .add("mean", scores.mean_residue())
                            .add("worst", scores.worst_residue)
                            .add("most_allowed", eval::most_residue));
  if (scores.read_twice > 0) object.add("read_alike", rate_json(scores.read_alike, scores.read_twice));
  return object;
}

std::vector<JsonObject> split_objects(const SceneTable& table) {
  std::vector<JsonObject> all;
  for (std::size_t i = 0; i < table.splits().size(); ++i)
    all.push_back(scores_json(table.splits()[i], table.at(i)));
  return all;
}

}  // namespace

std::string scenes_text(const ScenesFindings& findings) {
  const SceneTable& drawings = findings.drawings;
  const SceneTable* pictures = findings.pictures ? &*findings.pictures : nullptr;
  Cells names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = scene_measures[i].name;
  std::string text = scene_line("in % (95 %)", names);
  for (std::size_t i = 0; i < drawings.splits().size(); ++i)
    text += split_rows(drawings.splits()[i], pictures ? &pictures->at(i) : nullptr, drawings.at(i));
  if (drawings.splits().size() > 1) {
    const SceneScores of_pictures = pictures ? pictures->over_all() : SceneScores();
    text += split_rows("all", pictures ? &of_pictures : nullptr, drawings.over_all());
  }
  return text + footnotes(findings);
}

void add_scenes(JsonObject& object, const ScenesFindings& findings) {
  object.add("drawings", split_objects(findings.drawings));
  if (findings.pictures) object.add("pictures", split_objects(*findings.pictures));
  if (!findings.network) return;
  const NetworkFindings& network = *findings.network;
  JsonObject frechet;
  if (network.of_pictures) frechet.add("pictures", *network.of_pictures);
  if (network.of_drawings) frechet.add("drawings", *network.of_drawings);
  object.add("network", JsonObject()
                            .add("objects", network.rates.objects)
                            .add("colours", network.rates.colours)
                            .add("everything", network.rates.everything)
                            .add("frechet", frechet));
}

}  // namespace pom::cli
