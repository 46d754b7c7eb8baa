// The ground of a scene: a slope of colour through what is near none of the hues.
#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/eval/scene_parts.h"

namespace pom::eval::scenes {
namespace {

using Slope = std::array<double, 3>;  // a + b·x + c·y, x and y from -1 to 1

struct Place {
  double x, y;
};

Place place_of(const Picture& picture, std::int64_t pixel) {
  return {2.0 * static_cast<double>(pixel % picture.width) / static_cast<double>(picture.width) - 1,
          2.0 * static_cast<double>(pixel / picture.width) / static_cast<double>(picture.height) - 1};
}

float nearest_hue_distance(const Colour& colour) {
  float least = 9;
  for (std::int64_t hue = 0; hue < std::ssize(data::hue_names()); ++hue)
    least = std::min(least, distance(colour, data::hue_colour(hue)));
  return least;
}

// The colour around which most pixels lie: that of the ground, wherever no hue is near.
Colour most_common(const Picture& picture, const std::vector<float>& likely) {
  constexpr int levels = 8;
  std::vector<double> counts(levels * levels * levels);
  const auto cell_of = [](const Colour& colour) {
    std::size_t cell = 0;
    for (const float c : colour)
      cell = cell * levels + static_cast<std::size_t>(std::min(levels - 1, static_cast<int>(c * levels)));
    return cell;
  };
  for (std::size_t p = 0; p < picture.pixels.size(); ++p)
    counts[cell_of(picture.pixels[p])] += static_cast<double>(likely[p]);
  const auto most = static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin());
  Colour mean = {};
  double sum = 0;
  for (std::size_t p = 0; p < picture.pixels.size(); ++p) {
    if (cell_of(picture.pixels[p]) != most) continue;
    sum += static_cast<double>(likely[p]);
    for (std::size_t c = 0; c < 3; ++c) mean[c] += likely[p] * picture.pixels[p][c];
  }
  for (float& c : mean) c /= static_cast<float>(std::max(sum, 1e-6));
  return mean;
}

// Weighted least squares for all three channels, by elimination.
std::array<Slope, 3> slopes_of(const Picture& picture, const std::vector<float>& weights) {
  double m[3][6] = {};
  for (std::int64_t p = 0; p < picture.size(); ++p) {
    const auto i = static_cast<std::size_t>(p);
    const Place place = place_of(picture, p);
    const double basis[3] = {1, place.x, place.y}, weight = static_cast<double>(weights[i]);
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) m[r][c] += weight * basis[r] * basis[c];
      for (int c = 0; c < 3; ++c)
        m[r][3 + c] +=
            weight * basis[r] * static_cast<double>(picture.pixels[i][static_cast<std::size_t>(c)]);
    }
  }
  for (int r = 0; r < 3; ++r) m[r][r] += 1e-6;
  for (int k = 0; k < 3; ++k)
    for (int r = 0; r < 3; ++r)
      if (r != k) {
        const double factor = m[r][k] / m[k][k];
        for (int c = k; c < 6; ++c) m[r][c] -= factor * m[k][c];
      }
  std::array<Slope, 3> slopes;
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t r = 0; r < 3; ++r) slopes[c][r] = m[r][3 + c] / m[r][r];
  return slopes;
}

}  // namespace

float distance(const Colour& a, const Colour& b) {
  float squares = 0;
  for (std::size_t c = 0; c < 3; ++c) squares += (a[c] - b[c]) * (a[c] - b[c]);
  return std::sqrt(squares);
}

Picture open_picture(const at::Tensor& tensor) {
  check(tensor.dim() == 3 && tensor.scalar_type() == at::kByte && tensor.size(0) == 3 &&
            tensor.size(1) >= 16 && tensor.size(2) >= 16,
        "judge_scene: picture: expected uint8 (3, H, W) of at least 16x16, got ", tensor.scalar_type(), " ",
        tensor.sizes());
  const at::Tensor bytes = tensor.contiguous();
  Picture picture{tensor.size(2), tensor.size(1), {}};
  const auto* data = bytes.const_data_ptr<std::uint8_t>();
  picture.pixels.resize(static_cast<std::size_t>(picture.size()));
  for (std::int64_t p = 0; p < picture.size(); ++p)
    for (std::int64_t c = 0; c < 3; ++c)
      picture.pixels[static_cast<std::size_t>(p)][static_cast<std::size_t>(c)] =
          static_cast<float>(data[c * picture.size() + p]) / 255;
  return picture;
}

std::vector<Colour> find_ground(const Picture& picture) {
  std::vector<float> likely(picture.pixels.size()), weights(picture.pixels.size());
  for (std::size_t p = 0; p < likely.size(); ++p)
    likely[p] = nearest_hue_distance(picture.pixels[p]) < 0.25f ? 0.05f : 1.0f;
  std::vector<Colour> ground(picture.pixels.size(), most_common(picture, likely));
  constexpr int rounds = 6;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t p = 0; p < ground.size(); ++p) {
      const float d = distance(picture.pixels[p], ground[p]) / 0.08f, w = 1 / (1 + d * d);
      weights[p] = w * w * likely[p];  // what is far away counts for nothing
    }
    const std::array<Slope, 3> slopes = slopes_of(picture, weights);
    for (std::size_t p = 0; p < ground.size(); ++p) {
      const Place place = place_of(picture, static_cast<std::int64_t>(p));
      for (std::size_t c = 0; c < 3; ++c)
        ground[p][c] = static_cast<float>(slopes[c][0] + slopes[c][1] * place.x + slopes[c][2] * place.y);
    }
  }
  return ground;
}

}  // namespace pom::eval::scenes
