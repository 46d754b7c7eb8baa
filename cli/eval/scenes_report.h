// What `pom eval scenes` found, for people and for programs.
#pragma once

#include <optional>
#include <string>

#include "cli/json.h"
#include "pom/eval/scene_reader.h"
#include "pom/eval/scenes_report.h"

namespace pom::cli {

// Of the network judge, where there is one.
struct NetworkFindings {
  eval::ReaderRates rates;                         // on drawings it never saw
  std::optional<double> of_pictures, of_drawings;  // Frechet distances to other drawings
};

struct ScenesFindings {
  eval::SceneTable drawings;                 // of the same scenes: the best that can be had
  std::optional<eval::SceneTable> pictures;  // none where no model was asked
  std::optional<NetworkFindings> network = {};
};

// A table of at most 80 columns.
std::string scenes_text(const ScenesFindings& findings);

// Adds "drawings" and "pictures": a list of what was found for each split.
void add_scenes(JsonObject& object, const ScenesFindings& findings);

}  // namespace pom::cli
