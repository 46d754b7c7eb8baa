#include "pom/codecs/strips.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

template <class... Functions>
struct Cases : Functions... {
  using Functions::operator()...;
};

// The groups of the norm that a step begins with; 0: none.
std::int64_t groups_before(const VaeStep& step) {
  return std::visit(
      Cases{[](const Resnet& r) { return r.norm1.groups; },
            [](const PixelAttention& a) { return a.norm.groups; },
            [](const OutConv& o) { return o.norm.groups; }, [](const auto&) { return std::int64_t{0}; }},
      step);
}

// x is given up: a step may free it on the way, or write into it.
Activation apply(const VaeStep& step, Activation x, std::int64_t groups) {
  return std::visit(Cases{[&](const Conv& c) { return complete(conv(x.x, c), groups); },
                          [&](const DownConv& d) { return complete(conv_down(x.x, d.conv), groups); },
                          [&](const UpConv& u) { return conv_up(x.x, u, groups); },
                          [&](const Resnet& r) { return r(std::move(x)); },
                          [&](const PixelAttention& a) { return a(std::move(x)); },
                          [&](const OutConv& o) {
                            return complete(conv(normed(x, o.norm, true, /*in_place=*/true), o.conv), groups);
                          }},
                    step);
}

// ---- sizes ----

struct MapSize {
  std::int64_t channels, height, width;
  double values() const {
    return static_cast<double>(channels) * static_cast<double>(height) * static_cast<double>(width);
  }
};

MapSize after(const VaeStep& step, const MapSize& in) {
  return std::visit(Cases{[&](const Conv& c) {
                            return MapSize{c.out_channels(), in.height, in.width};
                          },
                          [&](const DownConv& d) {
                            return MapSize{d.conv.out_channels(), in.height / 2, in.width / 2};
                          },
                          [&](const UpConv& u) {
                            return MapSize{u.out_channels(), 2 * in.height, 2 * in.width};
                          },
                          [&](const Resnet& r) {
                            return MapSize{r.out_channels(), in.height, in.width};
                          },
                          [&](const PixelAttention&) { return in; },
                          [&](const OutConv& o) {
                            return MapSize{o.conv.out_channels(), in.height, in.width};
                          }},
                    step);
}

// Of a convolution that runs in a wider dtype than that of its input, whose values have so many bytes.
double widened_values(const Conv& layer, const MapSize& in, std::int64_t element) {
  if (!layer.weight.defined() || layer.weight.element_size() <= element) return 0;
  const double times = static_cast<double>(layer.weight.element_size()) / static_cast<double>(element);
  const double share = static_cast<double>(layer.out_channels()) / static_cast<double>(in.channels);
  return std::min(static_cast<double>(widened_at_once), in.values()) * (1 + share) * times;
}

// Values that are there at once while a step runs, its input and result included.
double values_during(const VaeStep& step, const MapSize& in, std::int64_t element) {
  const MapSize out = after(step, in);
  const auto wide = [&](const Conv& layer) { return widened_values(layer, in, element); };
  return std::visit(Cases{[&](const Resnet& r) {
                            return in.values() + std::max(in.values(), 2 * out.values()) + out.values() +
                                   std::max({wide(r.conv1), wide(r.conv2), wide(r.shortcut)});
                          },
                          [&](const UpConv&) { return in.values() + 2 * out.values(); },
                          [&](const PixelAttention&) { return 6 * in.values(); },
                          [&](const OutConv& o) { return 2 * in.values() + out.values() + wide(o.conv); },
                          [&](const Conv& c) { return 2 * in.values() + out.values() + wide(c); },
                          [&](const DownConv& d) { return 2 * in.values() + out.values() + wide(d.conv); }},
                    step);
}

MapSize size_of(const at::Tensor& x) {
  return {x.size(1), x.size(2), x.size(3)};
}

// ---- strips ----

// Rows top … top + x.size(2) - 1 of a map of so many rows.
struct Strip {
  at::Tensor x;
  std::int64_t top, height;
  std::int64_t end() const { return top + x.size(2); }
};

Strip rows(const Strip& s, std::int64_t begin, std::int64_t end) {
  return {s.x.narrow(2, begin - s.top, end - begin), begin, s.height};
}

// After a 3x3 convolution with zeros around the strip: right but for the rows at edges within the picture.
Strip without_edges(const at::Tensor& made, std::int64_t top, std::int64_t height) {
  const Strip all{made, top, height};
  return rows(all, all.top == 0 ? 0 : all.top + 1, all.end() == height ? height : all.end() - 1);
}

