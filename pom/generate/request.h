// What a person asks for, declared once: the flags of `pom sample`, the keyword arguments in Python, the JSON
// in a picture and, later, the fields of the HTTP API.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"

namespace pom::generate {

// Names of samplers, as a complete request has them; a person may use others for them ("DPM++ 2M").
const std::vector<std::string>& sampler_names();

// What a field needs of a model to mean anything (Field::needs).
namespace needs {
inline constexpr std::string_view classes = "classes", text = "text", clips = "clips", streams = "streams";
}

// What is left open, the model's own settings decide (config.json, "sample"), or the state that is continued.
struct Request {
  std::optional<std::string> class_name = {};  // names, numbers, lists "a,b", ranges "0-9", "all", "none"
  std::optional<std::string> negative_class = {};
  std::vector<std::string> prompt = {};     // an item for each; "" is no text
  std::vector<std::string> prompt_at = {};  // "32:a blue star"; frames count from the clip's first
  std::optional<std::string> negative_prompt = {};
  std::vector<std::int64_t> seed = {0};  // one: item i has seed + i, negative: a random one; or one for each
  std::int64_t count = 1;                // items of each class or prompt
  std::optional<std::int64_t> width = {}, height = {};
  std::optional<std::string> frames = {};  // a number, 1 for an image, or "inf"
  std::optional<double> fps = {};
  bool stream = false;  // block by block; "inf" and states are so always
  std::optional<std::int64_t> window = {};
  std::string init = {};  // the file of an image or clip to begin with
  std::optional<double> strength = {};
  std::string continue_from = {}, save_state = {};
  std::optional<std::int64_t> steps = {};
  std::optional<std::string> sampler = {};
  std::optional<double> shift = {};  // of the times of the steps, towards noise
  std::optional<double> eta = {};    // DDIM: 0 deterministic, 1 ancestral
  std::optional<double> cfg_scale = {};
  std::optional<std::string> omega = {};  // a number, or "auto"; a resolved request has cfg_scale instead
  std::optional<double> cfg_from = {}, cfg_to = {};
  std::optional<double> clamp = {};
  std::optional<std::string> dtype = {};

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to make", clips = "Clips", how = "How to sample";
    visit(Field{.name = "class",
                .help = "names, numbers, lists a,b, ranges 0-9, all, or none, which is without a class "
                        "(default: all)",
                .value = "NAME",
                .group = what,
                .needs = needs::classes},
          class_name);
    visit(Field{.name = "prompt",
                .help = "what it shows; can be repeated: one more image or clip",
                .value = "TEXT",
                .group = what,
                .needs = needs::text,
                .one_or_more = true},
          prompt);
    visit(Field{.name = "seed",
                .help = "seed of the first item, one more for each that follows; negative: a random one; a "
                        "list 3,14 or a range 0-9: those, for each class or prompt (default: 0)",
                .value = "N",
                .group = what,
                .one_or_more = true},
          seed);
    visit(Field{.name = "count",
                .help = "images or clips of each class or prompt",
                .value = "N",
                .group = what,
                .least = 1,
                .most = 1'000'000},
          count);
    visit(Field{.name = "width", .help = "in pixels", .value = "N", .group = what, .least = 1, .most = 65536},
          width);
    visit(
        Field{.name = "height", .help = "in pixels", .value = "N", .group = what, .least = 1, .most = 65536},
        height);
    visit(Field{.name = "init",
                .help = "image or clip to begin with instead of noise, which also decides the size; see "
                        "--strength",
                .value = "FILE",
                .group = what,
                .saved = !init.empty()},
          init);
    visit(Field{.name = "strength",
                .help = "how much of --init is made anew: 0 nothing, 1 everything; that part of the steps "
                        "is taken, at least one (default: 0.6)",
                .value = "X",
                .group = what,
                .least = 0,
                .most = 1},
          strength);
    visit(Field{.name = "steps",
                .help = "steps of the sampler",
                .value = "N",
                .group = how,
                .least = 1,
                .most = 10000},
          steps);
    visit(Field{.name = "sampler",
                .help = "sampler",
                .value = "NAME",
                .group = how,
                .choices = sampler_names(),
                .closed = false},
          sampler);
    visit(Field{.name = "shift",
                .help = "above 1: more steps at high noise, where the layout of an image is decided",
                .value = "S",
                .group = how,
                .least = 0.001,
                .most = 1000},
          shift);
    visit(Field{.name = "cfg_scale",
                .help = "guidance towards the class or prompt; 1 is off",
                .value = "S",
                .group = how,
                .least = 0,
                .most = 1000},
          cfg_scale);
    visit(Field{.name = "omega",
                .help = "the paper's guidance, cfg scale - 1; auto grows with the side of the image",
                .value = "W",
                .group = how,
                .numeric = true},
          omega);
    visit(Field{.name = "cfg_from",
                .help = "guidance only where the time is at least T: from 1, noise, it runs to 0, the image",
                .value = "T",
                .group = how,
                .least = 0,
                .most = 1},
          cfg_from);
    visit(Field{.name = "cfg_to",
                .help = "guidance only where the time is at most T",
                .value = "T",
                .group = how,
                .least = 0,
                .most = 1},
          cfg_to);
    visit(Field{.name = "negative_class",
                .help = "class that guidance leads away from, where --cfg-scale is not 1 (default: none)",
                .value = "NAME",
                .group = how,
                .needs = needs::classes},
          negative_class);
    visit(Field{.name = "negative_prompt",
                .help = "text that guidance leads away from, where --cfg-scale is not 1 (default: no text)",
                .value = "TEXT",
                .group = how,
                .needs = needs::text},
          negative_prompt);
    visit(Field{.name = "eta",
                .help = "noise that ddim adds in each step: 0 none, 1 as much as ddpm",
                .value = "X",
                .group = how,
                .least = 0,
                .most = 1},
          eta);
    visit(Field{.name = "clamp",
                .help = "largest value of the predicted image; 0 is off",
                .value = "X",
                .group = how,
                .least = 0,
                .most = 1000,
                .formerly = "clip"},
          clamp);
    visit(Field{.name = "dtype",
                .help = "dtype of the network's GEMMs; fp8 on a GPU only",
                .value = "NAME",
                .group = how,
                .choices = {"fp32", "bf16", "fp16", "fp64", "fp8"}},
          dtype);
    visit(Field{.name = "frames",
                .help = "frames of the clip; 1: an image; inf: until stopped (default: the model's own)",
                .value = "N",
                .group = clips,
                .needs = needs::clips,
                .numeric = true},
          frames);
    visit(Field{.name = "fps",
                .help = "frames per second (default: the model's own)",
                .value = "X",
                .group = clips,
                .least = 0.01,
                .most = 1000,
                .needs = needs::clips},
          fps);
    visit(Field{.name = "prompt_at",
                .help = "another prompt from the block of frame N on, counted from this clip's first; can "
                        "be repeated",
                .value = "N:TEXT",
                .group = clips,
                .needs = needs::clips,
                .one_or_more = true},
          prompt_at);
    visit(Field{.name = "stream",
                .help = "make and write the clip block by block: the file plays while it grows, and memory "
                        "does not grow",
                .group = clips,
                .saved = stream,
                .needs = needs::streams},
          stream);
    visit(Field{.name = "window",
                .help = "blocks a block sees, including itself; 0: all before it (default: the model's own)",
                .value = "N",
                .group = clips,
                .least = 0,
                .most = 1'000'000,
                .needs = needs::streams},
          window);
    visit(Field{.name = "continue",
                .help = "continue from a file of --save-state; settings that are not given come from it",
                .value = "FILE",
                .group = clips,
                .saved = !continue_from.empty(),
                .needs = needs::streams},
          continue_from);
    visit(Field{.name = "save_state",
                .help = "write the state of the stream at the end, to continue from",
                .value = "FILE",
                .group = clips,
                .saved = false,
                .needs = needs::streams},
          save_state);
  }

  // Of a complete request, which is for one item.
  std::int64_t own_seed() const { return seed.front(); }
  // What it shows, in a word or line: its class, or its prompt.
  const std::string& subject() const;
};

// "64x48" or "64", as `--size` has it, into width and height. Throws pom::Error for anything else.
void set_size(Request& request, std::string_view text);

// The scale that a number of `omega`, or "auto" for a picture of these sides, stands for: 1 + omega, with
// omega = 4 sqrt(width height) / base for "auto".
double scale_of_omega(std::string_view omega, std::int64_t width, std::int64_t height, double base);

}  // namespace pom::generate
