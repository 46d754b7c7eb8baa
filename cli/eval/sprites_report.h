// What `pom eval sprites` found, for people, for programs, and as a curve.
#pragma once

#include <string>

#include "cli/json.h"
#include "pom/eval/sprites_report.h"

namespace pom::cli {

std::string rate_text(std::int64_t hits, std::int64_t of);  // "97.2 (95.4-98.3)", in %
// The lines of a table of rates: its head, "training      clips     97.2 (95.4-98.3) …", and
// "misfit        clips     mean 0.0123, worst 0.2101; 3 of 2000 fit no shape".
std::string score_head();
std::string score_row(const std::string& name, const std::string& what, const eval::SpriteScores& scores);
std::string misfit_row(const std::string& name, const std::string& what, const eval::SpriteScores& scores);
// The same for programs.
void add_rate(JsonObject& object, const char* name, std::int64_t hits, std::int64_t of);
void add_scores(JsonObject& object, const eval::SpriteScores& scores);

std::string window_text(std::int64_t window);  // "window of 4 blocks", "no window"

// Tables of at most 80 columns, one for each window.
std::string sprites_text(const eval::SpritesReport& report);

// Adds "drawings" and "clips": a list of what was found for each split and length (and window).
void add_sprites(JsonObject& object, const eval::SpritesReport& report);

// Rates over all splits against the length.
std::string sprites_curve(const eval::SpritesReport& report, const std::string& subtitle);

}  // namespace pom::cli