at::Tensor dense(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

Strip convolved(const at::Tensor& x, const Strip& at, const Conv& layer) {
  const at::Tensor made = complete(conv(x, layer), 0).x;
  return layer.kernel() == 1 ? Strip{made, at.top, at.height} : without_edges(made, at.top, at.height);
}

// The norms of steps that were not kept whole, in their order, as far as they are known.
using Known = std::vector<NormFactors>;

// Runs steps over a strip until one needs a norm that is not known, whose input it gives; or to the end.
class StripRun {
 public:
  StripRun(std::span<const VaeStep> steps, const Known& known) : steps_(steps), known_(known) {}

  Strip operator()(Strip s) {
    for (const VaeStep& step : steps_) {
      if (waiting_) break;
      s = std::visit([&](const auto& layer) { return take(layer, s); }, step);
    }
    return s;
  }

 private:
  // Nothing where the norm is not known.
  std::optional<at::Tensor> norm_of(const Strip& s, bool in_place = false) {
    waiting_ = next_ == known_.size();
    if (waiting_) return {};
    return normed(s.x, known_[next_++], true, in_place);
  }

  Strip take(const Conv& layer, const Strip& s) { return convolved(dense(s.x), s, layer); }

  Strip take(const DownConv& layer, const Strip& s) {
    // Row i of the result sees 2 i … 2 i + 2, of which the one below the picture is zeros.
    const std::int64_t first = (s.top + 1) / 2, height = s.height / 2;
    const bool last = s.end() == s.height;
    const at::Tensor from = dense(s.x.narrow(2, 2 * first - s.top, s.end() - 2 * first));
    const at::Tensor made = complete(conv_down(from, layer.conv), 0).x;
    const std::int64_t whole = last ? made.size(2) : (from.size(2) - 1) / 2;
    return {made.narrow(2, 0, whole), first, height};
  }

  Strip take(const UpConv& layer, const Strip& s) {
    return without_edges(conv_up(dense(s.x), layer, 0).x, 2 * s.top, 2 * s.height);
  }

  Strip take(const Resnet& r, const Strip& s) {
    std::optional<at::Tensor> first = norm_of(s);
    if (!first) return s;
    Strip h = convolved(dense(*first), s, r.conv1);
    first.reset();
    std::optional<at::Tensor> second = norm_of(h, /*in_place=*/true);
    if (!second) return h;
    h.x.reset();
    Strip made = convolved(dense(*second), {{}, h.top, h.height}, r.conv2);
    second.reset();
    const Strip x = rows(s, made.top, made.end());
    made.x.add_(r.shortcut.defined() ? convolved(dense(x.x), x, r.shortcut).x : x.x);
    return made;
  }

  Strip take(const OutConv& o, const Strip& s) {
    const std::optional<at::Tensor> first = norm_of(s);
    return first ? convolved(dense(*first), s, o.conv) : s;
  }

  Strip take(const PixelAttention&, const Strip& s) { return s; }  // never within strips

  std::span<const VaeStep> steps_;
  const Known& known_;
  std::size_t next_ = 0;
  bool waiting_ = false;
};

// The rows of a step's input that some rows of its result see; both as [begin, end).
struct Range {
  std::int64_t begin, end;
};
Range seen_by(const VaeStep& step, const Range& r, std::int64_t height) {
  const auto around = [&](std::int64_t more) { return Range{r.begin - more, r.end + more}; };
  const Range wide =
      std::visit(Cases{[&](const Conv& c) { return around(c.kernel() / 2); },
                       [&](const DownConv&) {
                         return Range{2 * r.begin, 2 * r.end + 1};
                       },
                       [&](const UpConv&) {
                         return Range{(r.begin + 1) / 2 - 1, r.end / 2 + 1};
                       },
                       [&](const Resnet&) { return around(2); }, [&](const PixelAttention&) { return r; },
                       [&](const OutConv&) { return around(1); }},
                 step);
  return {std::max<std::int64_t>(wide.begin, 0), std::min(wide.end, height)};
}

// The steps since the last map that was kept whole.
class Deferred {
 public:
  Deferred(at::Tensor whole, double memory) : whole_(std::move(whole)), memory_(memory) {}

  MapSize size() const { return sizes_.empty() ? size_of(whole_) : sizes_.back(); }

  // Takes a step: its norms become known. Its result exists as strips only.
  void add(const VaeStep& step) {
    const std::size_t norms = std::visit(
        Cases{[](const Resnet&) { return std::size_t{2}; }, [](const OutConv&) { return std::size_t{1}; },
              [](const auto&) { return std::size_t{0}; }},
        step);
    const MapSize out = after(step, size());
    steps_.push_back(step), sizes_.push_back(out);
    for (std::size_t i = 0; i < norms; ++i) learn(i == 0 ? first_norm(step) : std::get<Resnet>(step).norm2);
  }

  // Whether the result fits beside what is there.
  bool fits_whole() const {
    const double bytes = size().values() * element() + size_of(whole_).values() * element();
    return bytes * static_cast<double>(whole_.size(0)) <= 0.7 * memory_;
  }

  at::Tensor take_whole() {
    const MapSize out = size();
    at::Tensor made = at::empty({whole_.size(0), out.channels, out.height, out.width}, whole_.options(),
                                at::MemoryFormat::ChannelsLast);
    for_each_strip([&](const Strip& s) { made.narrow(2, s.top, s.x.size(2)).copy_(s.x); });
    return made;
  }

 private:
  double element() const { return static_cast<double>(whole_.element_size()); }
  static const GroupNorm& first_norm(const VaeStep& step) {
    const auto* resnet = std::get_if<Resnet>(&step);
    return resnet != nullptr ? resnet->norm1 : std::get<OutConv>(step).norm;
  }

  // Rows of the result for which what is there at once stays a part of the memory.
  std::int64_t strip_rows() const {
    double most = 0;  // bytes for one row of the result
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const MapSize in = i == 0 ? size_of(whole_) : sizes_[i - 1];
      most = std::max(most, values_during(steps_[i], in, whole_.element_size()) /
                                static_cast<double>(sizes_.back().height));
    }
    const double held = size_of(whole_).values() * static_cast<double>(whole_.size(0)) * element();
    const double room = std::max(memory_ - held, memory_ / 8) / 3;
    const auto fit =
        static_cast<std::int64_t>(room / (most * element() * static_cast<double>(whole_.size(0))));
    return std::clamp<std::int64_t>(fit, 8, sizes_.back().height);
  }

  // Strips of the latest map that is known, each with the rows that belong to it alone.
  template <class Use>
  void for_each_strip(Use&& use) {
    const std::int64_t height = sizes_.back().height, each = strip_rows();
    for (std::int64_t begin = 0; begin < height; begin += each) {
      const Range own{begin, std::min(begin + each, height)};
      Range seen = own;
      for (std::size_t i = steps_.size(); i-- > 0;)
        seen = seen_by(steps_[i], seen, i == 0 ? whole_.size(2) : sizes_[i - 1].height);
      const Strip from{whole_.narrow(2, seen.begin, seen.end - seen.begin), seen.begin, whole_.size(2)};
      const Strip made = StripRun(steps_, known_)(from);
      check(made.top <= own.begin && made.end() >= own.end, "strips: rows are missing");
      use(rows(made, own.begin, own.end));
    }
  }

  // A norm that comes before the latest step's end takes a map of that step's input or of its middle, whose
  // rows are as many as those of its result.
  void learn(const GroupNorm& norm) {
    // Of all rows so far, put together as Chan, Golub and LeVeque do it.
    at::Tensor means, squares;
    std::int64_t height = 0;
    double seen = 0;
    for_each_strip([&](const Strip& s) {
      height = s.height;
      const ops::ChannelMoments part = moments_of(s.x);
      const auto count = static_cast<double>(s.x.size(2)), all = seen + count;
      if (seen == 0) {
        means = part.means, squares = part.squares;
      } else {
        const at::Tensor off = part.means.sub(means);
        means = means.add(off, count / all);
        squares = squares.add(part.squares)
                      .add(off.mul(off), seen * count / all * static_cast<double>(s.x.size(3)));
      }
      seen = all;
    });
    known_.push_back(factors_of({means, squares}, height * sizes_.back().width, norm, whole_.scalar_type()));
  }

  at::Tensor whole_;
  double memory_;
  std::vector<VaeStep> steps_;
  std::vector<MapSize> sizes_;  // of their results
  Known known_;
};

}  // namespace

