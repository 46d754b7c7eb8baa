// What holds for every registered sampler: times, ends, exactness from batch to batch, and errors.
#include "tests/diffusion/judge.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"

namespace {

using namespace pom;
using namespace pom::diffusion;
using namespace pom::diffusion::testing;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

#define EXPECT_SAYS(action, text) \
  EXPECT_NE(message_of([&] { action; }).find(text), std::string::npos) << message_of([&] { action; })

TEST(Sampler, KnowsItsNames) {
  EXPECT_EQ(sampler_names(), (std::vector<std::string>{"ddim", "ddpm", "dpm++2m", "euler", "heun"}));
  for (const char* name : {"dpm++2m", "dpmpp_2m", "DPM++ 2M", "dpm-solver++(2M)", "dpmpp-2m", "dpmsolver++"})
    EXPECT_EQ(canonical_sampler(name), "dpm++2m") << name;
  EXPECT_EQ(canonical_sampler("Euler"), "euler");
  for (const std::string& name : sampler_names()) EXPECT_FALSE(sampler_summary(name).empty());
  EXPECT_TRUE(uses_noise("ddpm", {}));
  EXPECT_FALSE(uses_noise("ddim", {}));
  EXPECT_TRUE(uses_noise("ddim", {.eta = 0.1}));
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  const Path path = Path::flow();
  const Model model = perfect_model(plane(), path);
  const at::Tensor x = start_noise(2, {2}, at::kDouble);
  const auto with = [&](std::string_view sampler, const SamplerOptions& options) {
    return sample(model, x, path, sampler, options);
  };
  EXPECT_SAYS(with("huen", {}), "did you mean \"heun\"");
  EXPECT_SAYS(with("plms", {}), "ddim, ddpm, dpm++2m, euler, heun");
  EXPECT_SAYS(with("heun", {.steps = 0}), "steps: expected 1 to 10000, got 0");
  EXPECT_SAYS(with("heun", {.steps = 1000000}), "steps: expected 1 to 10000");
  EXPECT_SAYS(with("ddim", {.eta = -0.5}), "eta: expected 0 to 1, got -0.5");
  EXPECT_SAYS(with("ddim", {.eta = 1.5}), "eta: expected 0 to 1");
  EXPECT_SAYS(with("ddim", {.eta = std::nan("")}), "eta: expected 0 to 1");
  EXPECT_SAYS(with("heun", {.eta = 0.5}), "sampler heun has none");
  EXPECT_SAYS(with("euler", {.shift = 0}), "shift: expected 0.001 to 1000, got 0");
  EXPECT_SAYS(with("euler", {.shift = std::nan("")}), "shift: expected 0.001 to 1000");
  EXPECT_SAYS(with("ddim", {.clamp = 0.0}), "clamp: expected more than 0");
  EXPECT_SAYS(with("ddim", {.t_start = 0.2, .t_end = 0.2}), "t_end < t_start");
  EXPECT_SAYS(with("ddim", {.t_start = 1.2}), "t_start <= 1");
  EXPECT_SAYS(with("ddpm", {}), "noise: the sampler ddpm needs some");
  EXPECT_SAYS(with("ddim", {.eta = 1}), "noise: the sampler ddim needs some");
  EXPECT_SAYS(sample({}, x, path, "heun", {}), "model: expected a function");
  EXPECT_SAYS(sample(model, {}, path, "heun", {}), "x: expected floating-point images");
  EXPECT_SAYS(evaluation_times("heun", {.steps = 0}), "steps: expected 1");
  const Model crooked = [](const at::Tensor& x, double) { return x.narrow(0, 0, 1); };
  EXPECT_SAYS(sample(crooked, x, path, "heun", {}), "model: expected an answer of shape [2, 2], got [1, 2]");
  const Model silent = [](const at::Tensor&, double) { return at::Tensor(); };
  EXPECT_SAYS(sample(silent, x, path, "heun", {}), "got nothing");
}

TEST(Sampler, CallsTheModelAtTheTimesAnnounced) {
  for (const std::string& name : sampler_names())
    for (const Path& path : all_paths())
      for (const SamplerOptions& options :
           {SamplerOptions{.steps = 1}, SamplerOptions{.steps = 7}, SamplerOptions{.steps = 30},
            SamplerOptions{.steps = 9, .t_start = 0.93, .t_end = 0.07},
            SamplerOptions{.steps = 8, .shift = 3}, SamplerOptions{.steps = 8, .shift = 0.1},
            SamplerOptions{.steps = 9, .t_start = 0.93, .t_end = 0.07, .shift = 3}}) {
        std::vector<double> called;
        const Model model = [&, perfect = perfect_model(plane(), path)](const at::Tensor& x, double t) {
          called.push_back(t);
          return perfect(x, t);
        };
        sample(model, start_noise(1, {2}, at::kFloat), path, name, options, step_noise({1}));
        EXPECT_EQ(called, evaluation_times(name, options)) << name << " on " << name_of(path);
        EXPECT_EQ(static_cast<int>(called.size()), evaluations(name, options));
      }
}

TEST(Sampler, ShiftMovesTimesTowardsNoise) {
  const std::vector<double> times = evaluation_times("euler", {.steps = 4, .shift = 3}),
                            expected = {1, 3 * 0.75 / 2.5, 0.75, 3 * 0.25 / 1.5};
  ASSERT_EQ(times.size(), expected.size());
  for (std::size_t i = 0; i < times.size(); ++i) EXPECT_DOUBLE_EQ(times[i], expected[i]);
  EXPECT_EQ(evaluation_times("euler", {.steps = 4, .shift = 1}), evaluation_times("euler", {.steps = 4}));
  for (const double shift : {0.001, 0.059, 0.1, 0.2, 0.3, 5.0, 1000.0}) {
    EXPECT_EQ(shifted(0, shift), 0);
    EXPECT_EQ(shifted(1, shift), 1) << shift;
  }
  EXPECT_DOUBLE_EQ(shifted(shifted(0.3, 5), 0.2), 0.3) << "an inverse shift undoes it";
}

TEST(Sampler, ShiftGrowsWithTheRootOfTheSide) {
  EXPECT_EQ(auto_shift(256, 256, 256), 1);
  EXPECT_DOUBLE_EQ(auto_shift(512, 512, 256), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(auto_shift(64, 64, 32), auto_shift(512, 512, 256)) << "latent sides, or pixels";
  EXPECT_DOUBLE_EQ(auto_shift(128, 32, 32), auto_shift(64, 64, 32)) << "as many pixels";
  const double r = auto_shift(1024, 1024, 256);  // of latents 128 wide: √(128 / 32)
  EXPECT_EQ(r, 2);
  for (const double t : {0.001, 0.25, 0.5, 0.9, 0.999})
    EXPECT_DOUBLE_EQ(shifted(t, r), r * t / (1 + (r - 1) * t)) << t;
  EXPECT_SAYS(auto_shift(0, 64, 32), "auto_shift: size: expected more than 0, got 0x64");
  EXPECT_SAYS(auto_shift(64, 64, 0), "auto_shift: s0: expected more than 0, got 0");
  EXPECT_SAYS(auto_shift(64, std::nan(""), 32), "auto_shift: size");
}

TEST(Sampler, LandsOnTheModes) {
  for (const std::string& name : sampler_names())
    for (const Path& path : all_paths())
      for (const at::ScalarType type : {at::kFloat, at::kDouble})
        for (const int steps : {1, 2, 3, 100}) {
          const at::Tensor x = sample(perfect_model(line(), path), start_noise(64, {1}, type), path, name,
                                      {.steps = steps}, step_noise(seeds_from(1, 64)));
          ASSERT_TRUE(x.isfinite().all().item<bool>()) << name << " on " << name_of(path) << ", " << steps;
          if (steps < 100) continue;
          const at::Tensor first = x.add(0.8).abs().div(0.2), second = x.sub(1.1).abs().div(0.1);
          EXPECT_LT(first.minimum(second).max().item<double>(), 4.5) << name << " on " << name_of(path);
        }
}

// A variance that is clamped at several of the grid's times must not divide by the steps that do not move.
TEST(Sampler, SurvivesStepsThatDoNotMove) {
  for (const std::string& name : sampler_names())
    for (const Path& path : all_paths()) {
      const at::Tensor x = sample(perfect_model(line(), path), start_noise(2, {1}, at::kFloat), path, name,
                                  {.steps = 5000}, step_noise({1, 2}));
      EXPECT_TRUE(x.isfinite().all().item<bool>()) << name << " on " << name_of(path);
    }
}

TEST(Sampler, ReportsEachStepAndStopsWhenTold) {
  const Path path = Path::flow();
  const Model model = perfect_model(plane(), path);
  const at::Tensor start = start_noise(2, {2}, at::kDouble);
  for (const std::string& name : sampler_names()) {
    std::vector<double> times;
    at::Tensor last, last_x0;
    const at::Tensor out =
        sample(model, start, path, name, {.steps = 4}, step_noise({1, 2}), [&](const StepInfo& info) {
          EXPECT_EQ(info.steps, 4);
          EXPECT_EQ(info.step, static_cast<int>(times.size()) + 1);
          times.push_back(info.t);
          last = info.x.clone();
          last_x0 = info.x0.clone();
        });
    EXPECT_EQ(times, (std::vector<double>{0.75, 0.5, 0.25, 0})) << name;
    EXPECT_TRUE(at::equal(last, out)) << name;
    EXPECT_TRUE(at::equal(last_x0, out)) << name;  // at t = 0 the picture is the prediction

    int steps = 0;
    const auto stop = [&](const StepInfo& info) {
      if (++steps == 2) throw std::runtime_error("enough");
    };
    EXPECT_THROW(sample(model, start, path, name, {.steps = 4}, step_noise({1, 2}), stop),
                 std::runtime_error);
    EXPECT_EQ(steps, 2) << name;
  }
}

TEST(Sampler, LeavesTheStartAndTakesAnyLayout) {
  const Path path = Path::flow();
  const at::Tensor start = start_noise(4, {6, 2}, at::kFloat), before = start.clone();
  const at::Tensor strided = start.transpose(0, 1).contiguous().transpose(0, 1);
  for (const std::string& name : sampler_names()) {
    const auto run = [&](const at::Tensor& x) {
      return sample(perfect_model(plane(), path), x, path, name, {.steps = 5}, step_noise(seeds_from(1, 4)));
    };
    EXPECT_TRUE(at::equal(run(start), run(strided))) << name;
    EXPECT_TRUE(at::equal(start, before)) << name;
  }
}

TEST(Sampler, ClipsThePrediction) {
  const Path path = Path::epsilon();
  for (const std::string& name : sampler_names()) {
    const at::Tensor x = sample(perfect_model({{1, 0, {3.0, -3.0}}}, path), start_noise(2, {2}, at::kDouble),
                                path, name, {.steps = 6, .clamp = 1.5}, step_noise({1, 2}));
    EXPECT_TRUE(at::equal(x.abs(), at::empty_like(x).fill_(1.5))) << name;
  }
}

// Pictures with seeds 5 … 5 + count − 1 out of batches of `batch`, with `threads` threads.
at::Tensor pictures(const std::string& sampler, const Path& path, std::vector<std::int64_t> shape,
                    std::size_t count, std::size_t batch, int threads) {
  at::set_num_threads(threads);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < count; i += batch) {
    const std::vector<std::uint64_t> seeds = seeds_from(5 + i, std::min(batch, count - i));
    const at::Tensor x = start_noise(static_cast<std::int64_t>(seeds.size()), shape, at::kFloat, 5 + i);
    SamplerOptions options{.steps = 4, .clamp = 1.2};
    if (sampler == "ddim") options.eta = 0.7;
    parts.push_back(sample(perfect_model(line(), path), x, path, sampler, options, step_noise(seeds)));
  }
  return at::cat(parts);
}

// Odd sizes shift every picture against the vectors of a loop; the large one is shared between threads.
TEST(Sampler, MakesOnePictureOfOneSeed) {
  const int threads = at::get_num_threads();
  for (const std::string& name : sampler_names())
    for (const Path& path : {Path::flow(), Path::epsilon(Variance::cosine)})
      for (const std::vector<std::int64_t>& shape :
           {std::vector<std::int64_t>{3, 7, 5}, std::vector<std::int64_t>{1, 1, 1},
            std::vector<std::int64_t>{3, 61, 47}}) {
        const at::Tensor alone = pictures(name, path, shape, 8, 1, 1);
        for (const std::size_t batch : {3, 8})
          for (const int width : {1, 2})
            EXPECT_TRUE(at::equal(pictures(name, path, shape, 8, batch, width), alone))
                << name << " on " << name_of(path) << ", batch " << batch << ", threads " << width;
      }
  at::set_num_threads(threads);
}

}  // namespace
