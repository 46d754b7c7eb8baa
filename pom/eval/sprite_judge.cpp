// Four steps: the ground (a slope of colour fitted to what most pixels show, then what each pixel shows while
// the sprite is elsewhere), the sprite's colour and how much of each pixel it covers, the shape whose
// drawings are nearest to that, and its centre in each frame. P pixels in a frame.
#include "pom/eval/sprite_judge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/data/layers.h"
#include "pom/data/shapes.h"
#include "pom/eval/shape_forms.h"

namespace pom::eval {
namespace {

using std::numbers::pi;
using Colour = std::array<float, 3>;

struct Clip {
  std::int64_t frames, height, width, pixels;
  std::vector<float> samples;  // (3, F, P), 0 to 1

  float at(std::int64_t channel, std::int64_t frame, std::int64_t pixel) const {
    return samples[static_cast<std::size_t>((channel * frames + frame) * pixels + pixel)];
  }
  double unit() const { return static_cast<double>(std::min(width, height)); }
};

Clip open_clip(const at::Tensor& clip) {
  check(clip.dim() == 4 && clip.scalar_type() == at::kByte && clip.size(0) == 3 && clip.size(1) >= 2 &&
            clip.size(2) >= 8 && clip.size(3) >= 8,
        "judge_sprite: clip: expected uint8 (3, F, H, W) of at least 2 frames of 8x8, got ",
        clip.scalar_type(), " ", clip.sizes());
  const at::Tensor bytes = clip.contiguous();
  Clip opened{clip.size(1), clip.size(2), clip.size(3), clip.size(2) * clip.size(3), {}};
  const auto* data = bytes.data_ptr<std::uint8_t>();
  opened.samples.resize(static_cast<std::size_t>(bytes.numel()));
  for (std::size_t i = 0; i < opened.samples.size(); ++i)
    opened.samples[i] = static_cast<float>(data[i]) / 255;
  return opened;
}

float median(std::vector<float>& values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// ---- the ground

using Ground = std::vector<Colour>;  // P

// a + b·x + c·y by weighted least squares, x and y from -1 to 1.
std::array<double, 3> slope_of(const Clip& clip, const std::vector<float>& values,
                               const std::vector<double>& weights) {
  double m[3][4] = {};
  for (std::int64_t p = 0; p < clip.pixels; ++p) {
    const auto i = static_cast<std::size_t>(p);
    const double basis[3] = {
        1, 2.0 * static_cast<double>(p % clip.width) / static_cast<double>(clip.width) - 1,
        2.0 * static_cast<double>(p / clip.width) / static_cast<double>(clip.height) - 1};
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 3; ++c) m[r][c] += weights[i] * basis[r] * basis[c];
      m[r][3] += weights[i] * basis[r] * values[i];
    }
  }
  for (int r = 0; r < 3; ++r) m[r][r] += 1e-6;
  for (int k = 0; k < 3; ++k)
    for (int r = 0; r < 3; ++r)
      if (r != k) {
        const double factor = m[r][k] / m[k][k];
        for (int c = k; c < 4; ++c) m[r][c] -= factor * m[k][c];
      }
  return {m[0][3] / m[0][0], m[1][3] / m[1][1], m[2][3] / m[2][2]};
}

// What most pixels show in the middle of the times: a sprite covers less than half of a picture.
Ground sloped_ground(const Clip& clip) {
  std::array<std::vector<float>, 3> shown;
  std::vector<float> values;
  Colour middle;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::int64_t p = 0; p < clip.pixels; ++p) {
      values.clear();
      for (std::int64_t f = 0; f < clip.frames; ++f)
        values.push_back(clip.at(static_cast<std::int64_t>(c), f, p));
      shown[c].push_back(median(values));
    }
    values = shown[c];
    middle[c] = median(values);
  }
  Ground ground(static_cast<std::size_t>(clip.pixels), middle);
  std::vector<double> weights(ground.size());
  for (int round = 0; round < 8; ++round) {
    for (std::size_t p = 0; p < ground.size(); ++p) {
      double squares = 0;
      for (std::size_t c = 0; c < 3; ++c) squares += std::pow(shown[c][p] - ground[p][c], 2);
      weights[p] = 1 / std::pow(1 + squares / (0.08 * 0.08), 2);  // what is far away counts for nothing
    }
    for (std::size_t c = 0; c < 3; ++c) {
      const std::array<double, 3> slope = slope_of(clip, shown[c], weights);
      for (std::size_t p = 0; p < ground.size(); ++p) {
        const auto i = static_cast<std::int64_t>(p);
        const double x = 2.0 * static_cast<double>(i % clip.width) / static_cast<double>(clip.width) - 1,
                     y = 2.0 * static_cast<double>(i / clip.width) / static_cast<double>(clip.height) - 1;
        ground[p][c] = static_cast<float>(slope[0] + slope[1] * x + slope[2] * y);
      }
    }
  }
  return ground;
}

