// The features of many pictures, with bits that depend on the pictures and their places alone: pictures go
// through the network in blocks of fixed places, whoever asks for them and in whatever order they come.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/feature_network.h"
#include "pom/parallel/share.h"

namespace pom::eval {

inline constexpr std::int64_t feature_block = 32;

// Takes pictures as they are made, and keeps no more of them than blocks that are not whole yet.
class FeatureRows {
 public:
  // Of the pictures of `share`, which begins with a block and ends with one, or with the last of `count`.
  // The network has to outlive it.
  FeatureRows(const FeatureNetwork& network, std::int64_t count, const parallel::Share& share);

  // (3, H, W) uint8 of the picture with this number, each once.
  void add(std::int64_t number, const at::Tensor& picture);
  std::int64_t done() const { return done_; }  // pictures that have features
  // Rows on the CPU in the order of numbers, of this share alone; every picture has to be there.
  PictureFeatures rows() const;

 private:
  std::int64_t block_count(std::int64_t block) const;

  const FeatureNetwork& network_;
  std::int64_t count_;
  parallel::Share share_;
  std::map<std::int64_t, std::map<std::int64_t, at::Tensor>> waiting_;  // by block, then number
  std::map<std::int64_t, PictureFeatures> made_;                        // by block
  std::int64_t done_ = 0;
};

// The share of one of `parts` that work on `count` pictures: whole blocks.
parallel::Share feature_share(std::int64_t count, std::int64_t parts, std::int64_t part);

// (3, H, W) uint8 of the picture with this number; asked from several threads.
using PictureAt = std::function<at::Tensor(std::int64_t)>;
// Hears how many are done, and may throw.
using FeaturesDone = std::function<void(std::int64_t)>;

// Of pictures that are there, those of `share`.
PictureFeatures features_of(const FeatureNetwork& network, std::int64_t count, const parallel::Share& share,
                            const PictureAt& picture, const FeaturesDone& done = {});

}  // namespace pom::eval
