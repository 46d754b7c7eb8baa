// What this build has and has not: `pom --version`, and the lines of `pom doctor` about it.
#pragma once

#include <string>
#include <vector>

#include "cli/checks.h"

namespace pom::cli {

// The line of pom/base/build_info.h, and a line for each part.
std::string version_text();

// The parts that check_machine does not look into itself: clips, data sets, training, CUDA kernels.
std::vector<Check> check_parts();

}  // namespace pom::cli
