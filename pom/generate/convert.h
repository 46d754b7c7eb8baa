// Model folders of networks that others have trained, and back: what pom/models/convert.h makes of the
// weights, with the diffusion, the codec and the settings for sampling that belong to them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pom/generate/folder.h"
#include "pom/models/convert.h"

namespace pom::generate {

struct ConvertOptions {
  models::Origin origin = models::Origin::homm;
  models::WeightCopy copy = models::WeightCopy::best;
  // "network.order=3": fields of config.json, which win over what the file's shapes and the origin say. A
  // value is JSON, or a bare word where the field is a text.
  std::vector<std::string> set = {};
};

struct ConvertedModel {
  ModelConfig config;
  models::Weights weights;   // as stored
  std::string copy, prefix;  // models::Imported
  std::int64_t grid = 0;
  std::vector<std::string> notes;  // what a person should know: each a line
};

// Throws pom::Error for a file that is not what it is said to be, and for fields that make no sense.
ConvertedModel convert_model(const std::filesystem::path& source, const ConvertOptions& options);

// config.json and model.safetensors, in the place of those that are there, at once; other files stay.
void write_converted(const std::filesystem::path& folder, const ConvertedModel& model);

// The weights of a model folder under the names of the other's code.
models::Weights weights_for(const std::filesystem::path& folder, models::Origin origin);

struct ConversionCheck {
  std::int64_t tensors = 0;  // that went there and back, and are the same bit for bit
  double difference = 0;     // between the network as it is trained and as it samples, of the largest value
};

// Reads the folder again: its weights under the other's names must be those of the source, bit for bit; and
// an evaluation of the network on noise must be finite, and the same (to rounding) by the two ways that this
// library has of computing it. The other's code is not run. Throws pom::Error where something is wrong.
ConversionCheck check_converted(const std::filesystem::path& source, const std::filesystem::path& folder,
                                const ConvertedModel& model, models::Origin origin);

}  // namespace pom::generate
