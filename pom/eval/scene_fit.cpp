// Fits shapes to how much of each pixel should be covered: many angles as starts, then damped least squares
// (Levenberg and Marquardt) over place, size and angle; first with soft edges, which see farther, then with
// those of drawings.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "pom/eval/scene_parts.h"
#include "pom/eval/shape_forms.h"

namespace pom::eval::scenes {
namespace {

using std::numbers::pi;

constexpr float soft_edge = 4, softened = 2;  // of edges that see farther
constexpr double hardly_any = 0.1;            // a weight below which a pixel says nothing

// The mean of a pixel and those around it.
Plane blurred(const Plane& plane, const data::PixelBox& box) {
  Plane out(plane.size());
  for (std::int64_t y = 0; y < box.height; ++y)
    for (std::int64_t x = 0; x < box.width; ++x) {
      float sum = 0, count = 0;
      for (std::int64_t v = std::max<std::int64_t>(y - 1, 0); v <= std::min(y + 1, box.height - 1); ++v)
        for (std::int64_t u = std::max<std::int64_t>(x - 1, 0); u <= std::min(x + 1, box.width - 1); ++u)
          sum += plane[static_cast<std::size_t>(v * box.width + u)], count += 1;
      out[static_cast<std::size_t>(y * box.width + x)] = sum / count;
    }
  return out;
}

// The sum of `term` over n pixels, in lanes that the compiler may add at once.
template <class Term>
double sum_over(std::size_t n, Term term) {
  constexpr std::size_t lanes = 8;
  float sums[lanes] = {};
  std::size_t p = 0;
  for (; p + lanes <= n; p += lanes)
    for (std::size_t i = 0; i < lanes; ++i) sums[i] += term(p + i);
  for (; p < n; ++p) sums[0] += term(p);
  double sum = 0;
  for (const float lane : sums) sum += static_cast<double>(lane);
  return sum;
}

using Step = std::array<double, 4>;  // of x, y, radius and angle, in pixels along the edge

class Fitter {
 public:
  Fitter(const Picture& picture, const Target& target, float soft)
      : picture_(picture),
        target_(target),
        wanted_(soft > 1 ? blurred(target.cover, target.box) : target.cover),
        soft_(soft),
        cover_(target.cover.size()),
        moved_(target.cover.size()) {
    for (Plane& slope : slopes_) slope.resize(target.cover.size());
  }

  double error_of(const data::Shape& shape) {
    draw(shape, moved_);
    return error_of(moved_);
  }

  Fit improve(const data::Shape& from, int steps) {
    Fit fit{from, 0};
    draw(from, cover_);
    fit.error = error_of(cover_);
    double damping = 0.01;
    for (int step = 0; step < steps; ++step) {
      const double before = fit.error;
      find_slopes(fit.shape);
      if (!advance(fit, damping) || fit.error > 0.995 * before) break;
    }
    return fit;
  }

 private:
  void draw(const data::Shape& shape, Plane& out) const {
    data::cover_shape(shape, picture_.width, picture_.height, target_.box, soft_, out);
  }

  double error_of(const Plane& cover) const {
    const float *drawn = cover.data(), *wanted = wanted_.data(), *weight = target_.weight.data();
    return sum_over(cover.size(), [=](std::size_t p) {
      const float d = drawn[p] - wanted[p];
      return weight[p] * d * d;
    });
  }

  std::size_t parameters(const data::Shape& shape) const {
    return forms()[static_cast<std::size_t>(shape.kind)].turns ? 4 : 3;
  }

  data::Shape stepped(data::Shape shape, const Step& step) const {
    const auto unit = static_cast<double>(picture_.unit());
    shape.x += static_cast<float>(step[0] / unit);
    shape.y += static_cast<float>(step[1] / unit);
    shape.radius = std::clamp(shape.radius + static_cast<float>(step[2] / unit), 0.03f, 0.8f);
    shape.angle += static_cast<float>(step[3] / (static_cast<double>(shape.radius) * unit));
    return shape;
  }

  void find_slopes(const data::Shape& shape) {
    const double length = soft_ > 1 ? 0.5 : 0.2;
    for (std::size_t k = 0; k < parameters(shape); ++k) {
      Step step = {};
      step[k] = length;
      draw(stepped(shape, step), slopes_[k]);
      const auto scale = static_cast<float>(1 / length);
      for (std::size_t p = 0; p < cover_.size(); ++p) slopes_[k][p] = (slopes_[k][p] - cover_[p]) * scale;
    }
  }

