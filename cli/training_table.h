// The memory of training on several GPUs, for pom info.
#pragma once

#include <cstdint>
#include <string>

#include "cli/cost.h"
#include "cli/json.h"

namespace pom::cli {

// Of a network that is trained with `batch` images at a time on each of `gpus` GPUs; by what they divide.
void print_training_table(const Cost& cost, std::int64_t batch, std::int64_t gpus);
JsonObject training_table_json(const Cost& cost, std::int64_t batch, std::int64_t gpus);

// pom info RECIPE.toml: the network, and the memory of training by the recipe.
int recipe_info(const std::string& path, std::int64_t gpus, bool json);

}  // namespace pom::cli
