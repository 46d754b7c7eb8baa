// The renderer: signed distances of shapes of radius 1 (y upwards, negative inside), and the share of each
// pixel that they cover. W x H pixels; lengths in units of the shorter side.
//
// The same bytes on every machine: floats with sums, products, quotients, square roots and comparisons alone,
// in one order, without contraction (CMakeLists.txt); what else is needed comes from exact_math.h. Rows are
// plain loops without branches, for the compiler to vectorise.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "pom/base/error.h"
#include "pom/data/exact_math.h"
#include "pom/data/layers.h"
#include "pom/data/shape_cover.h"
#include "pom/data/shapes.h"
#include "pom/io/image.h"

namespace pom::data {
namespace {

#define POM_INLINE inline __attribute__((always_inline))

// ---- distances

POM_INLINE float greater(float a, float b) {
  return a > b ? a : b;
}

POM_INLINE float less(float a, float b) {
  return a < b ? a : b;
}

POM_INLINE float box(float x, float y, float half_w, float half_h) {
  return greater(std::fabs(x) - half_w, std::fabs(y) - half_h);
}

POM_INLINE float disc(float x, float y, float radius) {
  return std::sqrt(x * x + y * y) - radius;
}

constexpr float root_half = 0.70710678f, root_3_4 = 0.86602540f;  // √½ and √¾

struct Circle {
  static POM_INLINE float distance(float x, float y) { return disc(x, y, 0.92f); }
};

struct Square {
  static POM_INLINE float distance(float x, float y) { return box(x, y, 0.72f, 0.72f); }
};

// One corner up: the greatest distance from the three sides.
struct Triangle {
  static POM_INLINE float distance(float x, float y) {
    const float up = y + 0.15f;
    return greater(root_3_4 * std::fabs(x) + 0.5f * up, -up) - 0.5f;
  }
};

// Five tips at radius 1. Folded along its axes into the half sector right of the upper tip, where one line
// from that tip to an inner corner at radius 0.42 bounds it.
struct Star {
  static POM_INLINE float distance(float x, float y) {
    constexpr float cos_36 = 0.80901699f, sin_36 = 0.58778525f;
    x = std::fabs(x);
    const float right = 2 * greater(cos_36 * x - sin_36 * y, 0.0f);
    x -= right * cos_36;
    y += right * sin_36;
    const float left = 2 * greater(-cos_36 * x - sin_36 * y, 0.0f);
    x = std::fabs(x + left * cos_36);
    y += left * sin_36;
    constexpr float along = 0.42f * cos_36 - 1, across = 0.42f * sin_36, length = 0.70485866f;
    return ((y - 1) * across - x * along) / length;
  }
};

// A square on its corner and a disc on each of its two upper sides.
struct Heart {
  static POM_INLINE float distance(float x, float y) {
    constexpr float half = 0.56f, centre = half * root_half;
    const float up = y + 0.14f;
    const float square = box((x + up) * root_half, (x - up) * root_half, half, half);
    return less(square, disc(std::fabs(x) - centre, up - centre, half));
  }
};

struct Ring {
  static POM_INLINE float distance(float x, float y) { return std::fabs(disc(x, y, 0.72f)) - 0.22f; }
};

struct Cross {
  static POM_INLINE float distance(float x, float y) {
    return less(box(x, y, 0.92f, 0.29f), box(x, y, 0.29f, 0.92f));
  }
};

struct Moon {
  static POM_INLINE float distance(float x, float y) {
    return greater(disc(x, y, 0.95f), -disc(x - 0.5f, y - 0.12f, 0.72f));
  }
};

struct Diamond {
  static POM_INLINE float distance(float x, float y) {
    constexpr float half_w = 0.62f, length = 1.17660529f;  // of a side
    return (std::fabs(x) + half_w * std::fabs(y) - half_w) / length;
  }
};

// One corner up: the greatest distance from the three pairs of sides.
struct Hexagon {
  static POM_INLINE float distance(float x, float y) {
    const float across = std::fabs(x);
    return greater(across, 0.5f * across + root_3_4 * std::fabs(y)) - 0.98f * root_3_4;
  }
};

// ---- coverage

// Where the shape stands, turned so that (x, y) of a pixel at (right, up) are of the shape at radius 1.
struct Pose {
  float x_right, x_up, x_0;
  float y_right, y_up, y_0;
  float x_step, y_step;  // to the middle of a pixel's upper right quarter; at right angles to the lower right
  float scale;           // quarters in a radius
};

using CoverRow = void (*)(const Pose& pose, float up, const float* right, std::int64_t count, float* cover);

// The mean of the four quarters of a pixel. Of a quarter, a straight edge covers about what its distance from
// the centre says; whole pixels would be too coarse for tips and horns.
template <class Kind>
void cover_row(const Pose& pose, float up, const float* right, std::int64_t count, float* cover) {
  const float x_0 = pose.x_up * up + pose.x_0, y_0 = pose.y_up * up + pose.y_0;
  const auto quarter = [&](float x, float y) __attribute__((always_inline)) {
    return less(greater(0.5f - Kind::distance(x, y) * pose.scale, 0.0f), 1.0f);
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = pose.x_right * right[i] + x_0, y = pose.y_right * right[i] + y_0;
    const float a = quarter(x + pose.x_step, y + pose.y_step) + quarter(x - pose.x_step, y - pose.y_step);
    const float b = quarter(x + pose.y_step, y - pose.x_step) + quarter(x - pose.y_step, y + pose.x_step);
    cover[i] = 0.25f * (a + b);
  }
}

constexpr std::array<CoverRow, 10> cover_rows = {
    cover_row<Circle>, cover_row<Square>, cover_row<Triangle>, cover_row<Star>,    cover_row<Heart>,
    cover_row<Ring>,   cover_row<Cross>,  cover_row<Moon>,     cover_row<Diamond>, cover_row<Hexagon>,
};

template <class Kind>
float distance_of(float x, float y) {
  return Kind::distance(x, y);
}

using Distance = float (*)(float x, float y);
constexpr std::array<Distance, 10> distances = {
    distance_of<Circle>,  distance_of<Square>,  distance_of<Triangle>, distance_of<Star>,
    distance_of<Heart>,   distance_of<Ring>,    distance_of<Cross>,    distance_of<Moon>,
    distance_of<Diamond>, distance_of<Hexagon>,
};

Pose pose_of(const Shape& shape, float unit) {
  const exact::Direction turn = exact::direction(shape.angle);
  const auto c = static_cast<float>(turn.cosine) / shape.radius;
  const auto s = static_cast<float>(turn.sine) / shape.radius;
  return {.x_right = c,
          .x_up = s,
          .x_0 = -(c * shape.x + s * shape.y),
          .y_right = -s,
          .y_up = c,
          .y_0 = s * shape.x - c * shape.y,
          .x_step = (c + s) / (4 * unit),
          .y_step = (c - s) / (4 * unit),
          .scale = 2 * shape.radius * unit};
}

// ---- the ground

// sin(2πt) within 1e-6, for |t| < 2^20.
POM_INLINE float wave(float t) {
  constexpr float shift = 12582912.0f;  // 1.5 x 2^23: adding it rounds to a whole number
  const float r = t - ((t + shift) - shift);
  const float near = less(greater(r, -0.5f - r), 0.5f - r);  // |near| <= 1/4 with the same sine
  const float q = near * near;
  float sum = 39.760722f;
  sum = sum * q - 76.581285f;
  sum = sum * q + 81.602481f;
  sum = sum * q - 41.341681f;
  sum = sum * q + 6.2831853f;
  return sum * near;
}

// sin and cos of 2π·t[i]: with those of columns and rows, a wave across the picture is two products a pixel.
struct Waves {
  std::vector<float> sine, cosine;

