// What a network is told of a time, as its config says.
#pragma once

#include "pom/models/config.h"
#include "pom/nn/embeddings.h"

namespace pom::models {

// The official DiT counts its steps from 0 and has a period of 10000; SiT is told the time itself, which runs
// the other way there.
inline nn::TimeFeatures time_features_of(const NetworkConfig& config) {
  nn::TimeFeatures features{.count = config.time_inputs()};
  if (config.time_features > 0) features.period = 10000;
  if (config.time_input == "1000t-1") features.shift = -1;
  if (config.time_input == "1-t") features.scale = -1, features.shift = 1;
  return features;
}

}  // namespace pom::models
