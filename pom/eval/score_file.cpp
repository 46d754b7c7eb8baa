#include "pom/eval/score_file.h"

#include <cmath>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::eval {

ScoreFile read_score(const std::filesystem::path& path) {
  return parse_score(io::read_json_text(path), path.string());
}

ScoreFile parse_score(const std::string& text, const std::string& site) {
  ScoreFile score;
  const std::set<std::string> given = io::read_json(text, score, site);
  check(given.contains("recipe"), site, ": expected a score that pom eval fid wrote, with its recipe");
  return score;
}

std::string score_text(ScoreFile score) {
  return io::write_json(bind_fields(score), io::JsonStyle::pages);
}

std::vector<std::string> recipe_differences(ScoreRecipe a, ScoreRecipe b) {
  std::vector<std::string> mine, names, differ;
  const auto text = [](const auto& value) { return detail::concat(value); };
  a.fields([&](const Field& field, auto& value) {
    names.emplace_back(field.name);
    mine.push_back(text(value));
  });
  std::size_t i = 0;
  b.fields([&](const Field&, auto& value) {
    if (text(value) != mine[i]) differ.push_back(names[i] + ": " + mine[i] + ", " + text(value));
    ++i;
  });
  return differ;
}

ScoreComparison compare_scores(const ScoreFile& a, const ScoreFile& b) {
  const std::vector<std::string> differ = recipe_differences(a.recipe, b.recipe);
  check(differ.empty(), "compare: expected scores of one recipe, got ", differ.size(),
        " fields that differ, first ", differ.empty() ? "" : differ.front());
  for (const ScoreFile* score : {&a, &b})
    check(score->distance() && score->distance_deviation(), "compare: ", score->source,
          ": expected a distance and its deviation, got none (fewer than 20 pictures, or statistics)");
  constexpr double normal_95 = 1.959963984540054;
  const double half = normal_95 * std::hypot(*a.distance_deviation(), *b.distance_deviation());
  const double difference = *b.distance() - *a.distance();
  return {difference, difference - half, difference + half};
}

}  // namespace pom::eval
