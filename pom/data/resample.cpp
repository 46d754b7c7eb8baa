#include "pom/data/resample.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/data/resize.h"

namespace pom::data {
namespace {

constexpr int weight_bits = 22;  // 8 of a sample, and two that overshooting needs, make 32

struct FilterShape {
  double support;
  double (*at)(double x);
};

double box_at(double x) {
  return x > -0.5 && x <= 0.5 ? 1 : 0;
}

double bilinear_at(double x) {
  return std::max(0.0, 1 - std::fabs(x));
}

double bicubic_at(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

FilterShape shape_of(Filter filter) {
  if (filter == Filter::box) return {0.5, box_at};
  return filter == Filter::bilinear ? FilterShape{1, bilinear_at} : FilterShape{2, bicubic_at};
}

// For each pixel of the result the pixels it is made of, and their weights in whole numbers.
struct FixedWeights {
  std::vector<int> first, count;
  std::vector<std::int32_t> weight;
  int taps = 0;

  const std::int32_t* of(int i) const { return weight.data() + static_cast<std::ptrdiff_t>(i) * taps; }
};

FixedWeights fixed_weights(int from, int to, Filter filter) {
  const FilterShape shape = shape_of(filter);
  const double scale = static_cast<double>(from) / to, stretch = std::max(1.0, scale);
  const double support = shape.support * stretch;
  FixedWeights result;
  result.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  result.weight.resize(static_cast<std::size_t>(to) * static_cast<std::size_t>(result.taps));
  std::vector<double> weights;
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - support + 0.5));
    const int last = std::min(from, static_cast<int>(centre + support + 0.5));
    weights.clear();
    double sum = 0;
    for (int x = first; x < last; ++x) {
      weights.push_back(shape.at((x - centre + 0.5) * (1 / stretch)));
      sum += weights.back();
    }
    std::int32_t* out = result.weight.data() + static_cast<std::ptrdiff_t>(i) * result.taps;
    for (const double weight : weights) {
      const double whole = (sum != 0 ? weight / sum : weight) * (1 << weight_bits);
      *out++ = static_cast<std::int32_t>(whole < 0 ? whole - 0.5 : whole + 0.5);
    }
    result.first.push_back(first);
    result.count.push_back(last - first);
  }
  return result;
}

std::uint8_t to_sample(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> weight_bits, 0, 255));
}

io::Image across(const io::Image& picture, int width, Filter filter) {
  const FixedWeights weights = fixed_weights(picture.width, width, filter);
  io::Image result = io::make_image("resample", width, picture.height, 3);
  for (int y = 0; y < picture.height; ++y) {
    const std::uint8_t* row = picture.row(y).data();
    std::uint8_t* out = result.row(y).data();
    for (int x = 0; x < width; ++x, out += 3) {
      const std::uint8_t* pixel =
          row + static_cast<std::ptrdiff_t>(3) * weights.first[static_cast<std::size_t>(x)];
      const std::int32_t* weight = weights.of(x);
      std::int32_t sum[3] = {1 << (weight_bits - 1), 1 << (weight_bits - 1), 1 << (weight_bits - 1)};
      for (int k = 0; k < weights.count[static_cast<std::size_t>(x)]; ++k, pixel += 3)
        for (int c = 0; c < 3; ++c) sum[c] += pixel[c] * weight[k];
      for (int c = 0; c < 3; ++c) out[c] = to_sample(sum[c]);
    }
  }
  return result;
}

io::Image down(const io::Image& picture, int height, Filter filter) {
  const FixedWeights weights = fixed_weights(picture.height, height, filter);
  io::Image result = io::make_image("resample", picture.width, height, 3);
  std::vector<std::int32_t> sum(picture.row_bytes());
  for (int y = 0; y < height; ++y) {
    std::ranges::fill(sum, 1 << (weight_bits - 1));
    for (int k = 0; k < weights.count[static_cast<std::size_t>(y)]; ++k) {
      const std::uint8_t* row = picture.row(weights.first[static_cast<std::size_t>(y)] + k).data();
      const std::int32_t weight = weights.of(y)[k];
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row[i] * weight;
    }
    std::ranges::transform(sum, result.row(y).begin(), to_sample);
  }
  return result;
}

// A side that no picture has is refused where the picture is made.
int whole_side(double x) {
  return static_cast<int>(std::min(x, 1e9));
}

// Python's round: halves to the even number.
int rounded(double x) {
  return whole_side(std::nearbyint(x));
}

