// From a model to what a judge is asked about it: which shapes its classes are, its pictures as tensors, and
// the drawings that stand beside them. N pictures of H x W pixels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/judge.h"
#include "pom/eval/shapes_report.h"
#include "pom/io/image.h"

namespace pom::eval {

// The shape that each class of a model is, in the order of its classes. A class that is no shape is an error.
std::vector<std::int64_t> shapes_named(std::span<const std::string> classes);

// Each class so often, class by class, in the order in which an engine makes pictures of "all".
std::vector<std::int64_t> each_so_often(std::span<const std::int64_t> classes, std::int64_t per_class);

// 8-bit pictures, grey or in colour, as the judge takes them: (N, 3, H, W).
at::Tensor stack_pictures(std::span<const io::Image> images);
std::vector<io::Image> unstack_pictures(const at::Tensor& pictures);

// Pictures (N, 3, H, W) that should show `asked`, and the drawings of repetition `index`, judged.
Repetition judge_repetition(const Judge& judge, const at::Tensor& pictures,
                            std::span<const std::int64_t> asked, std::uint64_t seed, std::int64_t index);

}  // namespace pom::eval
