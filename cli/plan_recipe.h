// A recipe that is only counted.
#pragma once

#include <string>
#include <vector>

#include "pom/train/recipe.h"

namespace pom::cli {

// Its data need not be there, nor be named. What is wrong with it is an error of usage.
train::Recipe recipe_to_plan(const std::string& path, const std::vector<std::string>& sets = {});

}  // namespace pom::cli