  // One step downwards, damped until it is one; false where there is none.
  bool advance(Fit& fit, double& damping) {
    const std::size_t n = parameters(fit.shape);
    double normal[4][5] = {};
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t c = r; c < n; ++c) normal[r][c] = normal[c][r] = weighted(slopes_[r], slopes_[c]);
      const float *slope = slopes_[r].data(), *drawn = cover_.data(), *wanted = wanted_.data(),
                  *weight = target_.weight.data();
      normal[r][4] = sum_over(cover_.size(),
                              [=](std::size_t p) { return weight[p] * slope[p] * (wanted[p] - drawn[p]); });
    }
    for (int attempt = 0; attempt < 3; ++attempt, damping *= 8) {
      const data::Shape next = stepped(fit.shape, solved(normal, n, damping));
      draw(next, moved_);
      const double error = error_of(moved_);
      if (error >= fit.error) continue;
      fit = {next, error};
      std::swap(cover_, moved_);
      damping = std::max(damping / 8, 1e-4);
      return true;
    }
    return false;
  }

  double weighted(const Plane& a, const Plane& b) const {
    const float *one = a.data(), *other = b.data(), *weight = target_.weight.data();
    return sum_over(a.size(), [=](std::size_t p) { return weight[p] * one[p] * other[p]; });
  }

  static Step solved(const double (&normal)[4][5], std::size_t n, double damping) {
    double m[4][5];
    std::copy(&normal[0][0], &normal[0][0] + 20, &m[0][0]);
    for (std::size_t k = 0; k < n; ++k) m[k][k] += damping * m[k][k] + 1e-3;
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t r = 0; r < n; ++r)
        if (r != k) {
          const double factor = m[r][k] / m[k][k];
          for (std::size_t c = k; c < 5; ++c) m[r][c] -= factor * m[k][c];
        }
    constexpr double farthest = 3;
    Step step = {};
    for (std::size_t k = 0; k < n; ++k) step[k] = std::clamp(m[k][4] / m[k][k], -farthest, farthest);
    return step;
  }

  const Picture& picture_;
  const Target& target_;
  const Plane wanted_;
  const float soft_;
  Plane cover_, moved_;
  std::array<Plane, 4> slopes_;
};

// ---- where to begin

// The mass of what is seen; and, where something may hide a part, of what is within its reach as well.
std::vector<Mass> masses_of(const Picture& picture, const Target& target) {
  const data::PixelBox& box = target.box;
  double x = 0, y = 0, sum = 0, farthest = 0;
  const auto each = [&](auto&& visit) {
    for (std::int64_t p = 0; p < box.pixels(); ++p)
      visit(static_cast<double>(p % box.width) + 0.5, static_cast<double>(p / box.width) + 0.5,
            static_cast<double>(target.cover[static_cast<std::size_t>(p)]),
            static_cast<double>(target.weight[static_cast<std::size_t>(p)]));
  };
  const auto mass = [&] {
    const auto unit = static_cast<double>(picture.unit());
    return Mass{(static_cast<double>(box.left) + x / sum - static_cast<double>(picture.width) / 2) / unit,
                -(static_cast<double>(box.top) + y / sum - static_cast<double>(picture.height) / 2) / unit,
                sum / (unit * unit)};
  };
  each([&](double px, double py, double cover, double weight) {
    if (weight < hardly_any || cover < 0.15) return;
    x += cover * px, y += cover * py, sum += cover;
  });
  if (sum < 1) return {};
  std::vector<Mass> masses = {mass()};
  const double seen = sum, middle_x = x / sum, middle_y = y / sum;
  each([&](double px, double py, double cover, double weight) {
    if (weight >= hardly_any && cover > 0.5)
      farthest = std::max(farthest, std::hypot(px - middle_x, py - middle_y));
  });
  each([&](double px, double py, double, double weight) {
    if (weight >= hardly_any || std::hypot(px - middle_x, py - middle_y) > farthest) return;
    x += px, y += py, sum += 1;
  });
  if (sum > 1.05 * seen) masses.push_back(mass());
  return masses;
}

// The best starts of a kind, the best one first.
std::vector<Fit> starts_of(std::int64_t kind, const std::vector<Mass>& masses, std::size_t most,
                           Fitter& fitter) {
  const Form& form = forms()[static_cast<std::size_t>(kind)];
  const double period = 2 * pi / form.repeats;
  const int angles = form.turns ? static_cast<int>(std::ceil(period / (pi / 8))) : 1;
  std::vector<Fit> starts;
  for (const Mass& mass : masses)
    for (int i = 0; i < angles; ++i) {
      const data::Shape shape =
          fitted(kind, std::remainder(period * static_cast<double>(i) / angles, period), mass);
      starts.push_back({shape, fitter.error_of(shape)});
    }
  const std::size_t kept = std::min(most, starts.size());
  std::ranges::partial_sort(starts, starts.begin() + static_cast<std::ptrdiff_t>(kept), {}, &Fit::error);
  starts.resize(kept);
  return starts;
}

