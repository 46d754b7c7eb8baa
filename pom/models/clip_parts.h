// Private to the room: the parts of a layer's modulations in networks of clips, in the order of their
// weights.
#pragma once

namespace pom::models {

struct ClipPart {
  enum {
    scale_x,
    shift_x,
    scale_text,
    shift_text,
    scale_1,
    shift_1,
    scale_2,
    shift_2,
    gate_text,
    gate_1,
    gate_2,
    parts
  };
  static constexpr int gates = 3;
};

}  // namespace pom::models
