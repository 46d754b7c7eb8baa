// The features of many pictures, with bits that depend on the pictures and their places alone: pictures go
// through the network in blocks of fixed places, whoever asks for them.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "pom/eval/inception.h"
#include "pom/eval/inception_input.h"

namespace pom::eval {

inline constexpr std::int64_t feature_block = 32;

// (3, H, W) uint8 of the picture with this number.
using PictureAt = std::function<at::Tensor(std::int64_t)>;
// Hears how many are done, and may throw.
using FeaturesDone = std::function<void(std::int64_t)>;

// Of pictures 0 … count - 1: rows on the CPU, in their order.
InceptionFeatures features_of(const Inception& network, InputRule rule, const InceptionWanted& wanted,
                              std::int64_t count, const PictureAt& picture, const FeaturesDone& done = {});

}  // namespace pom::eval