at::Tensor run_whole(const VaeSteps& steps, const at::Tensor& x) {
  Activation y{x, {}};
  for (std::size_t i = 0; i < steps.size(); ++i)
    y = apply(steps[i], std::move(y), i + 1 < steps.size() ? groups_before(steps[i + 1]) : 0);
  return y.x;
}

std::int64_t whole_bytes(const VaeSteps& steps, const at::Tensor& x) {
  double most = 0;
  MapSize size = size_of(x);
  for (const VaeStep& step : steps) {
    most = std::max(most, values_during(step, size, x.element_size()));
    size = after(step, size);
  }
  return static_cast<std::int64_t>(most * static_cast<double>(x.size(0)) *
                                   static_cast<double>(x.element_size()));
}

at::Tensor run_within(const VaeSteps& steps, const at::Tensor& x, std::int64_t memory) {
  if (whole_bytes(steps, x) <= memory) return run_whole(steps, x);
  at::Tensor whole = x;
  std::optional<Deferred> deferred;
  const double room = static_cast<double>(memory), bytes = static_cast<double>(x.element_size() * x.size(0));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool attends = std::holds_alternative<PixelAttention>(steps[i]);
    if (deferred && (attends || deferred->fits_whole())) {
      whole = deferred->take_whole();
      deferred.reset();
    }
    if (!deferred && (attends || values_during(steps[i], size_of(whole), x.element_size()) * bytes <= room)) {
      whole = apply(steps[i], {std::exchange(whole, {}), {}}, 0).x;
      continue;
    }
    if (!deferred) deferred.emplace(std::exchange(whole, {}), room);
    deferred->add(steps[i]);
  }
  return deferred ? deferred->take_whole() : whole;
}

}  // namespace pom::codecs
