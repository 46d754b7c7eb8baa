// Samplers: from noise to pictures along any path, with a model that is a plain function. B pictures of any
// shape (B, …). A sampler is one file that registers itself (see trajectory.h); these are there:
//
//   ddpm      draws each step from the posterior of the Markov chain through the grid's times (stochastic)
//   ddim      the non-Markovian chain with the same marginals: eta 0 is deterministic, eta 1 is ddpm
//   dpm++2m   DPM-Solver++(2M): second order, one evaluation a step
//   euler     first order; on these paths the same numbers as ddim with eta 0
//   heun      second order, two evaluations a step
//
// Times lie on a grid, for every sampler and path: even steps u_i = t_start + (t_end − t_start)·i/steps,
// moved towards noise where `shift` is above 1: t_i = shift·u_i / (1 + (shift − 1)·u_i). At t = 0 a picture
// is clean, α = 1 and σ = 0, also where the path's variance is clamped: no model is evaluated there, so the
// clamp has nothing to protect. At t = 1 the path's own α and σ hold.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/path.h"

namespace pom::diffusion {

// What the network answers (path.prediction()) for the pictures x (B, …), all of them at time t: shaped like
// x.
using Model = std::function<at::Tensor(const at::Tensor& x, double t)>;

inline constexpr int max_steps = 10'000;
inline constexpr double max_shift = 1000;  // and its inverse the least

// Where a time goes that is moved towards noise (shift > 1) or away from it; 0 and 1 stay. On path flow it is
// the time at which noise that is `shift` times as strong hides as much.
double shifted(double t, double shift);

// The shift for pictures of width x height where that of side s0 is 1, √(side / s0) with the side √(width
// height): noise of one strength hides less of a larger picture, whose neighbouring pixels say the same. All
// three in pixels, or all in latent ones.
double auto_shift(double width, double height, double s0);

struct SamplerOptions {
  int steps = 50;
  double eta = 0;  // 0 to 1; ddim alone takes another than 0
  std::optional<double> clamp =
      {};  // the predicted x0 is clamped to ±clamp, and what follows from it follows
  double t_start = 1, t_end = 0;
  double shift = 1;  // above 1: more of the steps near noise
};

// What is known after a step.
struct StepInfo {
  int step, steps;       // the number of steps done, 1 … steps
  double t;              // where x is now
  const at::Tensor& x;   // valid during the call, like x0
  const at::Tensor& x0;  // the clean pictures as predicted in this step, for previews
};

using OnStep = std::function<void(const StepInfo&)>;  // may throw, which ends the sampling
// Fills `out`, shaped like x, with the standard normals of step `step`, which counts from 0. See noise.h.
using StepNoise = std::function<void(at::Tensor& out, std::uint32_t step)>;

// x: noise at t_start, or where `shift` moves it; it is left as it is. Throws pom::Error for options or a
// model that make no sense.
at::Tensor sample(const Model& model, const at::Tensor& x, const Path& path, std::string_view sampler,
                  const SamplerOptions& options, const StepNoise& noise = {}, const OnStep& on_step = {});

// Every time at which sample() will call the model, in order and to the bit, so that conditioning can be
// prepared.
std::vector<double> evaluation_times(std::string_view sampler, const SamplerOptions& options);
int evaluations(std::string_view sampler, const SamplerOptions& options);

// The names above, in alphabetical order.
std::vector<std::string> sampler_names();
// The name above for a name people use ("DPM++ 2M", "dpmpp_2m", …). Others are errors with the nearest
// suggested.
std::string canonical_sampler(std::string_view name);
// One line on what it is.
std::string sampler_summary(std::string_view name);
// Whether it needs StepNoise with these options.
bool uses_noise(std::string_view sampler, const SamplerOptions& options);

}  // namespace pom::diffusion
