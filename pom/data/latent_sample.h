// One example of a data set of latents as its file has it, whoever wrote that; and arrays of files as
// numbers. No torch, so that parsers fuzz fast.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/npy.h"

namespace pom::data {

struct LatentSample {
  std::vector<std::int64_t> shape = {};  // (C, h, w) or (C, t, h, w)
  std::vector<float> mean = {};
  std::vector<float> spread = {};  // standard deviation; empty: there is nothing to draw
  std::int64_t label = 0;
  std::string caption = {};
  std::vector<std::int64_t> text_shape = {};  // (tokens, width); empty: no states
  std::vector<std::uint16_t> text = {};       // fp16
  std::vector<std::uint8_t> mask = {};        // of each token 1 or 0
};

// The numbers of an array, which has to be of floats or (int8) of quantised ones. Errors begin with `site`.
std::vector<float> floats_of(const io::NpyArray& array, std::string_view site);
// fp16 bits of an array of floats, rounded to the nearest where it is wider.
std::vector<std::uint16_t> halves_of(const io::NpyArray& array, std::string_view site);
// 1 where an element is not 0.
std::vector<std::uint8_t> flags_of(const io::NpyArray& array, std::string_view site);
// The one integer of an array of integers.
std::int64_t integer_of(const io::NpyArray& array, std::string_view site);

// The standard deviation exp(v / 2) of each log-variance v, clamped to [-30, 20] as diffusers does; the same
// bits on every machine.
void deviations_of(std::span<float> log_variances);

// values += spread · noise, of as many each.
void add_drawn(std::span<float> values, std::span<const float> spread, std::span<const float> noise);
// values = (values - shift) · scale; false where one of them is not finite.
bool scale_latent(std::span<float> values, float shift, float scale);

// Mean and what is after it, of an array (2C, …). Errors begin with `site`.
LatentSample split_moments(const io::NpyArray& array, std::string_view site);

// The deviation of all numbers.
double deviation_of(std::span<const float> values);

}  // namespace pom::data