float distance(const Clip& clip, const Ground& ground, std::int64_t f, std::int64_t p) {
  float squares = 0;
  for (std::int64_t c = 0; c < 3; ++c) {
    const float d = clip.at(c, f, p) - ground[static_cast<std::size_t>(p)][static_cast<std::size_t>(c)];
    squares += d * d;
  }
  return std::sqrt(squares);
}

// ---- the sprite

// The middle colour of the pixels that stand out most; false where none does.
bool sprite_colour(const Clip& clip, const Ground& ground, Colour& colour) {
  std::vector<float> distances;
  for (std::int64_t f = 0; f < clip.frames; ++f)
    for (std::int64_t p = 0; p < clip.pixels; ++p) distances.push_back(distance(clip, ground, f, p));
  // A sprite's colour is farther from its ground, a texture nearer; so is the noise of most pixels.
  const float apart = std::max(0.18f, 2.5f * median(distances));
  std::erase_if(distances, [apart](float d) { return d <= apart; });
  if (std::ssize(distances) < clip.frames * std::max<std::int64_t>(4, clip.pixels / 200)) return false;
  const float most = std::max(apart, 0.8f * median(distances));  // edges, which are mixtures, lie nearer
  for (std::size_t c = 0; c < 3; ++c) {
    std::vector<float> values;
    for (std::int64_t f = 0; f < clip.frames; ++f)
      for (std::int64_t p = 0; p < clip.pixels; ++p)
        if (distance(clip, ground, f, p) > most)
          values.push_back(clip.at(static_cast<std::int64_t>(c), f, p));
    colour[c] = median(values);
  }
  return true;
}

using Cover = std::vector<float>;  // (F, P), 0 to 1

Cover cover_of(const Clip& clip, const Ground& ground, const Colour& colour) {
  Cover cover(static_cast<std::size_t>(clip.frames * clip.pixels));
  for (std::int64_t p = 0; p < clip.pixels; ++p) {
    const Colour& behind = ground[static_cast<std::size_t>(p)];
    float length = 0;
    for (std::size_t c = 0; c < 3; ++c) length += (colour[c] - behind[c]) * (colour[c] - behind[c]);
    for (std::int64_t f = 0; f < clip.frames; ++f) {
      float along = 0;
      for (std::size_t c = 0; c < 3; ++c)
        along += (clip.at(static_cast<std::int64_t>(c), f, p) - behind[c]) * (colour[c] - behind[c]);
      cover[static_cast<std::size_t>(f * clip.pixels + p)] =
          std::clamp(along / std::max(length, 1e-3f), 0.0f, 1.0f);
    }
  }
  return cover;
}

// Where the sprite is elsewhere for a while, a pixel's ground is what it shows then.
void sharpen_ground(const Clip& clip, const Cover& cover, Ground& ground) {
  std::vector<std::int64_t> free;
  std::vector<float> values;
  for (std::int64_t p = 0; p < clip.pixels; ++p) {
    free.clear();
    for (std::int64_t f = 0; f < clip.frames; ++f)
      if (cover[static_cast<std::size_t>(f * clip.pixels + p)] < 0.25f) free.push_back(f);
    if (std::ssize(free) < 2) continue;
    for (std::size_t c = 0; c < 3; ++c) {
      values.clear();
      for (const std::int64_t f : free) values.push_back(clip.at(static_cast<std::int64_t>(c), f, p));
      ground[static_cast<std::size_t>(p)][c] = median(values);
    }
  }
}