  Waves(std::span<const float> places, float cycles) : sine(places.size()), cosine(places.size()) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      const float t = places[i] * cycles;
      sine[i] = wave(t);
      cosine[i] = wave(t + 0.25f);
    }
  }
};

POM_INLINE float unit_range(float v) {
  return less(greater(v, 0.0f), 1.0f);
}

// Rows of the background, three channels each. What a kind does not need stays empty.
class Ground {
 public:
  Ground(const Shape& shape, std::span<const float> right, std::span<const float> up)
      : shape_(shape), right_(right), up_(up), height_(right.size()) {
    const exact::Direction way = exact::direction(shape.ground_angle);
    cosine_ = static_cast<float>(way.cosine);
    sine_ = static_cast<float>(way.sine);
    for (std::vector<float>& channel : row_) channel.resize(right.size());
    for (int c = 0; c < 3; ++c) std::fill(row_[c].begin(), row_[c].end(), unit_range(shape.ground[0][c]));
    if (shape.background == 2) make_waves();
  }

  bool plain() const { return shape_.background == 0; }
  const float* row(int channel) const { return row_[channel].data(); }

  void go_to(std::size_t y) {
    if (shape_.background == 1) grade(up_[y]);
    if (shape_.background == 2) texture(y);
  }

 private:
  void make_waves() {
    const float c = shape_.ground_cycles;
    waves_.reserve(4);
    waves_.emplace_back(right_, c * cosine_);
    waves_.emplace_back(up_, c * sine_);
    if (!shape_.ground_crossed) return;
    waves_.emplace_back(right_, -c * sine_);
    waves_.emplace_back(up_, c * cosine_);
  }