struct Scaled {
  int width, height;
};

// The shorter side becomes `side`, the longer one is cut to whole pixels, as torchvision has it; more where
// that does not cover the size.
Scaled by_shorter_side(const io::Image& picture, int side, int width, int height) {
  const auto longer = [&](int of, int shorter) {
    return whole_side(static_cast<double>(side) * of / shorter);
  };
  Scaled scaled = picture.width <= picture.height ? Scaled{side, longer(picture.height, picture.width)}
                                                  : Scaled{longer(picture.width, picture.height), side};
  if (scaled.width >= width && scaled.height >= height) return scaled;
  const double scale =
      std::max(static_cast<double>(width) / picture.width, static_cast<double>(height) / picture.height);
  return {std::max(width, rounded(picture.width * scale)), std::max(height, rounded(picture.height * scale))};
}

io::Image adm_crop(const io::Image& picture, int size) {
  io::Image halved;
  const io::Image* at = &picture;
  while (std::min(at->width, at->height) >= 2 * size) {
    halved = resample(*at, at->width / 2, at->height / 2, Filter::box);
    at = &halved;
  }
  const double scale = static_cast<double>(size) / std::min(at->width, at->height);
  const io::Image scaled =
      resample(*at, rounded(at->width * scale), rounded(at->height * scale), Filter::bicubic);
  return cut_out(scaled, (scaled.width - size) / 2, (scaled.height - size) / 2, size, size);
}

io::Image homm_crop(const io::Image& picture, int side, int width, int height) {
  const Scaled size = by_shorter_side(picture, side, width, height);
  const io::Image scaled = resample(picture, size.width, size.height, Filter::bilinear);
  return cut_out(scaled, rounded((size.width - width) / 2.0), rounded((size.height - height) / 2.0), width,
                 height);
}

io::Image cropped(const io::Image& picture, const std::string& crop, int width, int height) {
  if (crop == "adm") return adm_crop(picture, width);
  const int shorter = std::min(width, height);
  return homm_crop(picture, crop == "homm" ? shorter : static_cast<int>(shorter * 1.2), width, height);
}

}  // namespace

io::Image resample(const io::Image& picture, int width, int height, Filter filter) {
  io::check_image("resample", picture);
  check(picture.channels == 3 && picture.bits == 8, "resample: picture: expected 8-bit RGB");
  io::check_size("resample", width, height);
  if (picture.width == width) return picture.height == height ? picture : down(picture, height, filter);
  io::Image narrow = across(picture, width, filter);
  return picture.height == height ? narrow : down(narrow, height, filter);
}

io::Image cut_out(const io::Image& picture, int x, int y, int width, int height) {
  check(x >= 0 && y >= 0 && width <= picture.width - x && height <= picture.height - y, "crop: expected ",
        width, "x", height, " within ", picture.width, "x", picture.height, ", got them at ", x, ",", y);
  io::Image result = io::make_image("crop", width, height, picture.channels, picture.bits);
  for (int row = 0; row < height; ++row)
    std::ranges::copy(
        picture.row(y + row).subspan(static_cast<std::size_t>(x) * picture.pixel_bytes(), result.row_bytes()),
        result.row(row).begin());
  return result;
}

const std::vector<std::string>& crop_names() {
  static const std::vector<std::string> names = {"adm", "homm", "homm-clips", "cover"};
  return names;
}

void check_crop(const std::string& crop, std::int64_t width, std::int64_t height) {
  check(std::ranges::find(crop_names(), crop) != crop_names().end(), "crop: expected one of ",
        "adm, homm, homm-clips and cover, got \"", shown(crop), "\"", suggestion(crop, crop_names()));
  check(crop != "adm" || width == height, "crop: adm: expected a square, got ", width, "x", height);
  io::check_size("crop", width, height);
}

void crop_picture(const io::Image& picture, const std::string& crop, std::int64_t width, std::int64_t height,
                  std::uint8_t* out) {
  const std::int64_t pixels = width * height;
  if (crop == "cover")
    return resize_and_crop(picture, width, height, {out, static_cast<std::size_t>(3 * pixels)});
  const io::Image made = cropped(picture, crop, static_cast<int>(width), static_cast<int>(height));
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t i = 0; i < pixels; ++i)
      out[c * pixels + i] = made.data[static_cast<std::size_t>(3 * i + c)];
}

}  // namespace pom::data
