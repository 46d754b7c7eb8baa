#include "pom/eval/shapes_eval.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/data/shapes.h"

namespace pom::eval {

std::vector<std::int64_t> shapes_named(std::span<const std::string> classes) {
  const std::vector<std::string>& names = data::shape_names();
  check(!classes.empty(), "eval: classes: expected names of shapes, got a model whose classes have no names");
  std::vector<std::int64_t> shapes;
  for (const std::string& name : classes) {
    const auto found = std::ranges::find(names, name);
    check(found != names.end(), "eval: classes: expected names of shapes, got \"", name, "\"",
          suggestion(name, names));
    check(std::ranges::find(shapes, found - names.begin()) == shapes.end(),
          "eval: classes: expected each shape once, got \"", name, "\" twice");
    shapes.push_back(found - names.begin());
  }
  return shapes;
}

std::vector<std::int64_t> each_so_often(std::span<const std::int64_t> classes, std::int64_t per_class) {
  std::vector<std::int64_t> all;
  for (const std::int64_t shape : classes) all.insert(all.end(), static_cast<std::size_t>(per_class), shape);
  return all;
}

at::Tensor stack_pictures(std::span<const io::Image> images) {
  check(!images.empty(), "eval: pictures: expected at least one, got none");
  const std::int64_t width = images.front().width, height = images.front().height;
  at::Tensor rows = at::empty({std::ssize(images), height, width, 3}, at::TensorOptions(at::kByte));
  auto* to = rows.data_ptr<std::uint8_t>();
  for (const io::Image& image : images) {
    check(image.width == width && image.height == height, "eval: pictures: expected all of ", width, "x",
          height, ", got ", image.width, "x", image.height);
    const io::Image rgb = io::to_rgb8(image);
    std::memcpy(to, rgb.data.data(), rgb.data.size());
    to += rgb.data.size();
  }
  return rows.permute({0, 3, 1, 2}).contiguous();
}

std::vector<io::Image> unstack_pictures(const at::Tensor& pictures) {
  const at::Tensor rows = pictures.permute({0, 2, 3, 1}).contiguous();
  std::vector<io::Image> images;
  const auto* from = rows.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    io::Image image = io::make_image("eval", rows.size(2), rows.size(1), 3);
    std::memcpy(image.data.data(), from, image.data.size());
    from += image.data.size();
    images.push_back(std::move(image));
  }
  return images;
}

Repetition judge_repetition(const Judge& judge, const at::Tensor& pictures,
                            std::span<const std::int64_t> asked, std::uint64_t seed, std::int64_t index) {
  const std::int64_t first = index * std::ssize(asked);
  const auto drawn = [&](DrawnFor purpose) {
    return judge.look(draw(purpose, seed, first, asked, judge.config().canvas).pictures);
  };
  return {judge.look(pictures), drawn(DrawnFor::reference), drawn(DrawnFor::yardstick)};
}

}  // namespace pom::eval
