// What sprites may do, and how often. A part of "data" of a recipe.
#pragma once

#include <cstdint>
#include <string>

#include "pom/base/fields.h"

namespace pom::data {

struct SpriteOptions {
  std::string split = "training";
  std::int64_t directions = 8;
  double two = 0.2;  // shares of the clips, or of the sprites
  double bouncing = 0.2;
  double staying = 0.1;
  double spinning = 0.25;
  double pulsing = 0.2;
  double changes = 0;             // share of the clips whose prompt changes on the way
  std::int64_t change_every = 8;  // frames: it may at each multiple of them
  double unnamed = 0;             // share of the captions that do not name the ground

  // Equal parts of a clip of so many frames that have a caption each.
  std::int64_t parts(std::int64_t frames) const { return changes > 0 ? frames / change_every : 1; }

  friend bool operator==(const SpriteOptions&, const SpriteOptions&) = default;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "split",
                .help = "sprites, scenes: training, or what is held out of it: new_pairs (of hue and shape), "
                        "new_wordings, of sprites new_both, of scenes new_relations, new_all",
                .choices = {"training", "new_pairs", "new_wordings", "new_both", "new_relations", "new_all"}},
          split);
    visit(Field{.name = "directions",
                .help = "sprites: 4 directions (right, up, left, down) or 8",
                .least = 4,
                .most = 8},
          directions);
    visit(Field{.name = "two", .help = "share of clips with two sprites", .least = 0, .most = 1}, two);
    visit(Field{.name = "bouncing", .help = "share of sprites that bounce", .least = 0, .most = 1}, bouncing);
    visit(Field{.name = "staying", .help = "share of sprites that stay in place", .least = 0, .most = 1},
          staying);
    visit(Field{.name = "spinning", .help = "share of sprites that spin", .least = 0, .most = 1}, spinning);
    visit(Field{.name = "pulsing", .help = "share of sprites that grow and shrink", .least = 0, .most = 1},
          pulsing);
    visit(Field{.name = "changes",
                .help = "sprites: share of clips whose prompt changes on the way",
                .least = 0,
                .most = 1},
          changes);
    visit(Field{.name = "change_every",
                .help = "sprites: frames between the places where it may change; must divide data.frames and "
                        "batch.cut_frames",
                .least = 1,
                .most = 1e6},
          change_every);
    visit(Field{.name = "unnamed",
                .help = "sprites: share of captions that do not name the ground",
                .least = 0,
                .most = 1},
          unnamed);
  }
};

}  // namespace pom::data
