// Private to the room: the uniform numbers of a scene, one after another, as many as it takes. What they are
// asked for, in which order, is part of every scene's identity.
#pragma once

#include <array>
#include <cstdint>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/streams.h"

namespace pom::data {

class SceneNumbers {
 public:
  static constexpr std::int64_t most = std::int64_t{1} << 18;
  static constexpr std::int64_t most_scenes = std::int64_t{1} << 44;

  SceneNumbers(std::uint64_t seed, std::int64_t index) : seed_(seed), first_(index * most) {}

  // In (0, 1).
  float next() {
    const auto place = static_cast<std::size_t>(used_ % std::ssize(ahead_));
    if (place == 0) refill();
    ++used_;
    return ahead_[place];
  }

 private:
  void refill() {
    check(used_ < most, "scenes: expected a scene within ", most, " random numbers; this is a bug");
    fill_uniform(ahead_.data(), std::ssize(ahead_), {seed_, noise_for::data_content, streams::scenes},
                 first_ + used_);
  }

  std::uint64_t seed_;
  std::int64_t first_, used_ = 0;
  std::array<float, 64> ahead_;
};

}  // namespace pom::data
