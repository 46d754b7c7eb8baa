// Says what a picture of a scene shows: which shapes of which hues, where, and which one is in front; and
// what of it fits none of them. It was never taught: it finds regions by their hues and compares them with
// drawings of all shapes, without what others hide. H x W pixels.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/data/scenes.h"

namespace pom::eval {

// Lengths in shorter sides of the picture, from its middle, y upwards.
struct FoundObject {
  std::int64_t kind = 0, hue = 0;  // of data::shape_names() and hue_names(): the nearest
  double x = 0, y = 0;             // the centre
  double radius = 0, angle = 0;    // angle in radians against the clock
  double misfit = 0;   // of the nearest drawing, a share of what is seen: 0 where it is drawn well
  double visible = 1;  // the share of its area that no other object hides

  bool fits() const;  // else it is a blob: none of the shapes
};

// One object lies over another.
struct FoundOverlap {
  std::size_t front = 0, back = 0;  // of SceneVerdict::objects
  double share = 0;                 // of the back one's area
};

struct SceneVerdict {
  std::vector<FoundObject> objects;  // front first
  std::vector<FoundOverlap> overlaps;
  std::int64_t ground = 0;  // of data::ground_names(): the nearest
  double residue = 0;       // the share of the picture that neither ground nor objects explain

  bool fits() const;  // every object, and hardly any residue
};

// The largest misfit of what is taken for a shape, and the largest residue of a picture that is explained.
// Set on drawings of a seed that no report and no other test uses (0x736365), 64x64: of 7,200 objects of
// 2,500 drawings 999 in 1,000 have a misfit below 0.02, and no residue is left but where the judge errs
// (twice). Of drawings that are a little soft (their means over 3x3 pixels to 60 %) and noisy (3 %) the worst
// misfit is 0.033 and the worst residue 0.001; of objects that are blurred on purpose (means over 5x5 pixels,
// twice) the least misfit is 0.054, of half ones 0.11.
inline constexpr double worst_scene_fit = 0.045;
inline constexpr double most_residue = 0.004;

// picture: (3, H, W) uint8 of at least 16x16.
SceneVerdict judge_scene(const at::Tensor& picture);

// What of a scene a verdict confirms.
struct SceneAgreement {
  bool objects = false;    // each asked shape, as often as asked
  bool colours = false;    // likewise each hue
  bool pairs = false;      // likewise each shape in its own hue
  bool count = false;      // as many objects as asked, neither more nor fewer
  bool relations = false;  // all that are said, between objects of those hues
  bool ground = false;     // the one the caption names; true where it names none
  bool fits = false;       // nothing that fits none of the shapes
  std::int64_t relations_asked = 0, relations_right = 0;

  bool everything() const { return pairs && count && relations && ground && fits; }
};
SceneAgreement compare(const data::Scene& scene, const SceneVerdict& verdict);

// Whether a relation holds between two objects that were found. Above: the centre is higher, and by more than
// it is aside. In front: it is whole and hides a part of the other.
bool holds(data::Relation what, const SceneVerdict& verdict, std::size_t a, std::size_t b);

}  // namespace pom::eval
