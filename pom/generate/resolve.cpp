#include "pom/generate/resolve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/generate/classes.h"
#include "pom/io/image.h"
#include "pom/io/json_header.h"

namespace pom::generate {
namespace {

constexpr std::int64_t max_items = 1'000'000;  // of one run
constexpr double default_strength = 0.6;

// Whether a field says something.
bool is_given(const FieldValue& value, const FieldValue& plain) {
  return std::visit(
      [&]<class Pointer>(Pointer pointer) {
        if constexpr (std::is_same_v<Pointer, std::monostate>)
          return false;
        else
          return *pointer != *std::get<Pointer>(plain);
      },
      value);
}

// What a model lacks that a field needs; empty where it has it.
std::string lacking(std::string_view need, const ModelConfig& config) {
  const models::NetworkConfig& network = config.network;
  if (need == needs::classes && network.video())
    return "expected a model with classes, and this one reads a prompt";
  if (need == needs::text && !network.video())
    return "expected a model that reads text, and this one takes a class";
  if (need == needs::clips && !network.video())
    return "expected a model that makes clips, and this one makes images";
  if (need == needs::streams && !network.video())
    return "expected a model that makes clips, and this one makes images";
  if (need == needs::streams && !network.block_causal())
    return "expected a block-causal model, got one whose blocks all see each other, which cannot be "
           "streamed";
  return {};
}

// What a field says must mean something to the model.
void check_needs(Request request, const ModelConfig& config) {
  Request plain;
  const std::vector<BoundField> given = bind_fields(request), unset = bind_fields(plain);
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].field.needs.empty() || !is_given(given[i].value, unset[i].value)) continue;
    const std::string reason = lacking(given[i].field.needs, config);
    check(reason.empty(), "sample: ", given[i].field.name, ": ", reason);
  }
}

// Texts go into files and through text encoders.
void check_text(const Field& field, const std::string& text) {
  constexpr std::size_t most = std::size_t{1} << 16;
  check(text.size() <= most, "sample: ", field.name, ": expected at most ", most, " bytes, got ",
        text.size());
  const std::size_t bad = io::detail::find_invalid_utf8(text);
  check(bad == std::string::npos || bad >= text.size(), "sample: ", field.name,
        ": expected UTF-8, got an invalid byte at position ", bad);
  check(text.find('\0') == std::string::npos, "sample: ", field.name, ": expected text, got a byte 0");
}

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
    if (const auto* texts = std::get_if<std::vector<std::string>*>(&bound.value))
      for (const std::string& each : **texts) check_text(field, each);
    if (const auto* text = std::get_if<std::optional<std::string>*>(&bound.value); text && **text)
      check_text(field, ***text);
    if (const auto* list = std::get_if<std::vector<std::int64_t>*>(&bound.value))
      for (const std::int64_t each : **list) check_value(field, static_cast<double>(each), where);
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

// The authors' rule for larger images: more of the steps near noise.
double size_shift(const Request& r, const SampleDefaults& sample) {
  if (sample.shift_base <= 0) return 1;
  return diffusion::auto_shift(static_cast<double>(*r.width), static_cast<double>(*r.height),
                               sample.shift_base);
}

void fill_sampler(Request& r, const SampleDefaults& sample, bool has_init) {
  const std::string own = diffusion::canonical_sampler(sample.sampler);
  r.sampler = r.sampler ? diffusion::canonical_sampler(*r.sampler) : own;
  r.steps = r.steps.value_or(sample.steps);
  r.shift = r.shift.value_or(sample.shift * size_shift(r, sample));
  r.eta = r.eta.value_or(*r.sampler == own ? sample.eta : 0);  // the model's own belongs to its own sampler
  r.clamp = r.clamp.value_or(sample.clamp);
  r.dtype = r.dtype.value_or("fp32");
  check(has_init || !r.strength, "sample: strength: expected an init to begin with, got none");
  if (has_init) r.strength = r.strength.value_or(default_strength);
  Request all = r;
  all.strength.reset();  // what does not go together does not at any strength
  diffusion::evaluation_times(*r.sampler, sampler_options(all));
}