  void grade(float up) {
    const float start = up * sine_ + 0.5f;
    float* mix = height_.data();
    for (std::size_t i = 0; i < right_.size(); ++i) mix[i] = unit_range(right_[i] * cosine_ + start);
    for (int c = 0; c < 3; ++c) {
      const float from = shape_.ground[0][c], change = shape_.ground[1][c] - from;
      float* out = row_[c].data();
      for (std::size_t i = 0; i < right_.size(); ++i) out[i] = unit_range(from + change * mix[i]);
    }
  }

  void texture(std::size_t y) {
    const float* s = waves_[0].sine.data();
    const float* k = waves_[0].cosine.data();
    const float row_s = waves_[1].sine[y], row_k = waves_[1].cosine[y];
    float* h = height_.data();
    for (std::size_t i = 0; i < right_.size(); ++i) h[i] = 0.05f * (s[i] * row_k + k[i] * row_s);
    if (shape_.ground_crossed) cross(y);
    for (int c = 0; c < 3; ++c) {
      const float tint = shape_.ground[0][c];
      float* out = row_[c].data();
      for (std::size_t i = 0; i < right_.size(); ++i) out[i] = unit_range(tint + h[i]);
    }
  }

  void cross(std::size_t y) {
    const float* s = waves_[2].sine.data();
    const float* k = waves_[2].cosine.data();
    const float row_s = waves_[3].sine[y], row_k = waves_[3].cosine[y];
    float* h = height_.data();
    for (std::size_t i = 0; i < right_.size(); ++i) h[i] *= s[i] * row_k + k[i] * row_s;
  }

  const Shape& shape_;
  std::span<const float> right_, up_;
  float cosine_, sine_;
  std::array<std::vector<float>, 3> row_;
  std::vector<float> height_;  // of a row: how far along, or of the waves
  std::vector<Waves> waves_;   // along: of columns, of rows; across: of columns, of rows
};

// ---- pixels

// Centres of n pixels from the middle, in units.
std::vector<float> centres(std::int64_t n, std::int64_t unit, float sign) {
  std::vector<float> places(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    places[static_cast<std::size_t>(i)] =
        sign * static_cast<float>(2 * i + 1 - n) / static_cast<float>(2 * unit);
  return places;
}

POM_INLINE std::uint8_t to_byte(float v) {
  return static_cast<std::uint8_t>(static_cast<std::int32_t>(v * 255.0f + 0.5f));
}

void put_ground(const Ground& ground, int channel, std::int64_t width, std::uint8_t* out) {
  const float* row = ground.row(channel);
  if (ground.plain()) {
    std::memset(out, to_byte(row[0]), static_cast<std::size_t>(width));
    return;
  }
  for (std::int64_t i = 0; i < width; ++i) out[i] = to_byte(row[i]);
}

void blend(const float* ground, const float* cover, float colour, std::int64_t count, std::uint8_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = to_byte(ground[i] + (colour - ground[i]) * cover[i]);
}

struct Span {
  std::int64_t first = 0, last = 0;  // pixels [first, last)
};

// The pixels whose centres are at most `reach` from `centre`. Places ascend or descend.
Span near(std::span<const float> places, float centre, float reach) {
  Span span{std::ssize(places), 0};
  for (std::int64_t i = 0; i < std::ssize(places); ++i)
    if (std::fabs(places[static_cast<std::size_t>(i)] - centre) <= reach) {
      span.first = std::min(span.first, i);
      span.last = i + 1;
    }
  return span;
}

// No shape reaches 1.09 radii; two pixels more hold the soft edge of the sharpest tip.
float reach_of(const Shape& shape, std::int64_t unit) {
  return 1.09f * shape.radius + 2 / static_cast<float>(unit);
}

void check_shape(const Shape& shape) {
  check(shape.kind >= 0 && shape.kind < std::ssize(cover_rows), "draw_shape: kind: expected 0 to ",
        cover_rows.size() - 1, ", got ", shape.kind);
  check(shape.background >= 0 && shape.background < std::ssize(background_names()),
        "draw_shape: background: expected 0 to ", background_names().size() - 1, ", got ", shape.background);
  check(shape.radius > 0, "draw_shape: radius: expected above 0, got ", shape.radius);
}

}  // namespace

