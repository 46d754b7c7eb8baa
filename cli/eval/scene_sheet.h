// Pictures of scenes with their captions and what the judge says of them, for a sheet.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/scenes_eval.h"
#include "pom/io/image.h"

namespace pom::cli {

// What of a question its picture does not show: "not: relations, count"; empty where it shows everything.
std::string scene_verdict_text(const eval::SceneQuestion& question, const eval::SceneVerdict& verdict);

// picture: (3, H, W) uint8. Enlarged, the caption and the verdict under it, in a red frame where it is wrong.
io::Image scene_cell(const at::Tensor& picture, const eval::SceneQuestion& question,
                     const eval::SceneVerdict& verdict);

io::Image scene_sheet(const std::vector<io::Image>& cells, int columns);

}  // namespace pom::cli
