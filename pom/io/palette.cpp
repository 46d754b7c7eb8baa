#include "pom/io/palette.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

namespace pom::io::detail {
namespace {

// A colour of the picture and how many pixels have it.
struct Colour {
  std::uint8_t rgb[3];
  std::int64_t count;
};

std::uint32_t key_of(const std::uint8_t* rgb) {
  return static_cast<std::uint32_t>(rgb[0]) << 16 | static_cast<std::uint32_t>(rgb[1]) << 8 | rgb[2];
}

// Sorted, so that nothing depends on the order of a hash table.
std::vector<Colour> colours_of(std::span<const std::uint8_t> rgb) {
  std::unordered_map<std::uint32_t, std::int64_t> counts;
  for (std::size_t i = 0; i + 2 < rgb.size(); i += 3) ++counts[key_of(&rgb[i])];
  std::vector<Colour> colours;
  colours.reserve(counts.size());
  for (const auto& [key, count] : counts)
    colours.push_back({{static_cast<std::uint8_t>(key >> 16), static_cast<std::uint8_t>(key >> 8),
                        static_cast<std::uint8_t>(key)},
                       count});
  std::ranges::sort(colours, {}, [](const Colour& c) { return key_of(c.rgb); });
  return colours;
}

struct Box {
  std::size_t first, last;  // of the colours
  int axis = 0;             // along which they spread most
  double error = 0;         // squared, along that axis
};

struct Moments {
  double count = 0, sum[3] = {}, squares[3] = {};

  void add(const Colour& colour) {
    const auto n = static_cast<double>(colour.count);
    count += n;
    for (int c = 0; c < 3; ++c) {
      const double v = colour.rgb[c];
      sum[c] += n * v;
      squares[c] += n * v * v;
    }
  }
  double spread(int c) const { return count > 0 ? squares[c] - sum[c] * sum[c] / count : 0; }
};

Moments moments_of(std::span<const Colour> colours) {
  Moments m;
  for (const Colour& colour : colours) m.add(colour);
  return m;
}

Box box_of(std::span<const Colour> all, std::size_t first, std::size_t last) {
  const Moments m = moments_of(all.subspan(first, last - first));
  Box box{first, last};
  for (int c = 0; c < 3; ++c)
    if (m.spread(c) > box.error) box.axis = c, box.error = m.spread(c);
  return box;
}

// Where to cut along the axis so that both sides together spread least. Sorts the box.
std::size_t best_cut(std::vector<Colour>& all, const Box& box) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(box.first),
             end = all.begin() + static_cast<std::ptrdiff_t>(box.last);
  const int axis = box.axis;
  std::stable_sort(begin, end,
                   [axis](const Colour& a, const Colour& b) { return a.rgb[axis] < b.rgb[axis]; });
  const Moments whole = moments_of(std::span(all).subspan(box.first, box.last - box.first));
  double count = 0, sum = 0, most = -1;
  std::size_t cut = box.first + 1;
  for (std::size_t i = box.first; i + 1 < box.last; ++i) {
    count += static_cast<double>(all[i].count);
    sum += static_cast<double>(all[i].count) * all[i].rgb[axis];
    const double rest = whole.sum[axis] - sum;
    const double gain = sum * sum / count + rest * rest / (whole.count - count);
    if (all[i].rgb[axis] != all[i + 1].rgb[axis] && gain > most) most = gain, cut = i + 1;
  }
  return cut;
}

Rgb mean_of(const Moments& m) {
  const auto mean = [&](int c) { return static_cast<std::uint8_t>(m.sum[c] / m.count + 0.5); };
  return {mean(0), mean(1), mean(2)};
}

std::vector<Rgb> cut_palette(std::vector<Colour> colours, std::size_t most) {
  std::vector<Box> boxes = {box_of(colours, 0, colours.size())};
  while (boxes.size() < most) {
    const auto worst = std::ranges::max_element(boxes, {}, &Box::error);
    if (worst->error <= 0) break;
    const std::size_t cut = best_cut(colours, *worst);
    const Box right = box_of(colours, cut, worst->last);
    *worst = box_of(colours, worst->first, cut);
    boxes.push_back(right);
  }
  std::vector<Rgb> palette;
  for (const Box& box : boxes)
    palette.push_back(mean_of(moments_of(std::span(colours).subspan(box.first, box.last - box.first))));
  return palette;
}

std::uint8_t nearest(std::span<const Rgb> palette, const std::uint8_t* rgb) {
  int best = 0, least = std::numeric_limits<int>::max();
  for (std::size_t i = 0; i < palette.size(); ++i) {
    const int r = palette[i].red - rgb[0], g = palette[i].green - rgb[1], b = palette[i].blue - rgb[2];
    const int distance = r * r + g * g + b * b;
    if (distance < least) least = distance, best = static_cast<int>(i);
  }
  return static_cast<std::uint8_t>(best);
}

}  // namespace

Indexed to_palette(std::span<const std::uint8_t> rgb, int most) {
  const std::vector<Colour> colours = colours_of(rgb);
  Indexed result;
  if (std::ssize(colours) <= most) {
    for (const Colour& c : colours) result.palette.push_back({c.rgb[0], c.rgb[1], c.rgb[2]});
  } else {
    result.palette = cut_palette(colours, static_cast<std::size_t>(most));
  }
  std::unordered_map<std::uint32_t, std::uint8_t> index;
  index.reserve(colours.size());
  for (const Colour& c : colours) index[key_of(c.rgb)] = nearest(result.palette, c.rgb);
  result.pixels.reserve(rgb.size() / 3);
  for (std::size_t i = 0; i + 2 < rgb.size(); i += 3) result.pixels.push_back(index[key_of(&rgb[i])]);
  return result;
}

}  // namespace pom::io::detail
