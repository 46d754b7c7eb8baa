#include "pom/generate/pictures.h"

#include <algorithm>
#include <cmath>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

[[noreturn]] void refuse(const std::string& what, const Request& r) {
  fail("sample: ", what, " with seed ", r.seed,
       ": expected finite values from the network, got NaN or infinite ones",
       r.dtype == "fp16" ? "; --dtype bf16 or fp32 has the range that fp16 lacks"
                         : "; the weights, or a guidance far too strong, may be why");
}

// values (C, H, W) -> rows of pixels.
template <class Refuse>
io::Image to_image(const float* values, std::int64_t channels, std::int64_t height, std::int64_t width,
                   Refuse&& refuse_values) {
  io::Image image = io::make_image("sample", width, height, static_cast<int>(channels));
  const std::int64_t plane = height * width;
  bool finite = true;
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t i = 0; i < plane; ++i) {
      const float x = values[c * plane + i];
      finite &= std::isfinite(x);
      const float level = std::clamp(std::nearbyint(x * 127.5F + 127.5F), 0.0F, 255.0F);
      image.data[static_cast<std::size_t>(i * channels + c)] =
          std::isnan(x) ? 0 : static_cast<std::uint8_t>(level);
    }
  if (!finite) refuse_values();
  return image;
}

}  // namespace

std::vector<io::Image> to_images(const at::Tensor& decoded, const Request* requests) {
  const at::Tensor values = decoded.to(at::kCPU, at::kFloat).contiguous();
  const std::int64_t channels = values.size(1), height = values.size(2), width = values.size(3);
  std::vector<io::Image> images;
  for (std::int64_t b = 0; b < values.size(0); ++b)
    images.push_back(to_image(values.data_ptr<float>() + b * values.stride(0), channels, height, width, [&] {
      refuse("the picture of class " + requests[b].class_name, requests[b]);
    }));
  return images;
}

std::vector<io::Image> to_frames(const at::Tensor& decoded, const Request& request, std::int64_t first) {
  at::Tensor values = decoded.to(at::kCPU, at::kFloat).transpose(0, 1);  // (T, C, H, W)
  if (values.size(1) == 1) values = values.expand({-1, 3, -1, -1});
  values = values.contiguous();
  std::vector<io::Image> frames;
  for (std::int64_t i = 0; i < values.size(0); ++i)
    frames.push_back(
        to_image(values.data_ptr<float>() + i * values.stride(0), 3, values.size(2), values.size(3),
                 [&] { refuse("frame " + std::to_string(first + i) + " of the clip", request); }));
  return frames;
}

}  // namespace pom::generate