std::int64_t drawn_seed() {
  std::random_device device;  // 32 bits are enough to try, and short enough to write down
  return static_cast<std::int64_t>(device() & 0xffffffffu);
}

// The classes or prompts that a request stands for, each as a complete request has it.
std::vector<Request> subjects_of(const Request& r, const ModelConfig& config) {
  std::vector<Request> all;
  if (config.network.video()) {
    for (const std::string& prompt : r.prompt) {
      all.push_back(r);
      all.back().prompt = {prompt};
    }
    return all;
  }
  const std::int64_t classes = config.network.classes;
  if (r.negative_class) {
    const std::vector<std::int64_t> away = parse_classes(*r.negative_class, config.classes, classes);
    check(away.size() == 1, "sample: negative_class: expected one class, got ", away.size());
  }
  for (const std::int64_t index : parse_classes(r.class_name.value_or("all"), config.classes, classes)) {
    all.push_back(r);
    all.back().class_name = class_text(index, config.classes, classes);
    if (r.negative_class)
      all.back().negative_class = class_text(
          parse_classes(*r.negative_class, config.classes, classes).front(), config.classes, classes);
  }
  return all;
}

// Item i has seed + i; or those of a list, for each subject.
std::vector<Request> items_of(const Request& r, const ModelConfig& config) {
  check(!r.seed.empty(), "sample: seed: expected at least one, got none");
  const bool list = r.seed.size() > 1;
  check(!list || r.count == 1, "sample: count: expected a list of seeds or a count, got both");
  const std::vector<Request> subjects = subjects_of(r, config);
  const std::int64_t count = list ? std::ssize(r.seed) : r.count, total = std::ssize(subjects) * count;
  check(total <= max_items, "sample: count: expected at most ", max_items, " images or clips, got ",
        subjects.size(), config.network.video() ? " prompts" : " classes", " times ", count);
  std::int64_t next = r.own_seed() < 0 && !list ? drawn_seed() : r.own_seed();
  check(std::ranges::all_of(r.seed, [&](std::int64_t s) { return !list || s >= 0; }),
        "sample: seed: expected seeds of at least 0 in a list, got ", *std::ranges::min_element(r.seed));
  check(next <= std::numeric_limits<std::int64_t>::max() - total, "sample: seed: expected room for ", total,
        " seeds below 2^63, got ", next);
  std::vector<Request> items;
  items.reserve(static_cast<std::size_t>(total));
  for (const Request& subject : subjects)
    for (std::int64_t i = 0; i < count; ++i, ++next) {
      items.push_back(subject);
      items.back().seed = {list ? r.seed[static_cast<std::size_t>(i)] : next};
      items.back().count = 1;
    }
  return items;
}

std::string size_remark(const Request& r, const ModelConfig& config) {
  const std::vector<std::int64_t>& own = config.sample.size;
  if (*r.width == own[0] && *r.height == own[1]) return {};
  return pom::detail::concat("the model's own size is ", own[0], "x", own[1], ": at ", *r.width, "x",
                             *r.height, " it may make noise, unless it was trained at that size too");
}

// Guidance that is off leads away from nothing.
std::string negative_remark(const Request& r) {
  const bool away =
      (r.negative_class && *r.negative_class != "none") || (r.negative_prompt && !r.negative_prompt->empty());
  if (!away || *r.cfg_scale != 1) return {};
  return pom::detail::concat("cfg scale 1 is no guidance: the negative ",
                             r.negative_class ? "class" : "prompt", " has no effect");
}