std::int64_t nearest_hue(const Colour& colour) {
  std::int64_t best = 0;
  double least = 9;
  for (std::int64_t hue = 0; hue < std::ssize(data::hue_names()); ++hue) {
    const std::array<float, 3> named = data::hue_colour(hue);
    double squares = 0;
    for (std::size_t c = 0; c < 3; ++c) squares += std::pow(named[c] - colour[c], 2);
    if (squares < least) least = squares, best = hue;
  }
  return best;
}

// ---- its shape

// The centre of what is covered, on a picture that closes upon itself: a mean of angles, as left and right
// meet.
Mass mass_of(const Clip& clip, std::span<const float> cover) {
  double cx = 0, sx = 0, cy = 0, sy = 0, sum = 0;
  for (std::int64_t p = 0; p < clip.pixels; ++p) {
    const double w = cover[static_cast<std::size_t>(p)];
    if (w < 0.15) continue;
    const double ax = 2 * pi * (static_cast<double>(p % clip.width) + 0.5) / static_cast<double>(clip.width),
                 ay = 2 * pi * (static_cast<double>(p / clip.width) + 0.5) / static_cast<double>(clip.height);
    cx += w * std::cos(ax), sx += w * std::sin(ax);
    cy += w * std::cos(ay), sy += w * std::sin(ay);
    sum += w;
  }
  // Then a plain mean around it, without the bias that a circle has.
  const double w = static_cast<double>(clip.width), h = static_cast<double>(clip.height);
  const double mx = std::atan2(sx, cx) / (2 * pi) * w, my = std::atan2(sy, cy) / (2 * pi) * h;
  double dx = 0, dy = 0;
  for (std::int64_t p = 0; p < clip.pixels; ++p) {
    const double weight = cover[static_cast<std::size_t>(p)];
    if (weight < 0.15) continue;
    dx += weight * std::remainder(static_cast<double>(p % clip.width) + 0.5 - mx, w);
    dy += weight * std::remainder(static_cast<double>(p / clip.width) + 0.5 - my, h);
  }
  if (sum == 0) return {};
  const double unit = clip.unit();
  return {(mx + dx / sum - w / 2) / unit, -(my + dy / sum - h / 2) / unit, sum / (unit * unit)};
}

class Matcher {
 public:
  explicit Matcher(const Clip& clip)
      : clip_(clip),
        layers_(stencil(0), clip.width, clip.height),
        drawn_(static_cast<std::size_t>(3 * clip.pixels)) {}

  struct Match {
    double error = 1e9, angle = 0;
  };

  // The best angle of a kind.
  Match match(std::int64_t kind, std::span<const float> cover, const Mass& mass) {
    Match best;
    if (!forms()[static_cast<std::size_t>(kind)].turns) return {error_of(fitted(kind, 0, mass), cover), 0};
    constexpr int coarse = 24;
    for (int i = 0; i < coarse; ++i) attempt(kind, 2 * pi * i / coarse, cover, mass, best);
    for (double step = pi / coarse; step > pi / 200; step /= 2) {
      const double around = best.angle;
      attempt(kind, around - step, cover, mass, best);
      attempt(kind, around + step, cover, mass, best);
    }
    return best;
  }

 private:
  void attempt(std::int64_t kind, double angle, std::span<const float> cover, const Mass& mass, Match& best) {
    const double error = error_of(fitted(kind, angle, mass), cover);
    if (error < best.error) best = {error, angle};
  }

  double error_of(const data::Shape& shape, std::span<const float> cover) {
    layers_.clear();
    layers_.add(shape);
    layers_.put(drawn_.data(), clip_.pixels);
    float sum = 0;
    for (std::size_t p = 0; p < cover.size(); ++p) {
      const float d = cover[p] - static_cast<float>(drawn_[p]) * (1.0f / 255);
      sum += d * d;
    }
    return sum;
  }

