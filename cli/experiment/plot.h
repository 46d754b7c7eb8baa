// Every run as a dot, means with their intervals, and drawings as a broken line, as SVG: a panel for each of
// the first metrics.
#pragma once

#include <string>

#include "cli/experiment/analysis.h"

namespace pom::cli::experiment {

std::string results_svg(const Plan& plan, const Results& results);

}  // namespace pom::cli::experiment
