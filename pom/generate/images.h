// Private to the room: decoded tensors as images of 8 bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/generate/request.h"
#include "pom/io/image.h"

namespace pom::generate {

// decoded (T, C, H, W) in [-1, 1] -> T images: x * 127.5 + 127.5 rounded to the nearest of 0 … 255. As RGB
// they are so also where C is 1. Values that are not finite are an error, in which `name` says what image i
// is.
std::vector<io::Image> to_images(const at::Tensor& decoded, bool rgb, const Request& request,
                                 const std::function<std::string(std::int64_t i)>& name);

// The way back: 8-bit images of one size -> (C, T, H, W), fp32 in [-1, 1], with 1 channel (grey) or 3.
at::Tensor from_images(const std::vector<io::Image>& images, std::int64_t channels);

}  // namespace pom::generate
