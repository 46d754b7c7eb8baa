#include "pom/generate/resolve.h"

#include <cmath>
#include <limits>
#include <random>

#include "pom/base/error.h"
#include "pom/generate/classes.h"
#include "pom/io/image.h"

namespace pom::generate {
namespace {

constexpr std::int64_t max_pictures = 1'000'000;  // of one run

// Ranges and choices, for requests that no reader of fields has seen: those made in C++.
void check_fields(Request request) {
  constexpr std::string_view where = "sample: ";
  for (const BoundField& bound : bind_fields(request)) {
    const Field& field = bound.field;
    if (const auto* integer = std::get_if<std::int64_t*>(&bound.value))
      check_value(field, static_cast<double>(**integer), where);
    if (const auto* integer = std::get_if<std::optional<std::int64_t>*>(&bound.value); integer && **integer)
      check_value(field, static_cast<double>(***integer), where);
    if (const auto* number = std::get_if<std::optional<double>*>(&bound.value); number && **number)
      check_value(field, ***number, where);
    if (const auto* text = std::get_if<std::optional<std::string>*>(&bound.value); text && **text)
      check_value(field, std::string_view(***text), where);
  }
}

// Sides must be made of whole tokens; the message names those around that are.
void check_sides(std::int64_t width, std::int64_t height, std::int64_t unit) {
  io::check_size("sample", width, height);
  if (width % unit == 0 && height % unit == 0) return;
  const auto below = [&](std::int64_t side) { return std::max(unit, side / unit * unit); };
  const auto above = [&](std::int64_t side) { return (side + unit - 1) / unit * unit; };
  const std::int64_t w0 = below(width), h0 = below(height), w1 = above(width), h1 = above(height);
  const std::string smaller = pom::detail::concat(w0, "x", h0), larger = pom::detail::concat(w1, "x", h1);
  fail("sample: size: expected a width and a height divisible by ", unit, ", got ", width, "x", height,
       "; try ", smaller, smaller == larger ? "" : " or " + larger);
}

double omega_base(const SampleDefaults& sample) {
  if (sample.omega_base > 0) return sample.omega_base;
  return std::sqrt(static_cast<double>(sample.size[0]) * static_cast<double>(sample.size[1]));
}

void fill_guidance(Request& r, const SampleDefaults& sample) {
  check(!r.cfg_scale || !r.omega, "sample: omega: expected either cfg_scale or omega, got both");
  if (r.omega) r.cfg_scale = scale_of_omega(*r.omega, *r.width, *r.height, omega_base(sample));
  r.omega.reset();
  r.cfg_scale = r.cfg_scale.value_or(sample.cfg_scale);
  r.cfg_from = r.cfg_from.value_or(sample.cfg_from);
  r.cfg_to = r.cfg_to.value_or(sample.cfg_to);
  check(*r.cfg_from <= *r.cfg_to, "sample: cfg_from: expected at most cfg_to, ", *r.cfg_to, ", got ",
        *r.cfg_from);
}

void fill_sampler(Request& r, const SampleDefaults& sample) {
  const std::string own = diffusion::canonical_sampler(sample.sampler);
  r.sampler = r.sampler ? diffusion::canonical_sampler(*r.sampler) : own;
  r.steps = r.steps.value_or(sample.steps);
  r.shift = r.shift.value_or(sample.shift);
  r.eta = r.eta.value_or(*r.sampler == own ? sample.eta : 0);  // the model's own belongs to its own sampler
  r.clamp = r.clamp.value_or(sample.clamp);
  r.dtype = r.dtype.value_or("fp32");
  diffusion::evaluation_times(*r.sampler, sampler_options(r));  // throws for what does not go together
}

std::int64_t drawn_seed() {
  std::random_device device;  // 32 bits are enough to try, and short enough to write down
  return static_cast<std::int64_t>(device() & 0xffffffffu);
}

}  // namespace

std::vector<Request> resolve(const Request& request, const ModelConfig& config, std::int64_t factor) {
  check_fields(request);
  Request r = request;
  r.width = r.width.value_or(config.sample.size[0]);
  r.height = r.height.value_or(config.sample.size[1]);
  check_sides(*r.width, *r.height, config.network.patch * factor);
  fill_guidance(r, config.sample);
  fill_sampler(r, config.sample);
  const std::vector<std::int64_t> classes =
      parse_classes(r.class_name, config.classes, config.network.classes);
  const std::int64_t count = r.count, total = static_cast<std::int64_t>(classes.size()) * count;
  check(total <= max_pictures, "sample: count: expected at most ", max_pictures, " pictures, got ",
        classes.size(), " classes times ", count);
  if (r.seed < 0) r.seed = drawn_seed();
  check(r.seed <= std::numeric_limits<std::int64_t>::max() - total, "sample: seed: expected room for ", total,
        " seeds below 2^63, got ", r.seed);
  r.count = 1;
  std::vector<Request> pictures;
  pictures.reserve(static_cast<std::size_t>(total));
  for (const std::int64_t index : classes) {
    r.class_name = class_text(index, config.classes, config.network.classes);
    for (std::int64_t i = 0; i < count; ++i, ++r.seed) pictures.push_back(r);
  }
  return pictures;
}

std::string size_remark(const Request& r, const ModelConfig& config) {
  const std::vector<std::int64_t>& own = config.sample.size;
  if (*r.width == own[0] && *r.height == own[1]) return {};
  return pom::detail::concat("the model's own size is ", own[0], "x", own[1], ": at ", *r.width, "x",
                             *r.height, " it may make noise, unless it was trained at that size too");
}

diffusion::SamplerOptions sampler_options(const Request& r) {
  return {.steps = static_cast<int>(*r.steps),
          .eta = *r.eta,
          .clamp = *r.clamp > 0 ? r.clamp : std::nullopt,
          .shift = *r.shift};
}

diffusion::Guidance guidance_of(const Request& r) {
  return {.scale = *r.cfg_scale, .from = *r.cfg_from, .to = *r.cfg_to};
}

}  // namespace pom::generate
