// Layers over a ground: which one is in front, and each fitted again among the others. With all others as
// they are, a pixel is a mixture of two colours, and how much the layer should cover of it follows.
#include <algorithm>

#include "pom/eval/scene_parts.h"

namespace pom::eval::scenes {
namespace {

float dot(const Colour& a, const Colour& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

Colour mixed(const Colour& from, const Colour& to, float share) {
  return {from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share,
          from[2] + (to[2] - from[2]) * share};
}

double sum_of(const Plane& plane) {
  double sum = 0;
  for (const float v : plane) sum += static_cast<double>(v);
  return sum;
}

double sum_of_products(const Plane& a, const Plane& b) {
  double sum = 0;
  for (std::size_t p = 0; p < a.size(); ++p) sum += static_cast<double>(a[p] * b[p]);
  return sum;
}

}  // namespace

Unmixed unmix(const Colour& pixel, const Colour& without, const Colour& line, float reference) {
  const float length = dot(line, line);
  if (length < 1e-3f) return {};
  Colour rest = {pixel[0] - without[0], pixel[1] - without[1], pixel[2] - without[2]};
  const float share = dot(rest, line) / length;
  for (std::size_t c = 0; c < 3; ++c) rest[c] -= share * line[c];
  constexpr float foreign = 0.12f;  // so far off the line a colour is of something else
  const float off = 1 + dot(rest, rest) / (foreign * foreign);
  return {std::clamp(share, 0.0f, 1.0f), std::min(1.0f, length / reference) / (off * off)};
}

void Composition::add(Layer layer) {
  layer.cover.resize(picture_.pixels.size());
  data::cover_shape(layer.shape(), picture_.width, picture_.height, {0, 0, picture_.width, picture_.height},
                    1, layer.cover);
  layers_.push_back(std::move(layer));
  sort();
}

// Where both are, it shows which one is in front.
bool Composition::in_front(const Layer& a, const Layer& b) const {
  double both = 0, of_a = 0;
  for (std::size_t p = 0; p < picture_.pixels.size(); ++p) {
    const float overlap = a.cover[p] * b.cover[p];
    if (overlap < 0.01f) continue;
    const Colour& pixel = picture_.pixels[p];
    both += static_cast<double>(overlap);
    of_a += static_cast<double>(overlap * (distance(pixel, b.colour) - distance(pixel, a.colour)));
  }
  return both > 1.5 && of_a > 0;
}

// Repeatedly the first that nothing left is in front of; a circle, which no drawing has, is broken anywhere.
void Composition::sort() {
  std::vector<Layer> left = std::move(layers_);
  layers_.clear();
  while (!left.empty()) {
    auto next = std::ranges::find_if(left, [&](const Layer& layer) {
      return std::ranges::none_of(
          left, [&](const Layer& other) { return &other != &layer && in_front(other, layer); });
    });
    if (next == left.end()) next = left.begin();
    layers_.push_back(std::move(*next));
    left.erase(next);
  }
}

std::vector<Colour> Composition::drawn(std::optional<std::size_t> without) const {
  std::vector<Colour> out = ground_;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    if (i == without) continue;
    const Layer& layer = layers_[i];
    for (std::size_t p = 0; p < out.size(); ++p)
      if (layer.cover[p] > 0) out[p] = mixed(out[p], layer.colour, layer.cover[p]);
  }
  return out;
}

double Composition::overlap(std::size_t front, std::size_t back) const {
  return sum_of_products(layers_[front].cover, layers_[back].cover) /
         std::max(sum_of(layers_[back].cover), 1.0);
}

Target Composition::target_of(std::size_t index) const {
  const Layer& layer = layers_[index];
  Target target{
      united(box_around(picture_, layer.shape(), 3), box_around(picture_, layer.region.pixels, 2)), {}, {}};
  for (std::int64_t y = 0; y < target.box.height; ++y)
    for (std::int64_t x = 0; x < target.box.width; ++x) {
      const auto p = static_cast<std::size_t>((target.box.top + y) * picture_.width + target.box.left + x);
      Colour behind = ground_[p], without;
      for (std::size_t i = layers_.size() - 1; i > index; --i)
        behind = mixed(behind, layers_[i].colour, layers_[i].cover[p]);
      without = behind;
      float through = 1;
      for (std::size_t i = index; i-- > 0;) {
        without = mixed(without, layers_[i].colour, layers_[i].cover[p]);
        through *= 1 - layers_[i].cover[p];
      }
      Colour line;
      for (std::size_t c = 0; c < 3; ++c) line[c] = through * (layer.colour[c] - behind[c]);
      const float contrast = distance(layer.colour, ground_[p]);
      const Unmixed unmixed = unmix(picture_.pixels[p], without, line, contrast * contrast);
      target.cover.push_back(unmixed.share);
      target.weight.push_back(unmixed.weight);
    }
  return target;
}

void Composition::fit_again(std::size_t index) {
  const Target target = target_of(index);
  Layer& layer = layers_[index];
  for (Fit& fit : layer.fits) fit = refine(picture_, target, fit.shape, 6);
  std::ranges::stable_sort(layer.fits, {}, &Fit::error);
  data::cover_shape(layer.shape(), picture_.width, picture_.height, {0, 0, picture_.width, picture_.height},
                    1, layer.cover);
}

void Composition::measure(std::size_t index) {
  Layer& layer = layers_[index];
  const Target target = target_of(index);
  double error = 0, seen = 0;
  for (std::size_t i = 0; i < target.cover.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const auto p = static_cast<std::size_t>((target.box.top + at / target.box.width) * picture_.width +
                                            target.box.left + at % target.box.width);
    const float off = target.cover[i] - layer.cover[p];
    error += static_cast<double>(target.weight[i] * off * off);
    seen += static_cast<double>(target.weight[i] * layer.cover[p]);
  }
  layer.misfit = error / std::max(seen, 1.0);
  double visible = 0;
  for (std::size_t p = 0; p < layer.cover.size(); ++p) {
    float through = layer.cover[p];
    for (std::size_t i = 0; i < index; ++i) through *= 1 - layers_[i].cover[p];
    visible += static_cast<double>(through);
  }
  layer.visible = visible / std::max(sum_of(layer.cover), 1e-6);
}

// What does not fit well may have been looked for in the wrong place.
bool Composition::look_again() {
  bool better = false;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (layer.misfit <= found_quickly) continue;
    std::vector<Fit> fits = fit_kinds(picture_, target_of(i), most_fits, /*thorough=*/true);
    if (fits.empty() || fits.front().error > 0.9 * layer.fits.front().error) continue;
    layer.fits = std::move(fits);
    better = true;
  }
  return better;
}

// Parts of an object may have been taken for objects before one was found that explains them all.
bool Composition::leave_out() {
  const auto count = [&](std::optional<std::size_t> without) {
    return std::ranges::count(unexplained(picture_, drawn(without)), true);
  };
  bool any = false;
  for (bool more = true; more;) {
    more = false;
    const std::int64_t allowed = count({}) + least_region(picture_) / 2;
    std::optional<std::size_t> worst;
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if ((!worst || layers_[i].misfit > layers_[*worst].misfit) && count(i) <= allowed) worst = i;
    if (!worst) continue;
    layers_.erase(layers_.begin() + static_cast<std::ptrdiff_t>(*worst));
    any = more = true;
  }
  return any;
}

void Composition::settle(int rounds) {
  const auto fit_all = [&] {
    for (std::size_t i = 0; i < layers_.size(); ++i) fit_again(i);
    sort();
    for (std::size_t i = 0; i < layers_.size(); ++i) measure(i);
  };
  for (int round = 0; round < rounds; ++round) fit_all();
  if (look_again()) fit_all();
  if (leave_out()) fit_all();
}

}  // namespace pom::eval::scenes
