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

// What is left open, the model's own settings decide (config.json, "sample").
struct Request {
  std::string class_name = "all";  // names, numbers, lists "a,b", ranges "0-9", "all", "none"
  std::int64_t seed = 0;           // picture i has seed + i; negative: drawn at random, and reported
  std::int64_t count = 1;          // pictures of each class
  std::optional<std::int64_t> width, height;
  std::optional<std::int64_t> steps;
  std::optional<std::string> sampler;
  std::optional<double> shift;  // of the times of the steps, towards noise
  std::optional<double> eta;    // DDIM: 0 deterministic, 1 ancestral
  std::optional<double> cfg_scale;
  std::optional<std::string> omega;  // a number, or "auto"; a resolved request has cfg_scale instead
  std::optional<double> cfg_from, cfg_to;
  std::optional<double> clamp;
  std::optional<std::string> dtype;

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view what = "What to draw", how = "How to sample";
    visit(Field{.name = "class",
                .help = "names, numbers, lists a,b, ranges 0-9, all, or none",
                .value = "NAME",
                .group = what},
          class_name);
    visit(Field{.name = "seed",
                .help = "of the first image, one more for each that follows; negative: a random one",
                .value = "N",
                .group = what},
          seed);
    visit(Field{.name = "count",
                .help = "images of each class",
                .value = "N",
                .group = what,
                .least = 1,
                .most = 1'000'000},
          count);
    visit(Field{.name = "width",
                .help = "of an image in pixels",
                .value = "N",
                .group = what,
                .least = 1,
                .most = 65536},
          width);
    visit(Field{.name = "height",
                .help = "of an image in pixels",
                .value = "N",
                .group = what,
                .least = 1,
                .most = 65536},
          height);
    visit(Field{.name = "steps",
                .help = "steps of the sampler",
                .value = "N",
                .group = how,
                .least = 1,
                .most = 10000},
          steps);
    visit(Field{.name = "sampler",
                .help = "how noise becomes an image",
                .value = "NAME",
                .group = how,
                .choices = sampler_names(),
                .closed = false},
          sampler);
    visit(Field{.name = "shift",
                .help = "above 1: more of the steps near noise, where the whole of an image is decided",
                .value = "S",
                .group = how,
                .least = 0.001,
                .most = 1000},
          shift);
    visit(Field{.name = "cfg_scale",
                .help = "guidance towards the class; 1 is off",
                .value = "S",
                .group = how,
                .least = 0,
                .most = 1000},
          cfg_scale);
    visit(Field{.name = "omega",
                .help = "the paper's guidance, cfg scale - 1; auto grows with the side of the image",
                .value = "W",
                .group = how},
          omega);
    visit(Field{.name = "cfg_from",
                .help = "guidance from this time on (1 is noise, 0 the image)",
                .value = "T",
                .group = how,
                .least = 0,
                .most = 1},
          cfg_from);
    visit(Field{.name = "cfg_to",
                .help = "guidance up to this time",
                .value = "T",
                .group = how,
                .least = 0,
                .most = 1},
          cfg_to);
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
                .help = "of the network's products; fp8 on a GPU only",
                .value = "NAME",
                .group = how,
                .choices = {"fp32", "bf16", "fp16", "fp64", "fp8"}},
          dtype);
  }
};

// "64x48" or "64", as `--size` has it, into width and height. Throws pom::Error for anything else.
void set_size(Request& request, std::string_view text);

// The scale that a number of `omega`, or "auto" for a picture of these sides, stands for: 1 + omega, with
// omega = 4 sqrt(width height) / base for "auto".
double scale_of_omega(std::string_view omega, std::int64_t width, std::int64_t height, double base);

}  // namespace pom::generate