// ---- one ground, many shapes

struct Layers::Impl {
  std::int64_t width, height, unit;
  std::vector<float> right, up;
  std::vector<float> ground, planes;  // (3, H, W)
  std::vector<float> cover;           // of a row

  Impl(const Shape& shape, std::int64_t w, std::int64_t h)
      : width(w), height(h), unit(std::min(w, h)), right(centres(w, unit, 1)), up(centres(h, unit, -1)) {
    const auto pixels = static_cast<std::size_t>(w * h);
    ground.resize(3 * pixels);
    cover.resize(static_cast<std::size_t>(w));
    Ground rows(shape, right, up);
    for (std::int64_t y = 0; y < h; ++y) {
      rows.go_to(static_cast<std::size_t>(y));
      for (int c = 0; c < 3; ++c) std::copy_n(rows.row(c), w, ground.data() + (c * h + y) * w);
    }
    planes = ground;
  }

  void add_once(const Shape& shape) {
    const float reach = reach_of(shape, unit);
    const Span columns = near(right, shape.x, reach), rows = near(up, shape.y, reach);
    const std::int64_t count = columns.last - columns.first;
    if (count <= 0 || rows.last <= rows.first) return;
    const Pose pose = pose_of(shape, static_cast<float>(unit));
    const CoverRow cover_row = cover_rows[static_cast<std::size_t>(shape.kind)];
    for (std::int64_t y = rows.first; y < rows.last; ++y) {
      cover_row(pose, up[static_cast<std::size_t>(y)], right.data() + columns.first, count, cover.data());
      for (int c = 0; c < 3; ++c) {
        float* line = planes.data() + (c * height + y) * width + columns.first;
        const float colour = shape.colour[c];
        for (std::int64_t i = 0; i < count; ++i)
          line[i] += (colour - line[i]) * cover[static_cast<std::size_t>(i)];
      }
    }
  }
};

Layers::Layers(const Shape& ground, std::int64_t width, std::int64_t height) {
  io::check_size("layers", width, height);
  check_shape(ground);
  impl_ = std::make_unique<Impl>(ground, width, height);
}

Layers::~Layers() = default;
Layers::Layers(Layers&&) noexcept = default;

void Layers::clear() {
  std::copy(impl_->ground.begin(), impl_->ground.end(), impl_->planes.begin());
}

void Layers::add(const Shape& shape) {
  check_shape(shape);
  const auto unit = static_cast<float>(impl_->unit);
  const float w = static_cast<float>(impl_->width) / unit, h = static_cast<float>(impl_->height) / unit;
  const float reach = reach_of(shape, impl_->unit);
  for (int down = -1; down <= 1; ++down)
    for (int across = -1; across <= 1; ++across) {
      Shape copy = shape;
      copy.x += static_cast<float>(across) * w;
      copy.y += static_cast<float>(down) * h;
      if (std::fabs(copy.x) <= 0.5f * w + reach && std::fabs(copy.y) <= 0.5f * h + reach)
        impl_->add_once(copy);
    }
}

