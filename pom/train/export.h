// A checkpoint as a model folder, ready to sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace pom::train {

enum class ExportedWeights { ema, raw };

struct Exported {
  std::int64_t step = 0;
  bool class_names = true;  // false: nobody knows the names of the classes any more, and they have numbers
};

// Writes the model of a checkpoint file into a folder, which must not be there or be empty. Names of classes
// are those of the data set, or of the model/ of the checkpoint's run.
Exported export_model(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                      ExportedWeights weights = ExportedWeights::ema);

// SHA-256 of names of classes, as checkpoints have it.
std::string hash_of_classes(const std::vector<std::string>& names);

}  // namespace pom::train
