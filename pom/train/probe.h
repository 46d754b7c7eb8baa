// A few steps that are timed, and thrown away: for forecasts.
#pragma once

#include "pom/data/loader.h"
#include "pom/train/recipe.h"
#include "pom/train/step_model.h"

namespace pom::train {

data::LoaderOptions probe_loader(const Recipe& recipe, const at::Device& device);

// Seconds of a step of a complete recipe, from about `seconds` of them.
double measured_step(const Recipe& recipe, const data::Split& data, const at::Device& device, double seconds);

// The processor of this machine, for plans: the recipe's network with a third and with two thirds of its
// blocks is trained for some seconds each, in turns; what a block takes is then known. Where `step_seconds`
// is given, only the speed of memory is measured.
Processor this_processor(const Recipe& recipe, double step_seconds);

}  // namespace pom::train
