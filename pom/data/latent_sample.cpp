#include "pom/data/latent_sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "pom/base/error.h"

namespace pom::data {
namespace {

using io::NpyType;

template <class Element>
Element element_at(std::string_view elements, std::size_t i) {
  Element element;
  std::memcpy(&element, elements.data() + i * sizeof(Element), sizeof(Element));
  return element;
}

// Exact: the exponent is moved by a product, which serves subnormal numbers too.
float float_of_half(std::uint16_t half) {
  const std::uint32_t rest = half & 0x7fffu;
  const float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude) | (rest >= 0x7c00u ? 0x7f800000u : 0u);
  return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000u) << 16);
}

// To the nearest, ties to even; what is too large becomes infinite.
std::uint16_t half_of_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 16 & 0x8000u;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x1p-14f)  // subnormal: whole multiples of 2^-24
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  const std::uint32_t rest = bits & 0x7fffffffu;
  return static_cast<std::uint16_t>(sign | (rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13);
}

// exp for -16 <= x <= 11, out of sums and products in doubles: within 1e-10, and the same everywhere. Kept
// free of calls and branches, so that loops over it are vectorised.
double exponential(double x) {
  constexpr double shifter = 0x1.8p52;
  const double shifted = x * 1.4426950408889634 + shifter;  // its low bits are the nearest integer n
  const double r = x - (shifted - shifter) * 0.6931471805599453;
  double sum = 1.0 / 362880;
  for (const double factor :
       {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    sum = sum * r + factor;
  const std::uint64_t n = std::bit_cast<std::uint64_t>(shifted) - std::bit_cast<std::uint64_t>(shifter);
  return sum * std::bit_cast<double>((n + 1023) << 52);
}

[[noreturn]] void refuse_type(const io::NpyArray& array, std::string_view expected, std::string_view site) {
  const bool text = array.header.type == NpyType::text || array.header.type == NpyType::bytes;
  fail(site, ": expected ", expected, ", got ", text ? "texts" : io::npy_descr(array.header.type));
}

template <class Element, class Convert>
std::vector<float> converted(const io::NpyArray& array, Convert convert) {
  std::vector<float> values(static_cast<std::size_t>(array.header.count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = convert(element_at<Element>(array.elements, i));
  return values;
}

}  // namespace

std::vector<float> floats_of(const io::NpyArray& array, std::string_view site) {
  switch (array.header.type) {
    case NpyType::half:
      return converted<std::uint16_t>(array, float_of_half);
    case NpyType::single:
      return converted<float>(array, [](float x) { return x; });
    case NpyType::real:
      return converted<double>(array, [](double x) { return static_cast<float>(x); });
    case NpyType::int8:
      return converted<std::int8_t>(array, [](std::int8_t x) { return static_cast<float>(x); });
    default:
      refuse_type(array, "<f2, <f4, <f8 or |i1", site);
  }
}

std::vector<std::uint16_t> halves_of(const io::NpyArray& array, std::string_view site) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(array.header.count));
  if (array.header.type == NpyType::half) {
    std::memcpy(bits.data(), array.elements.data(), array.elements.size());
    return bits;
  }
  if (array.header.type != NpyType::single) refuse_type(array, "<f2 or <f4", site);
  const std::vector<float> values = floats_of(array, site);
  std::ranges::transform(values, bits.begin(), half_of_float);
  return bits;
}

std::vector<std::uint8_t> flags_of(const io::NpyArray& array, std::string_view site) {
  const io::NpyHeader& header = array.header;
  if (header.type == NpyType::text || header.type == NpyType::bytes) refuse_type(array, "numbers", site);
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(header.count));
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const std::string_view bytes =
        std::string_view(array.elements).substr(i * header.element, header.element);
    flags[i] = bytes.find_first_not_of('\0') != std::string_view::npos;
  }
  return flags;
}

std::int64_t integer_of(const io::NpyArray& array, std::string_view site) {
  check(array.header.count == 1, site, ": expected one number, got the shape ",
        io::npy_shape_text(array.header.shape));
  switch (array.header.type) {
    case NpyType::int64:
      return element_at<std::int64_t>(array.elements, 0);
    case NpyType::int32:
      return element_at<std::int32_t>(array.elements, 0);
    case NpyType::int8:
      return element_at<std::int8_t>(array.elements, 0);
    case NpyType::uint8:
      return element_at<std::uint8_t>(array.elements, 0);
    default:
      refuse_type(array, "<i8, <i4, |i1 or |u1", site);
  }
}

void deviations_of(std::span<float> log_variances) {
  for (float& value : log_variances) {
    // Written so that what is no number stays none.
    const float low = value < -30.0f ? -30.0f : value;
    const float clamped = low > 20.0f ? 20.0f : low;
    value = static_cast<float>(exponential(0.5 * static_cast<double>(clamped)));
  }
}

void add_drawn(std::span<float> values, std::span<const float> spread, std::span<const float> noise) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += spread[i] * noise[i];
}

bool scale_latent(std::span<float> values, float shift, float scale) {
  std::uint32_t bad = 0;  // of integers, so that the loop is vectorised
  for (float& value : values) {
    value = (value - shift) * scale;
    bad |= (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return bad == 0;
}

LatentSample split_moments(const io::NpyArray& array, std::string_view site) {
  LatentSample sample;
  sample.shape = array.header.shape;
  check(!sample.shape.empty() && sample.shape[0] % 2 == 0, site,
        ": expected two halves of channels, mean and what is after it, got the shape ",
        io::npy_shape_text(array.header.shape));
  sample.shape[0] /= 2;
  sample.mean = floats_of(array, site);
  const auto middle = sample.mean.begin() + std::ssize(sample.mean) / 2;
  sample.spread.assign(middle, sample.mean.end());
  sample.mean.erase(middle, sample.mean.end());
  return sample;
}

double deviation_of(std::span<const float> values) {
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double count = static_cast<double>(std::max<std::size_t>(values.size(), 1)), mean = sum / count;
  return std::sqrt(std::max(0.0, squares / count - mean * mean));
}

}  // namespace pom::data