  const Clip& clip_;
  data::Layers layers_;
  std::vector<std::uint8_t> drawn_;
};

std::span<const float> frame_of(const Cover& cover, const Clip& clip, std::int64_t frame) {
  return std::span(cover).subspan(static_cast<std::size_t>(frame * clip.pixels),
                                  static_cast<std::size_t>(clip.pixels));
}

// The shape whose drawings are nearest over some frames, spread evenly.
std::int64_t find_kind(const Clip& clip, const Cover& cover, const std::vector<Mass>& masses,
                       Matcher& matcher) {
  const std::int64_t looked_at = std::min<std::int64_t>(clip.frames, 6);
  std::vector<double> errors(data::shape_names().size());
  for (std::int64_t i = 0; i < looked_at; ++i) {
    const std::int64_t frame = (2 * i + 1) * clip.frames / (2 * looked_at);
    const Mass& mass = masses[static_cast<std::size_t>(frame)];
    if (mass.area <= 0) continue;
    for (std::size_t kind = 0; kind < errors.size(); ++kind)
      errors[kind] +=
          matcher.match(static_cast<std::int64_t>(kind), frame_of(cover, clip, frame), mass).error /
          mass.area;
  }
  return std::ranges::min_element(errors) - errors.begin();
}

// ---- its way

struct Track {
  std::vector<double> x, y;
  double bends = 0;  // by how much its steps differ from the ones before
};

// The centres that a shape has at these angles, all of them turned by the same.
Track track_of(const Clip& clip, std::int64_t kind, const std::vector<Mass>& masses,
               const std::vector<double>& angles, double turned) {
  const double w = static_cast<double>(clip.width) / clip.unit(),
               h = static_cast<double>(clip.height) / clip.unit();
  Track track;
  double last_dx = 0, last_dy = 0;
  for (std::size_t f = 0; f < masses.size(); ++f) {
    const data::Shape shape = fitted(kind, angles[f] + turned, masses[f]);
    const double dx = f > 0 ? std::remainder(shape.x - track.x.back(), w) : 0,
                 dy = f > 0 ? std::remainder(shape.y - track.y.back(), h) : 0;
    if (f > 1) track.bends += std::hypot(dx - last_dx, dy - last_dy);
    last_dx = dx, last_dy = dy;
    track.x.push_back(shape.x);
    track.y.push_back(shape.y);
  }
  return track;
}

// What looks the same after a part of a turn has as many centres. One spin goes through the frames without
// jumps, and of the ways that are left the shortest is taken: a wrong centre circles around the right one.
Track best_track(const Clip& clip, std::int64_t kind, const std::vector<Mass>& masses,
                 std::vector<double> angles) {
  const int alike = forms()[static_cast<std::size_t>(kind)].alike;
  const double part = 2 * pi / alike;
  for (std::size_t f = 1; f < angles.size(); ++f)
    angles[f] = angles[f - 1] + std::remainder(angles[f] - angles[f - 1], part);
  Track best = track_of(clip, kind, masses, angles, 0);
  for (int i = 1; i < alike; ++i)
    if (Track other = track_of(clip, kind, masses, angles, i * part); other.bends < best.bends)
      best = std::move(other);
  return best;
}

std::int64_t eighth(double angle, std::int64_t of) {
  const auto step = static_cast<std::int64_t>(std::lround(angle / (pi / 4)));
  return ((step % of) + of) % of;
}

void follow(const Clip& clip, double fps, SpriteVerdict& verdict) {
  const double w = static_cast<double>(clip.width) / clip.unit(),
               h = static_cast<double>(clip.height) / clip.unit();
  double x = 0, y = 0, along = 0, across = 0, farthest = 0;
  for (std::size_t f = 1; f < verdict.x.size(); ++f) {
    const double dx = std::remainder(verdict.x[f] - verdict.x[f - 1], w),
                 dy = std::remainder(verdict.y[f] - verdict.y[f - 1], h);
    x += dx, y += dy;
    along += dx * dx - dy * dy, across += 2 * dx * dy;
    farthest = std::max(farthest, std::hypot(x, y));
  }
  const double seconds = static_cast<double>(verdict.x.size() - 1) / fps;
  verdict.speed = std::hypot(x, y) / seconds;
  verdict.moves = farthest > std::min(0.06 * seconds, 0.08);
  verdict.direction = eighth(std::atan2(y, x), 8);
  verdict.line = eighth(0.5 * std::atan2(across, along), 4);
}

}  // namespace

