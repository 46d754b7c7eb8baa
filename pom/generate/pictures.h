// Private to the room: decoded tensors as pictures of 8 bits.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/generate/request.h"
#include "pom/io/image.h"

namespace pom::generate {

// decoded (B, C, H, W) in [-1, 1] -> B pictures: x * 127.5 + 127.5 rounded to the nearest of 0 … 255. Values
// that are not finite are an error that names the picture by its request.
std::vector<io::Image> to_images(const at::Tensor& decoded, const Request* requests);

// The same for the frames of a clip, decoded (C, T, H, W), in RGB also where they are grey; `first` is the
// number of the first one.
std::vector<io::Image> to_frames(const at::Tensor& decoded, const Request& request, std::int64_t first);

}  // namespace pom::generate