void Layers::put(std::uint8_t* out, std::int64_t stride) const {
  const std::int64_t pixels = impl_->width * impl_->height;
  for (std::int64_t c = 0; c < 3; ++c) {
    const float* plane = impl_->planes.data() + c * pixels;
    std::uint8_t* to = out + c * stride;
    for (std::int64_t i = 0; i < pixels; ++i) to[i] = to_byte(plane[i]);
  }
}

// ---- two shapes

float covered_share(const Shape& front, const Shape& rear) {
  check_shape(front);
  check_shape(rear);
  constexpr int grid = 24;
  const Pose poses[2] = {pose_of(rear, 1), pose_of(front, 1)};
  const Distance distance[2] = {distances[static_cast<std::size_t>(rear.kind)],
                                distances[static_cast<std::size_t>(front.kind)]};
  const auto in = [&](int which, float x, float y) {
    const Pose& pose = poses[which];
    return distance[which](pose.x_right * x + pose.x_up * y + pose.x_0,
                           pose.y_right * x + pose.y_up * y + pose.y_0) <= 0;
  };
  int inside = 0, covered = 0;
  for (int row = 0; row < grid; ++row)
    for (int column = 0; column < grid; ++column) {
      constexpr float half = 0.5f * (grid - 1);
      const float x = rear.x + 1.09f * rear.radius * (static_cast<float>(column) - half) / half;
      const float y = rear.y + 1.09f * rear.radius * (static_cast<float>(row) - half) / half;
      if (!in(0, x, y)) continue;
      ++inside;
      covered += in(1, x, y) ? 1 : 0;
    }
  return static_cast<float>(covered) / static_cast<float>(std::max(inside, 1));
}

// ---- one picture

void draw_shape(const Shape& shape, std::int64_t width, std::int64_t height, std::span<std::uint8_t> out) {
  io::check_size("draw_shape", width, height);
  check(out.size() == static_cast<std::size_t>(3 * width * height), "draw_shape: out: expected ",
        3 * width * height, " bytes, got ", out.size());
  check_shape(shape);
  const std::int64_t unit = std::min(width, height);
  const std::vector<float> right = centres(width, unit, 1), up = centres(height, unit, -1);
  const Pose pose = pose_of(shape, static_cast<float>(unit));
  const CoverRow cover_row = cover_rows[static_cast<std::size_t>(shape.kind)];
  const float reach = reach_of(shape, unit);
  const Span columns = near(right, shape.x, reach), rows = near(up, shape.y, reach);
  const std::int64_t count = std::max<std::int64_t>(columns.last - columns.first, 0);
  std::vector<float> cover(static_cast<std::size_t>(count));
  Ground ground(shape, right, up);
  for (std::int64_t y = 0; y < height; ++y) {
    ground.go_to(static_cast<std::size_t>(y));
    const bool crossed = y >= rows.first && y < rows.last && count > 0;
    if (crossed)
      cover_row(pose, up[static_cast<std::size_t>(y)], right.data() + columns.first, count, cover.data());
    for (int c = 0; c < 3; ++c) {
      std::uint8_t* line = out.data() + (c * height + y) * width;
      put_ground(ground, c, width, line);
      if (crossed)
        blend(ground.row(c) + columns.first, cover.data(), shape.colour[c], count, line + columns.first);
    }
  }
}

// ---- how much of each pixel

void cover_shape(const Shape& shape, std::int64_t width, std::int64_t height, const PixelBox& box, float soft,
                 std::span<float> out) {
  check_shape(shape);
  check(box.left >= 0 && box.top >= 0 && box.left + box.width <= width && box.top + box.height <= height &&
            std::ssize(out) == box.pixels(),
        "cover_shape: box: expected one within ", width, "x", height, ", got ", box.width, "x", box.height,
        " from ", box.left, ", ", box.top, " and ", out.size(), " numbers");
  const std::int64_t unit = std::min(width, height);
  const std::vector<float> right = centres(width, unit, 1), up = centres(height, unit, -1);
  Pose pose = pose_of(shape, static_cast<float>(unit));
  pose.scale /= soft;
  const CoverRow cover_row = cover_rows[static_cast<std::size_t>(shape.kind)];
  for (std::int64_t y = 0; y < box.height; ++y)
    cover_row(pose, up[static_cast<std::size_t>(box.top + y)], right.data() + box.left, box.width,
              out.data() + y * box.width);
}

}  // namespace pom::data