SpriteVerdict judge_sprite(const at::Tensor& tensor, double fps) {
  check(fps > 0, "judge_sprite: fps: expected above 0, got ", fps);
  const Clip clip = open_clip(tensor);
  Ground ground = sloped_ground(clip);
  SpriteVerdict verdict;
  Colour colour;
  if (!sprite_colour(clip, ground, colour)) return verdict;
  sharpen_ground(clip, cover_of(clip, ground, colour), ground);
  const Cover cover = cover_of(clip, ground, colour);
  std::vector<Mass> masses;
  for (std::int64_t f = 0; f < clip.frames; ++f) masses.push_back(mass_of(clip, frame_of(cover, clip, f)));
  verdict.found = true;
  verdict.hue = nearest_hue(colour);
  Matcher matcher(clip);
  verdict.kind = find_kind(clip, cover, masses, matcher);
  std::vector<Mass> seen;
  std::vector<double> angles;
  for (std::int64_t f = 0; f < clip.frames; ++f) {
    const Mass& mass = masses[static_cast<std::size_t>(f)];
    if (mass.area <= 0) continue;
    const Matcher::Match match = matcher.match(verdict.kind, frame_of(cover, clip, f), mass);
    seen.push_back(mass);
    angles.push_back(match.angle);
    verdict.misfit += match.error / (mass.area * clip.unit() * clip.unit());
  }
  if (seen.size() < 2) return {};
  verdict.misfit /= static_cast<double>(seen.size());
  Track track = best_track(clip, verdict.kind, seen, std::move(angles));
  verdict.x = std::move(track.x);
  verdict.y = std::move(track.y);
  follow(clip, fps, verdict);
  return verdict;
}

SpriteAgreement compare(const data::Sprite& sprite, const SpriteVerdict& verdict) {
  if (!verdict.found) return {};
  SpriteAgreement agreement{.kind = sprite.kind == verdict.kind && verdict.misfit <= worst_fit,
                            .hue = sprite.hue == verdict.hue,
                            .found = true,
                            .misfit = verdict.misfit};
  if (sprite.motion == data::Motion::stay) agreement.direction = !verdict.moves;
  if (sprite.motion == data::Motion::drift)
    agreement.direction = verdict.moves && sprite.direction == verdict.direction;
  if (sprite.motion == data::Motion::bounce)
    agreement.direction = verdict.moves && sprite.direction == verdict.line;
  return agreement;
}

std::vector<SpriteVerdict> judge_parts(const at::Tensor& clip, double fps, std::int64_t frames) {
  check(clip.dim() == 4 && frames >= 2 && frames <= clip.size(1), "judge_parts: frames: expected 2 to ",
        clip.dim() == 4 ? clip.size(1) : 0, ", got ", frames);
  const std::int64_t parts = (clip.size(1) + frames - 1) / frames;
  std::vector<SpriteVerdict> verdicts;
  for (std::int64_t i = 0; i < parts; ++i)
    verdicts.push_back(
        judge_sprite(clip.narrow(1, std::min(i * frames, clip.size(1) - frames), frames), fps));
  return verdicts;
}

void SpriteScores::add(const SpriteAgreement& agreement) {
  ++clips;
  kinds += agreement.kind ? 1 : 0;
  hues += agreement.hue ? 1 : 0;
  kinds_and_hues += agreement.kind && agreement.hue ? 1 : 0;
  directions += agreement.direction ? 1 : 0;
  if (!agreement.found) return;
  ++found;
  fitting += agreement.misfit <= worst_fit ? 1 : 0;
  misfits += agreement.misfit;
  worst_misfit = std::max(worst_misfit, agreement.misfit);
}

}  // namespace pom::eval
