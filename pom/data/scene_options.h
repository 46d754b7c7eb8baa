// What scenes may hold. A part of "data" of a recipe.
#pragma once

#include <cstdint>
#include <string>

#include "pom/base/fields.h"

namespace pom::data {

struct SceneOptions {
  // training, or what is held out of it: new_pairs (of hue and shape), new_relations (of two shapes),
  // new_wordings, or new_all of them. In a recipe it is "split", which scenes share with sprites.
  std::string split = "training";
  std::int64_t objects = 4;  // at most, 2 to 4
  double swaying = 0;        // share of the groups that move; captions say so
  double vague = 0;          // share of the groups of which captions leave out the colour, or the shape

  friend bool operator==(const SceneOptions&, const SceneOptions&) = default;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "objects", .help = "scenes: the most objects of one, 2 to 4", .least = 2, .most = 4},
          objects);
    visit(Field{.name = "swaying", .help = "scenes: share of groups that sway or bob", .least = 0, .most = 1},
          swaying);
    visit(Field{.name = "vague",
                .help = "scenes: share of groups whose colour or shape is not said",
                .least = 0,
                .most = 1},
          vague);
  }
};

}  // namespace pom::data
