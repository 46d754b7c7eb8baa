// What `pom eval` found, for people and for programs.
#pragma once

#include <string>

#include "cli/json.h"
#include "pom/eval/shapes_report.h"

namespace pom::cli {

// Tables of at most 80 columns, as long as there are no more than twelve shapes.
std::string report_text(const eval::ShapesReport& report);

// Adds "recognised", "by_class", "confusion", "hues", "diversity" and "frechet".
void add_report(JsonObject& object, const eval::ShapesReport& report);

}  // namespace pom::cli