// What begins it decides its size and length where nothing else does, and must have them.
void fill_from_init(Request& r, const InitShape& init, const ModelConfig& config) {
  r.width = r.width.value_or(init.width), r.height = r.height.value_or(init.height);
  check(*r.width == init.width && *r.height == init.height, "sample: init: expected the size asked for, ",
        *r.width, "x", *r.height, ", got ", init.width, "x", init.height);
  check(config.network.video() || init.frames == 1,
        "sample: init: expected an image, as this model makes images, got a clip of ", init.frames,
        " frames");
  if (config.network.video() && init.frames > 1 && !r.frames) r.frames = std::to_string(init.frames);
}

void check_init_length(const Job& job, const InitShape& init) {
  check(job.continue_from.empty(), "sample: init: expected a clip that begins here, got one that continues");
  check(job.save_state.empty(),
        "sample: save_state: expected a clip that begins with noise, got one with an init");
  check(job.frames > 0, "sample: init: expected a clip with an end, got --frames inf");
  check(init.frames == 1 || init.frames >= job.frames,
        "sample: init: expected as many frames as the clip has, ", job.frames, ", got ", init.frames);
}

}  // namespace

Job resolve(const Request& request, const ModelConfig& config, const ModelShape& shape,
            const std::optional<InitShape>& init) {
  check_fields(request);
  check_needs(request, config);
  Request r = request;
  Job job;
  if (!r.continue_from.empty()) {
    const Continued saved = read_continued(r.continue_from);
    fill_from(r, saved.request);
    if (!r.fps) r.fps = saved.fps;
    // Another text to lead away from has to be told, and the prompt with it.
    job.keeps_text = r.prompt.empty() && r.negative_prompt == saved.request.negative_prompt;
    if (r.prompt.empty()) r.prompt = {saved.prompt};
  }
  if (init) fill_from_init(r, *init, config);
  r.width = r.width.value_or(config.sample.size[0]);
  r.height = r.height.value_or(config.sample.size[1]);
  check_sides(*r.width, *r.height, config.network.patch * shape.factor);
  fill_guidance(r, config.sample);
  fill_sampler(r, config.sample, init.has_value());
  const bool at_begin = std::ranges::any_of(r.prompt_at, [&](const std::string& text) {
    return whole_number(text.substr(0, text.find(':'))).value_or(shape.block_frames) < shape.block_frames;
  });
  if (config.network.video() && r.prompt.empty() && at_begin) r.prompt = {""};  // until it is known
  check(!config.network.video() || !r.prompt.empty(),
        "sample: prompt: expected a prompt, got nothing (\"\" samples without text)");
  job.items = items_of(r, config);
  r.prompt = job.keeps_text ? std::vector<std::string>() : request.prompt;
  if (config.network.video()) resolve_clip(job, r, config, shape);
  if (init) check_init_length(job, *init);
  for (std::string remark : {size_remark(job.first(), config), negative_remark(job.first())})
    if (!remark.empty()) job.remarks.push_back(std::move(remark));
  return job;
}

bool samples(const Request& r) {
  return !r.strength || *r.strength > 0;
}

diffusion::SamplerOptions sampler_options(const Request& r) {
  diffusion::SamplerOptions options{.steps = static_cast<int>(*r.steps),
                                    .eta = *r.eta,
                                    .clamp = *r.clamp > 0 ? r.clamp : std::nullopt,
                                    .shift = *r.shift};
  if (!r.strength || *r.strength == 1) return options;
  options.t_start = std::max(*r.strength, 1e-9);  // the part of all steps that lies below it
  options.steps = std::max(1, static_cast<int>(std::lround(static_cast<double>(*r.steps) * *r.strength)));
  return options;
}

diffusion::Guidance guidance_of(const Request& r) {
  return {.scale = *r.cfg_scale, .from = *r.cfg_from, .to = *r.cfg_to};
}

std::int64_t evaluations_of(const Request& r) {
  return samples(r) ? diffusion::evaluations(*r.sampler, sampler_options(r)) : 0;
}

models::NetworkConfig network_of(const ModelConfig& config, const Request& request) {
  models::NetworkConfig network = config.network;
  if (request.window) network.window = *request.window;
  return network;
}

}  // namespace pom::generate
