// For those who write a sampler: the registry, and the trajectory that a sampler moves along. A sampler is a
// file with a function that takes the steps and a RegisterSampler. Flags, requests and Python find it there;
// beside that it has a line in CMakeLists.txt, one in tests/fuzz/samplers.cpp, which names the samplers
// without torch, and, where other programs have a name for it, one in sampler_label (generate/metadata.cpp).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/diffusion/path.h"
#include "pom/diffusion/sampler.h"

namespace pom::diffusion {

// A point of the grid: x = alpha·x0 + sigma·ε. sigma is 0 at t = 0 and nowhere else.
struct Level {
  double t, alpha, sigma;
};

class Trajectory {
 public:
  // References live as long as the trajectory.
  Trajectory(const Model& model, const at::Tensor& start, const Path& path, const SamplerOptions& options,
             const StepNoise& noise, const OnStep& on_step);

  int steps() const { return options_.steps; }
  double eta() const { return options_.eta; }
  // Step i leads from level(i) to level(i + 1); there are steps() + 1 levels.
  const Level& level(int i) const { return levels_[static_cast<std::size_t>(i)]; }

  // The pictures, which a sampler moves in place.
  at::Tensor x;

  // Memory for pictures.
  at::Tensor buffer() const;
  // x0 = what the model at level i says the clean pictures of `noisy` are, clipped if so asked.
  void predict(int i, const at::Tensor& noisy, const at::Tensor& x0) const;
  // The normals of step i, in a buffer that the next call uses again.
  const at::Tensor& noise(int i);
  // Step i is done; x0 is what it took the clean pictures to be.
  void done(int i, const at::Tensor& x0) const;

 private:
  const Model& model_;
  const Path& path_;
  const SamplerOptions& options_;
  const StepNoise& noise_;
  const OnStep& on_step_;
  std::vector<Level> levels_;
  at::Tensor noise_buffer_;
};

// t_start … t_end, steps + 1 of them.
std::vector<double> time_grid(const SamplerOptions& options);

struct Sampler {
  std::string name;
  std::vector<std::string> aliases = {};  // letter case, spaces and "_-()" aside
  std::string summary;
  void (*run)(Trajectory& trajectory);
  // The times at which run() predicts, for a grid; unless given, each but the last.
  std::vector<double> (*times)(std::span<const double> grid) = nullptr;
  bool takes_eta = false;
  bool always_noise = false;  // else with eta > 0
};

// The sampler of that name, which takes these options; an error otherwise.
const Sampler& checked_sampler(std::string_view name, const SamplerOptions& options);
bool needs_noise(const Sampler& sampler, const SamplerOptions& options);

struct RegisterSampler {
  explicit RegisterSampler(Sampler sampler);
};

}  // namespace pom::diffusion
