#include "pom/eval/shape_forms.h"

#include <cmath>

namespace pom::eval {
namespace {

int repeats_of(const std::string& name) {
  if (name == "square" || name == "cross") return 4;
  if (name == "triangle") return 3;
  if (name == "star") return 5;
  if (name == "diamond") return 2;
  return name == "hexagon" ? 6 : 1;
}

// Measured on a drawing.
Form form_of(std::int64_t kind) {
  constexpr std::int64_t side = 128;
  std::vector<std::uint8_t> pixels(3 * side * side);
  data::Shape shape = stencil(kind);
  shape.radius = 0.4f;
  data::draw_shape(shape, side, side, pixels);
  double sum = 0, x = 0, y = 0;
  for (std::int64_t p = 0; p < side * side; ++p) {
    const double w = pixels[static_cast<std::size_t>(p)] / 255.0;
    sum += w;
    x += w * (static_cast<double>(p % side) + 0.5 - side / 2.0);
    y -= w * (static_cast<double>(p / side) + 0.5 - side / 2.0);
  }
  const double radius = 0.4 * side;
  const std::string& name = data::shape_names()[static_cast<std::size_t>(kind)];
  return {sum / (radius * radius), x / sum / radius,
          y / sum / radius,        name != "circle" && name != "ring",
          repeats_of(name),        name == "triangle" ? 3 : 1};
}

}  // namespace

const std::vector<Form>& forms() {
  static const std::vector<Form> all = [] {
    std::vector<Form> made;
    for (std::int64_t kind = 0; kind < std::ssize(data::shape_names()); ++kind) made.push_back(form_of(kind));
    return made;
  }();
  return all;
}

data::Shape stencil(std::int64_t kind) {
  data::Shape shape;
  shape.kind = kind;
  for (float& c : shape.colour) c = 1;
  return shape;
}

data::Shape fitted(std::int64_t kind, double angle, const Mass& mass) {
  const Form& form = forms()[static_cast<std::size_t>(kind)];
  data::Shape shape = stencil(kind);
  const double radius = std::sqrt(mass.area / form.area);
  const double c = std::cos(angle), s = std::sin(angle);
  shape.radius = static_cast<float>(radius);
  shape.angle = static_cast<float>(angle);
  shape.x = static_cast<float>(mass.x - radius * (c * form.x - s * form.y));
  shape.y = static_cast<float>(mass.y - radius * (s * form.x + c * form.y));
  return shape;
}

}  // namespace pom::eval
