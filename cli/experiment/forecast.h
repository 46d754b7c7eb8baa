// What an experiment takes: sizes of its arms, pictures to be seen, and minutes on one H200 by the model of
// `pom plan`. Nothing runs.
#pragma once

#include <string>

#include "cli/experiment/plan.h"

namespace pom::cli::experiment {

// "25 trainings, 9.6 M examples, about 18 minutes of an H200, and 25,000 samples".
std::string forecast_text(const Plan& plan);

int print_forecast(const Plan& plan, bool json);

}  // namespace pom::cli::experiment
