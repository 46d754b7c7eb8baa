// Ground, regions, objects, and all of them together; then once more for what they leave unexplained.
#include "pom/eval/scene_judge.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pom/eval/scene_parts.h"
#include "pom/eval/shape_forms.h"

namespace pom::eval {
namespace {

using scenes::Composition, scenes::Layer, scenes::Picture;

double share_of(const std::vector<bool>& pixels) {
  return static_cast<double>(std::ranges::count(pixels, true)) / static_cast<double>(pixels.size());
}

// The middle of the ground, as one of the named ones.
std::int64_t nearest_ground(const std::vector<scenes::Colour>& ground) {
  scenes::Colour mean = {};
  for (const scenes::Colour& colour : ground)
    for (std::size_t c = 0; c < 3; ++c) mean[c] += colour[c] / static_cast<float>(ground.size());
  std::int64_t best = 0;
  float least = 9;
  for (std::int64_t i = 0; i < std::ssize(data::ground_names()); ++i)
    if (const float d = scenes::distance(mean, data::ground_colour(i)); d < least) least = d, best = i;
  return best;
}

// Of the angles at which a shape looks the same, the one nearest to upright, with the centre it has then.
FoundObject found(const Layer& layer) {
  const data::Shape& shape = layer.shape();
  const Form& form = forms()[static_cast<std::size_t>(shape.kind)];
  FoundObject object{.kind = shape.kind,
                     .hue = layer.hue,
                     .radius = static_cast<double>(shape.radius),
                     .misfit = layer.misfit,
                     .visible = layer.visible};
  const auto turn = static_cast<double>(shape.angle);
  object.angle = form.turns ? std::remainder(turn, 2 * std::numbers::pi / form.repeats) : 0;
  const auto middle_x = [&](double angle) { return std::cos(angle) * form.x - std::sin(angle) * form.y; };
  const auto middle_y = [&](double angle) { return std::sin(angle) * form.x + std::cos(angle) * form.y; };
  object.x = static_cast<double>(shape.x) + object.radius * (middle_x(turn) - middle_x(object.angle));
  object.y = static_cast<double>(shape.y) + object.radius * (middle_y(turn) - middle_y(object.angle));
  return object;
}

}  // namespace

bool FoundObject::fits() const {
  return misfit <= worst_scene_fit;
}

bool SceneVerdict::fits() const {
  return residue <= most_residue && std::ranges::all_of(objects, &FoundObject::fits);
}

SceneVerdict judge_scene(const at::Tensor& tensor) {
  const Picture picture = scenes::open_picture(tensor);
  const std::vector<scenes::Colour> ground = scenes::find_ground(picture);
  Composition composition(picture, ground);
  const std::vector<scenes::Region> regions =
      scenes::find_regions(picture, scenes::standing_out(picture, ground), false);
  for (Layer& layer : scenes::find_layers(picture, ground, regions)) composition.add(std::move(layer));
  composition.settle(2);
  std::vector<scenes::Colour> drawn = composition.drawn();
  const std::vector<scenes::Region> left =
      scenes::find_regions(picture, scenes::unexplained(picture, drawn), true);
  if (!left.empty()) {
    for (Layer& layer : scenes::find_layers(picture, drawn, left)) composition.add(std::move(layer));
    composition.settle(1);
    drawn = composition.drawn();
  }
  SceneVerdict verdict;
  verdict.ground = nearest_ground(ground);
  verdict.residue = share_of(scenes::unexplained(picture, drawn));
  for (const Layer& layer : composition.layers()) verdict.objects.push_back(found(layer));
  for (std::size_t back = 1; back < verdict.objects.size(); ++back)
    for (std::size_t front = 0; front < back; ++front)
      if (const double share = composition.overlap(front, back); share > 0.01)
        verdict.overlaps.push_back({front, back, share});
  return verdict;
}

}  // namespace pom::eval
