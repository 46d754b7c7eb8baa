// Pictures to be scored, in their order: a folder, ADM's npz of samples, WebDataset's tars. N pictures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::eval {

class PictureSet {
 public:
  virtual ~PictureSet() = default;

  virtual std::int64_t count() const = 0;
  // (3, H, W) uint8, from any number of threads. What cannot be read is a pom::Error that names it.
  virtual at::Tensor read(std::int64_t index) const = 0;
  virtual std::string format() const = 0;  // "npz", "folder", "tars": what the pictures lie in
};

// By what the path is: a folder with pictures in it or below it, in the order of their names; a .npz with
// arr_0 of shape (N, H, W, 3), uint8; a .tar, or a pattern of several, whose samples have a picture each.
std::unique_ptr<PictureSet> open_pictures(const std::string& path);
// Whether a .npz has arr_0; anything else is taken to have pictures.
bool may_have_pictures(const std::string& path);

}  // namespace pom::eval
