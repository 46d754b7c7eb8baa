// Regions of one hue: pixels that stand out from what is behind them, are near a hue, and touch each other.
#include <algorithm>

#include "pom/eval/scene_parts.h"

namespace pom::eval::scenes {
namespace {

constexpr std::int64_t nothing = -1;  // what is behind, or an edge between two colours
constexpr float near_hue = 0.25f;     // drawings are within 0.06; the two nearest hues are 0.38 apart

std::int64_t hue_of(const Colour& colour) {
  std::int64_t best = nothing;
  float least = near_hue;
  for (std::int64_t hue = 0; hue < std::ssize(data::hue_names()); ++hue)
    if (const float d = distance(colour, data::hue_colour(hue)); d < least) least = d, best = hue;
  return best;
}

// Calls `visit` with each of the eight pixels around one, within the picture.
template <class Visit>
void around(const Picture& picture, std::int64_t pixel, Visit&& visit) {
  const std::int64_t x = pixel % picture.width, y = pixel / picture.width;
  for (std::int64_t dy = -1; dy <= 1; ++dy)
    for (std::int64_t dx = -1; dx <= 1; ++dx)
      if ((dx != 0 || dy != 0) && x + dx >= 0 && x + dx < picture.width && y + dy >= 0 &&
          y + dy < picture.height)
        visit(pixel + dy * picture.width + dx);
}

std::vector<std::int64_t> hues_of(const Picture& picture, const std::vector<bool>& asked) {
  std::vector<std::int64_t> hues(picture.pixels.size(), nothing);
  for (std::size_t p = 0; p < hues.size(); ++p)
    if (asked[p]) hues[p] = hue_of(picture.pixels[p]);
  return hues;
}

// Takes the pixels of a region out of `hues`.
Region region_from(const Picture& picture, std::vector<std::int64_t>& hues, std::int64_t first) {
  Region region{.hue = std::exchange(hues[static_cast<std::size_t>(first)], nothing), .pixels = {first}};
  for (std::size_t i = 0; i < region.pixels.size(); ++i)
    around(picture, region.pixels[i], [&](std::int64_t p) {
      std::int64_t& hue = hues[static_cast<std::size_t>(p)];
      if (hue != region.hue) return;
      hue = nothing;
      region.pixels.push_back(p);
    });
  std::ranges::sort(region.pixels);
  return region;
}

// Pixels that have only their own kind around them.
std::vector<std::int64_t> inner_pixels(const Picture& picture, const Region& region) {
  std::vector<std::int64_t> inner;
  for (const std::int64_t pixel : region.pixels) {
    bool all = true;
    const std::int64_t x = pixel % picture.width;
    for (const std::int64_t step : {std::int64_t{-1}, std::int64_t{1}, -picture.width, picture.width}) {
      const std::int64_t p = pixel + step;
      if (p < 0 || p >= picture.size() || (step == -1 && x == 0) || (step == 1 && x + 1 == picture.width))
        continue;
      all = all && std::ranges::binary_search(region.pixels, p);
    }
    if (all) inner.push_back(pixel);
  }
  return inner;
}

Colour middle_colour(const Picture& picture, const std::vector<std::int64_t>& pixels) {
  Colour colour = {};
  std::vector<float> values;
  for (std::size_t c = 0; c < 3; ++c) {
    values.clear();
    for (const std::int64_t p : pixels) values.push_back(picture.pixels[static_cast<std::size_t>(p)][c]);
    const auto middle = values.begin() + std::ssize(values) / 2;
    std::ranges::nth_element(values, middle);
    colour[c] = *middle;
  }
  return colour;
}

}  // namespace

std::int64_t least_region(const Picture& picture) {
  return std::max<std::int64_t>(6, picture.unit() * picture.unit() / 400);
}

std::vector<bool> standing_out(const Picture& picture, const std::vector<Colour>& ground) {
  std::vector<bool> out(picture.pixels.size());
  for (std::size_t p = 0; p < out.size(); ++p) out[p] = distance(picture.pixels[p], ground[p]) > apart;
  return out;
}

std::vector<bool> unexplained(const Picture& picture, const std::vector<Colour>& drawn) {
  std::vector<bool> out = standing_out(picture, drawn);
  constexpr float slack = 0.1f;  // of each channel
  for (std::size_t p = 0; p < out.size(); ++p) {
    if (!out[p]) continue;
    Colour low = drawn[p], high = drawn[p];
    around(picture, static_cast<std::int64_t>(p), [&](std::int64_t beside) {
      for (std::size_t c = 0; c < 3; ++c) {
        low[c] = std::min(low[c], drawn[static_cast<std::size_t>(beside)][c]);
        high[c] = std::max(high[c], drawn[static_cast<std::size_t>(beside)][c]);
      }
    });
    bool mixture = true;
    for (std::size_t c = 0; c < 3; ++c)
      mixture = mixture && picture.pixels[p][c] >= low[c] - slack && picture.pixels[p][c] <= high[c] + slack;
    out[p] = !mixture;
  }
  return out;
}

std::vector<Region> find_regions(const Picture& picture, const std::vector<bool>& asked, bool thin) {
  std::vector<std::int64_t> hues = hues_of(picture, asked);
  const std::int64_t least = least_region(picture);
  std::vector<Region> regions;
  for (std::int64_t p = 0; p < picture.size(); ++p) {
    if (hues[static_cast<std::size_t>(p)] == nothing) continue;
    Region region = region_from(picture, hues, p);
    const std::vector<std::int64_t> inner = inner_pixels(picture, region);
    const bool solid = 6 * inner.size() >= region.pixels.size();
    if (std::ssize(region.pixels) < least || (!solid && !thin)) continue;
    region.colour = middle_colour(picture, inner.size() >= 4 ? inner : region.pixels);
    regions.push_back(std::move(region));
  }
  std::ranges::stable_sort(regions, std::ranges::greater{}, [](const Region& r) { return r.pixels.size(); });
  return regions;
}

}  // namespace pom::eval::scenes
