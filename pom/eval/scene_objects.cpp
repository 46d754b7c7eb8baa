// From regions to objects: shapes are fitted to each, alone or, where something that is in front may have cut
// one into parts, together.
#include <algorithm>

#include "pom/eval/scene_parts.h"

namespace pom::eval::scenes {
namespace {

constexpr float unseen = 0.02f;  // the weight of what may be hidden: rather less of it than more
constexpr double whole = 0.03;   // the largest misfit of parts that are taken for one thing
constexpr std::int64_t none = -1;

// Which region a pixel belongs to; or which one's edge it may be.
std::vector<std::int64_t> owners_of(const Picture& picture, const std::vector<Region>& regions) {
  std::vector<std::int64_t> owners(picture.pixels.size(), none);
  for (std::size_t i = 0; i < regions.size(); ++i)
    for (const std::int64_t p : regions[i].pixels)
      owners[static_cast<std::size_t>(p)] = static_cast<std::int64_t>(i);
  return owners;
}

// The regions within `reach` pixels of a pixel.
template <class Visit>
void owners_near(const Picture& picture, const std::vector<std::int64_t>& owners, std::int64_t pixel,
                 std::int64_t reach, Visit&& visit) {
  const std::int64_t x = pixel % picture.width, y = pixel / picture.width;
  for (std::int64_t v = std::max<std::int64_t>(y - reach, 0); v <= std::min(y + reach, picture.height - 1);
       ++v)
    for (std::int64_t u = std::max<std::int64_t>(x - reach, 0); u <= std::min(x + reach, picture.width - 1);
         ++u)
      if (const std::int64_t owner = owners[static_cast<std::size_t>(v * picture.width + u)]; owner != none)
        visit(owner);
}

class Finder {
 public:
  Finder(const Picture& picture, const std::vector<Colour>& behind, const std::vector<Region>& regions)
      : picture_(picture), behind_(behind), regions_(regions), owners_(owners_of(picture, regions)) {}

  // Of one region, or of several together.
  Layer layer_of(const std::vector<std::size_t>& parts) const {
    Layer layer;
    layer.region = regions_[parts.front()];
    for (std::size_t i = 1; i < parts.size(); ++i)
      layer.region.pixels.insert(layer.region.pixels.end(), regions_[parts[i]].pixels.begin(),
                                 regions_[parts[i]].pixels.end());
    layer.hue = layer.region.hue;
    layer.colour = layer.region.colour;
    const Target target = target_of(layer, parts);
    double seen = 0;
    for (std::size_t i = 0; i < target.cover.size(); ++i)
      seen += static_cast<double>(target.cover[i] * target.weight[i]);
    for (const bool thorough : {false, true}) {
      layer.fits = fit_kinds(picture_, target, most_fits, thorough);
      layer.misfit = layer.fits.empty() ? 1 : layer.fits.front().error / std::max(seen, 1.0);
      if (layer.fits.empty() || layer.misfit <= whole || parts.size() == 1) break;
    }
    return layer;
  }

  // Whether something else of another hue touches both.
  bool may_be_one(std::size_t a, std::size_t b) const {
    if (regions_[a].hue != regions_[b].hue) return false;
    const std::vector<bool> of_a = touched_by(a), of_b = touched_by(b);
    for (std::size_t i = 0; i < regions_.size(); ++i)
      if (of_a[i] && of_b[i] && regions_[i].hue != regions_[a].hue) return true;
    return false;
  }

 private:
  std::vector<bool> touched_by(std::size_t region) const {
    std::vector<bool> touched(regions_.size());
    for (const std::int64_t p : regions_[region].pixels)
      owners_near(picture_, owners_, p, 2,
                  [&](std::int64_t owner) { touched[static_cast<std::size_t>(owner)] = true; });
    return touched;
  }

  Target target_of(const Layer& layer, const std::vector<std::size_t>& parts) const {
    const data::PixelBox tight = box_around(picture_, layer.region.pixels, 0);
    Target target{
        box_around(picture_, layer.region.pixels, 3 + std::max(tight.width, tight.height) / 2), {}, {}};
    for (std::int64_t y = 0; y < target.box.height; ++y)
      for (std::int64_t x = 0; x < target.box.width; ++x) {
        const std::int64_t p = (target.box.top + y) * picture_.width + target.box.left + x;
        const Unmixed unmixed = wanted(layer, parts, p);
        target.cover.push_back(unmixed.share);
        target.weight.push_back(unmixed.weight);
      }
    return target;
  }

  Unmixed wanted(const Layer& layer, const std::vector<std::size_t>& parts, std::int64_t pixel) const {
    const auto p = static_cast<std::size_t>(pixel);
    const auto is_own = [&](std::int64_t owner) {
      return std::ranges::find(parts, static_cast<std::size_t>(owner)) != parts.end();
    };
    const bool own = owners_[p] != none && is_own(owners_[p]);
    if (owners_[p] != none && !own && regions_[static_cast<std::size_t>(owners_[p])].hue == layer.hue)
      return {0, 1};  // one like it
    bool beside = false;
    if (!own)
      owners_near(picture_, owners_, pixel, 1, [&](std::int64_t owner) {
        beside = beside || regions_[static_cast<std::size_t>(owner)].hue != layer.hue;
      });
    if (beside) return {0, unseen};
    Colour line;
    for (std::size_t c = 0; c < 3; ++c) line[c] = layer.colour[c] - behind_[p][c];
    const float contrast = distance(layer.colour, behind_[p]);
    return unmix(picture_.pixels[p], behind_[p], line, contrast * contrast);
  }

  const Picture& picture_;
  const std::vector<Colour>& behind_;
  const std::vector<Region>& regions_;
  const std::vector<std::int64_t> owners_;
};

}  // namespace

std::vector<Layer> find_layers(const Picture& picture, const std::vector<Colour>& behind,
                               const std::vector<Region>& regions) {
  const Finder finder(picture, behind, regions);
  std::vector<std::vector<std::size_t>> parts;
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    bool taken = false;
    for (std::size_t k = 0; k < layers.size() && !taken; ++k) {
      if (!std::ranges::any_of(parts[k], [&](std::size_t part) { return finder.may_be_one(part, i); }))
        continue;
      std::vector<std::size_t> together = parts[k];
      together.push_back(i);
      Layer layer = finder.layer_of(together);
      if (layer.misfit > whole) continue;
      taken = true;
      parts[k] = std::move(together);
      layers[k] = std::move(layer);
    }
    if (taken) continue;
    parts.push_back({i});
    layers.push_back(finder.layer_of({i}));
  }
  std::erase_if(layers, [](const Layer& layer) { return layer.fits.empty(); });
  return layers;
}

}  // namespace pom::eval::scenes