Fit best_of_kind(std::int64_t kind, const std::vector<Mass>& masses, std::size_t starts, int steps,
                 Fitter& fitter) {
  Fit best;
  for (const Fit& start : starts_of(kind, masses, starts, fitter))
    if (const Fit fit = fitter.improve(start.shape, steps); fit.error < best.error) best = fit;
  return best;
}

}  // namespace

std::vector<Fit> fit_kinds(const Picture& picture, const Target& target, std::size_t most, bool thorough) {
  std::vector<Mass> masses = masses_of(picture, target);
  if (masses.empty()) return {};
  if (thorough) {  // as if more of it were hidden
    masses.push_back(masses.back()), masses.back().area *= 1.3;
    masses.push_back(masses.back()), masses.back().area *= 1.3;
  }
  Fitter soft(picture, target, soft_edge), half(picture, target, softened), sharp(picture, target, 1);
  std::vector<Fit> fits;
  for (std::int64_t kind = 0; kind < std::ssize(data::shape_names()); ++kind) {
    const Fit fit = best_of_kind(kind, masses, 2, 4, soft);
    fits.push_back({fit.shape, sharp.error_of(fit.shape)});
    if (!thorough) continue;
    for (Fitter* fitter : {&half, &sharp}) {
      const Fit other = best_of_kind(kind, masses, 3, 6, *fitter);
      if (const double error = sharp.error_of(other.shape); error < fits.back().error)
        fits.back() = {other.shape, error};
    }
  }
  std::ranges::stable_sort(fits, {}, &Fit::error);
  const double bound = 6 * fits.front().error + 4;
  std::erase_if(fits, [&](const Fit& fit) { return fit.error > bound; });
  for (Fit& fit : fits) fit = sharp.improve(fit.shape, 8);
  std::ranges::stable_sort(fits, {}, &Fit::error);
  if (fits.size() > most) fits.resize(most);
  return fits;
}

Fit refine(const Picture& picture, const Target& target, const data::Shape& shape, int steps) {
  return Fitter(picture, target, 1).improve(shape, steps);
}

// ---- boxes

data::PixelBox united(const data::PixelBox& a, const data::PixelBox& b) {
  const std::int64_t left = std::min(a.left, b.left), top = std::min(a.top, b.top);
  return {left, top, std::max(a.left + a.width, b.left + b.width) - left,
          std::max(a.top + a.height, b.top + b.height) - top};
}

namespace {

data::PixelBox clipped(const Picture& picture, std::int64_t left, std::int64_t top, std::int64_t right,
                       std::int64_t bottom) {
  left = std::clamp<std::int64_t>(left, 0, picture.width - 1);
  top = std::clamp<std::int64_t>(top, 0, picture.height - 1);
  right = std::clamp<std::int64_t>(right, left + 1, picture.width);
  bottom = std::clamp<std::int64_t>(bottom, top + 1, picture.height);
  return {left, top, right - left, bottom - top};
}

}  // namespace

data::PixelBox box_around(const Picture& picture, const data::Shape& shape, std::int64_t margin) {
  const auto unit = static_cast<double>(picture.unit());
  const double x = static_cast<double>(shape.x) * unit + static_cast<double>(picture.width) / 2,
               y = static_cast<double>(picture.height) / 2 - static_cast<double>(shape.y) * unit,
               reach = 1.09 * static_cast<double>(shape.radius) * unit + static_cast<double>(margin);
  return clipped(picture, static_cast<std::int64_t>(std::floor(x - reach)),
                 static_cast<std::int64_t>(std::floor(y - reach)),
                 static_cast<std::int64_t>(std::ceil(x + reach)),
                 static_cast<std::int64_t>(std::ceil(y + reach)));
}

data::PixelBox box_around(const Picture& picture, const std::vector<std::int64_t>& pixels,
                          std::int64_t margin) {
  std::int64_t left = picture.width, right = 0, top = picture.height, bottom = 0;
  for (const std::int64_t p : pixels) {
    left = std::min(left, p % picture.width), right = std::max(right, p % picture.width);
    top = std::min(top, p / picture.width), bottom = std::max(bottom, p / picture.width);
  }
  return clipped(picture, left - margin, top - margin, right + margin + 1, bottom + margin + 1);
}

}  // namespace pom::eval::scenes
