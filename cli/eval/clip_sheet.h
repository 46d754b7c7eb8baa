// A sheet of judged clips: a row of frames for each, its caption under them, and what is wrong beside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/sprite_judge.h"
#include "pom/io/image.h"

namespace pom::cli {

class ClipSheet {
 public:
  // Every second frame of a clip (3, F, H, W), at most so many; all clips have as many.
  void add(const at::Tensor& clip, std::int64_t most_columns, const std::string& caption,
           const std::string& row_label);
  void write(const std::filesystem::path& path) const;

 private:
  std::vector<io::Image> shown_;
  std::vector<std::string> labels_, row_labels_;
};

// " (not shape, direction)", or nothing.
std::string what_is_wrong(const eval::SpriteAgreement& agreement);

}  // namespace pom::cli
