#include "pom/generate/images.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

[[noreturn]] void refuse(const std::string& what, const Request& r) {
  fail("sample: ", what, " with seed ", r.own_seed(),
       ": expected finite values from the network, got NaN or infinite ones",
       r.dtype == "fp16" ? "; --dtype bf16 or fp32 has the range that fp16 lacks"
                         : "; the weights, or a guidance far too strong, may be why");
}

// values (C, H, W) -> rows of pixels; whether all were finite.
bool fill(io::Image& image, const float* values) {
  const std::int64_t plane = std::int64_t{image.height} * image.width, channels = image.channels;
  bool finite = true;
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t i = 0; i < plane; ++i) {
      const float x = values[c * plane + i];
      finite &= std::isfinite(x);
      const float level = std::clamp(std::nearbyint(x * 127.5F + 127.5F), 0.0F, 255.0F);
      image.data[static_cast<std::size_t>(i * channels + c)] =
          std::isnan(x) ? 0 : static_cast<std::uint8_t>(level);
    }
  return finite;
}

}  // namespace

std::vector<io::Image> to_images(const at::Tensor& decoded, bool rgb, const Request& request,
                                 const std::function<std::string(std::int64_t i)>& name) {
  at::Tensor values = decoded.to(at::kCPU, at::kFloat);
  if (rgb && values.size(1) == 1) values = values.expand({-1, 3, -1, -1});
  values = values.contiguous();
  std::vector<io::Image> images;
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    images.push_back(
        io::make_image("sample", values.size(3), values.size(2), static_cast<int>(values.size(1))));
    if (!fill(images.back(), values.const_data_ptr<float>() + i * values.stride(0))) refuse(name(i), request);
  }
  return images;
}

at::Tensor from_images(const std::vector<io::Image>& images, std::int64_t channels) {
  const io::Image& first = images.front();
  const std::int64_t plane = std::int64_t{first.height} * first.width;
  at::Tensor out = at::empty({channels, std::ssize(images), first.height, first.width}, at::kFloat);
  float* const values = out.data_ptr<float>();
  for (std::int64_t t = 0; t < std::ssize(images); ++t) {
    const io::Image& image = images[static_cast<std::size_t>(t)];
    const int own = image.channels;
    const auto level = [&](std::int64_t i, std::int64_t c) -> float {
      const std::uint8_t* pixel = image.data.data() + i * own;
      if (channels == 1 && own >= 3)  // Rec. 601
        return 0.299F * pixel[0] + 0.587F * pixel[1] + 0.114F * pixel[2];
      return pixel[own >= 3 ? c : 0];
    };
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t i = 0; i < plane; ++i)
        values[(c * std::ssize(images) + t) * plane + i] = (level(i, c) - 127.5F) / 127.5F;
  }
  return out;
}

}  // namespace pom::generate
