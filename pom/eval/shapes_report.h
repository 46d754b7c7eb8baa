// What a judge's verdicts amount to: recognition, confusion, diversity and the Fréchet distance, set beside
// the same measures of drawings. Pure computation. N pictures.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/judge.h"

namespace pom::eval {

// How much pictures of one class differ from each other, averaged over the classes: a model that draws every
// star red and every circle blue is not diverse.
struct Diversity {
  double hue_entropy = 0;  // in bits
  double x = 0, y = 0;     // standard deviation, in sides of the picture
  double log2_radius = 0;  // likewise, in doublings of the size
};

struct Measures {
  double recognised = 0;                             // share of all pictures
  std::vector<std::vector<std::int64_t>> confusion;  // [class asked for][shape seen]
  std::vector<std::int64_t> hues;                    // pictures of each hue
  Diversity diversity;
};

// `asked` holds the shape that each picture should show (N), of data::shape_names(). Rows of the confusion
// are `classes`, shapes too, in which every one of `asked` must be; each needs at least two pictures.
Measures measure(const Verdicts& verdicts, std::span<const std::int64_t> asked,
                 std::span<const std::int64_t> classes);

// Of one value over the repetitions.
struct Spread {
  double mean = 0;
  double deviation = 0;  // with N - 1; 0 of a single value
};
Spread spread_of(std::span<const double> values);

// One repetition: pictures, and as many drawings of the same classes, twice.
struct Repetition {
  Verdicts pictures, drawings, others;
};

struct ShapesReport {
  struct Beside {
    Spread pictures, drawings, ratio;
  };

  std::vector<std::string> classes;         // names of the rows
  std::vector<std::string> shapes, hues;    // names of what can be seen
  std::int64_t count = 0, repetitions = 0;  // pictures in a repetition
  std::vector<double> recognised_by_seed;
  Spread recognised, drawings_recognised;
  std::vector<Spread> by_class;                      // recognised, of each class
  std::vector<std::vector<std::int64_t>> confusion;  // over all repetitions
  std::vector<std::int64_t> hue_counts, drawings_hue_counts;
  Beside hue_entropy, x, y, log2_radius;
  Spread frechet, frechet_of_drawings;  // pictures from drawings; drawings from other drawings
};

ShapesReport make_report(std::span<const Repetition> repetitions, std::span<const std::int64_t> asked,
                         std::span<const std::int64_t> classes);

}  // namespace pom::eval
