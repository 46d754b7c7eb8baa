// Private to the room: the model a run has made so far, as a folder, and a sheet of pictures from it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pom/io/image.h"
#include "pom/models/weights.h"
#include "pom/train/recipe.h"

namespace pom::train {

// config.json and model.safetensors. A reader sees the files of one save or, for a moment, a newer config
// beside the weights before it; the two differ in nothing that matters to each other.
void write_model(const std::filesystem::path& folder, const Recipe& recipe,
                 const std::vector<std::string>& classes, const models::Weights& average);

// The weights of a model folder for a network of the same shape; the size of its pictures may be another.
models::Weights first_weights(const std::filesystem::path& folder, const models::NetworkConfig& network);

// Labelled pictures of fixed seeds, of the first ten classes, with the recipe's sample settings.
io::Image sample_sheet(const std::filesystem::path& folder, const Recipe& recipe, const at::Device& device);

std::string sheet_name(std::int64_t step);  // "step_00001000.png"

}  // namespace pom::train
