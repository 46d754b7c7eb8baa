// What can be said of samplers, paths, losses and guidance without a tensor: names, times, and which options
// go together. It is what files of settings are checked with, so it is compiled without torch where they are
// fuzzed.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/diffusion/guidance.h"
#include "pom/diffusion/loss.h"
#include "pom/diffusion/trajectory.h"

namespace pom::diffusion {
namespace {

std::map<std::string, Sampler>& registry() {
  static std::map<std::string, Sampler> samplers;
  return samplers;
}

// "DPM++ 2M", "dpm++_2m" and "dpm++2m" are one name.
std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (std::string_view(" _-()").find(c) == std::string_view::npos)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

const Sampler& find(std::string_view name) {
  const std::string wanted = folded(name);
  for (const auto& [own, sampler] : registry()) {
    if (own == wanted || std::count(sampler.aliases.begin(), sampler.aliases.end(), wanted) > 0)
      return sampler;
  }
  fail("sample: sampler: there is no \"", name, "\"", suggestion(name, sampler_names()));
}

void check_options(const Sampler& sampler, const SamplerOptions& options) {
  check(options.steps >= 1 && options.steps <= max_steps, "sample: steps: expected 1 to ", max_steps,
        ", got ", options.steps);
  check(options.t_end >= 0 && options.t_end < options.t_start && options.t_start <= 1,
        "sample: times: expected 0 <= t_end < t_start <= 1, got t_start ", options.t_start, " and t_end ",
        options.t_end);
  check(options.eta >= 0 && options.eta <= 1, "sample: eta: expected 0 to 1, got ", options.eta);
  check(options.eta == 0 || sampler.takes_eta, "sample: eta: expected 0, because the sampler ", sampler.name,
        " has none, got ", options.eta);
  check(options.shift >= 1 / max_shift && options.shift <= max_shift, "sample: shift: expected ",
        1 / max_shift, " to ", max_shift, ", got ", options.shift);
  check(!options.clamp || *options.clamp > 0, "sample: clamp: expected more than 0, got ",
        options.clamp.value_or(0));
}

}  // namespace

std::vector<std::string> Path::names() {
  return {"flow", "epsilon", "flow-x0"};
}

std::vector<std::string> Path::variance_names() {
  return {"linear", "sine", "cosine", "sigmoid", "ddpm-linear"};
}

std::vector<std::string> Loss::names() {
  return {"mse", "min-snr"};
}

double shifted(double t, double shift) {
  return shift == 1 ? t : t / (t + (1 - t) / shift);  // no rounding moves 0 and 1, or leads beyond
}

double auto_shift(double width, double height, double s0) {
  check(width > 0 && height > 0, "auto_shift: size: expected more than 0, got ", width, "x", height);
  check(s0 > 0, "auto_shift: s0: expected more than 0, got ", s0);
  return std::sqrt(std::sqrt(width * height) / s0);
}

std::vector<double> time_grid(const SamplerOptions& options) {
  std::vector<double> times;
  for (int i = 0; i < options.steps; ++i)
    times.push_back(shifted(
        options.t_start + (options.t_end - options.t_start) * (static_cast<double>(i) / options.steps),
        options.shift));
  times.push_back(shifted(options.t_end, options.shift));
  return times;
}

RegisterSampler::RegisterSampler(Sampler sampler) {
  for (std::string& alias : sampler.aliases) alias = folded(alias);
  registry().emplace(sampler.name, std::move(sampler));
}

const Sampler& checked_sampler(std::string_view name, const SamplerOptions& options) {
  const Sampler& sampler = find(name);
  check_options(sampler, options);
  return sampler;
}

bool needs_noise(const Sampler& sampler, const SamplerOptions& options) {
  return sampler.always_noise || options.eta > 0;
}

std::vector<double> evaluation_times(std::string_view name, const SamplerOptions& options) {
  const Sampler& sampler = checked_sampler(name, options);
  std::vector<double> grid = time_grid(options);
  if (sampler.times != nullptr) return sampler.times(grid);
  grid.pop_back();
  return grid;
}

int evaluations(std::string_view sampler, const SamplerOptions& options) {
  return static_cast<int>(evaluation_times(sampler, options).size());
}

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const auto& [name, sampler] : registry()) names.push_back(name);
  return names;
}

std::string canonical_sampler(std::string_view name) {
  return find(name).name;
}

std::string sampler_summary(std::string_view name) {
  return find(name).summary;
}

bool uses_noise(std::string_view name, const SamplerOptions& options) {
  return needs_noise(checked_sampler(name, options), options);
}

double auto_omega(double width, double height, double s0) {
  check(width > 0 && height > 0, "auto_omega: size: expected more than 0, got ", width, "x", height);
  check(s0 > 0, "auto_omega: s0: expected more than 0, got ", s0);
  return 4 * std::sqrt(width * height) / s0;
}

}  // namespace pom::diffusion
