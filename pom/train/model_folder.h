// Private to the room: the model a run has made so far, as a folder, and a sheet of pictures from it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pom/io/image.h"
#include "pom/models/weights.h"
#include "pom/train/recipe.h"

namespace pom::train {

// config.json and model.safetensors, and of clips text_encoder/ with these words. The folder is replaced as
// one (io::FolderSwap): a reader sees all files of this save or all of the one before.
void write_model(const std::filesystem::path& folder, const Recipe& recipe,
                 const std::vector<std::string>& classes, const models::Weights& average,
                 const std::string& words = {});

// The weights of a model folder for a network of the same shape; the size of its pictures may be another.
struct FirstWeights {
  models::Weights weights;
  std::string words;  // of the text encoder, where there is one
};
FirstWeights first_weights(const std::filesystem::path& folder, const Recipe& recipe);

// Labelled pictures of fixed seeds, of the first ten classes, with the recipe's sample settings.
io::Image sample_sheet(const std::filesystem::path& folder, const Recipe& recipe, const at::Device& device);

std::string sheet_name(std::int64_t step);  // "step_00001000.png"

}  // namespace pom::train
