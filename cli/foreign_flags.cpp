#include "cli/foreign_flags.h"

#include <array>
#include <utility>

namespace pom::cli {

std::string_view foreign_flag(std::string_view flag) {
  using Pair = std::pair<std::string_view, std::string_view>;
  static constexpr std::array answers = {
      Pair{"--guidance-scale", "use --cfg-scale"},
      Pair{"--cfg", "use --cfg-scale"},
      Pair{"--num-inference-steps", "use --steps"},
      Pair{"--timesteps", "use --steps, and --shift for where they lie"},
      Pair{"--sigmas", "use --steps, and --shift for where they lie"},
      Pair{"--scheduler", "use --sampler"},
      Pair{"--num-images-per-prompt", "use --count"},
      Pair{"--num-videos-per-prompt", "use --count"},
      Pair{"--num-images", "use --count"},
      Pair{"--batch-size", "use --count for how many are made, --batch for how many at a time"},
      Pair{"--num-frames", "use --frames"},
      Pair{"--image", "use --init"},
      Pair{"--init-image", "use --init"},
      Pair{"--video", "use --init"},
      Pair{"--latents", "use --init-latents"},
      Pair{"--generator", "use --seed"},
      Pair{"--class-label", "use --class"},
      Pair{"--class-labels", "use --class"},
      Pair{"--torch-dtype", "use --dtype"},
      Pair{"--precision", "use --dtype"},
  };
  for (const auto& [theirs, ours] : answers)
    if (theirs == flag) return ours;
  return {};
}

}  // namespace pom::cli
