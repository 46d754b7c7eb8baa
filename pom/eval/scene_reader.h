// The other judge of scenes: a small convolutional network that finds the centres of objects and their hues,
// and a second one that looks at a cut around each and says what it is. They learn from drawings alone and
// never see a generated picture before they read it. N pictures of H x W pixels, F features.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/judge.h"
#include "pom/eval/scene_judge.h"

namespace pom::eval {

struct SeenObject {
  std::int64_t kind = 0, hue = 0;  // of data::shape_names() and hue_names()
  double x = 0, y = 0;             // the centre, in shorter sides from the middle, y upwards
  double sure = 0;                 // 0 to 1: that there is something
};
using SceneReading = std::vector<SeenObject>;  // the surest first

// What a reading confirms of a scene. Which one is in front it does not see: such relations count as not
// asked. Ground and fit are left true.
SceneAgreement compare(const data::Scene& scene, const SceneReading& reading);

// Whether both judges saw the same shapes in the same hues, each as often.
bool read_alike(const SceneVerdict& verdict, const SceneReading& reading);

class SceneReader {
 public:
  static JudgeConfig usual_config();  // of 64x64
  // On the CPU; a function of the config, the build and the number of threads.
  static SceneReader train(const JudgeConfig& config, const OnJudgeStep& on_step = {});

  // As Judge::read and write.
  static SceneReader read(const std::filesystem::path& path, const Canvas& canvas);
  void write(const std::filesystem::path& path) const;

  const JudgeConfig& config() const { return config_; }

  struct Readings {
    std::vector<SceneReading> scenes;  // N
    at::Tensor features;               // (N, F) fp32: what both see, over the whole picture
  };
  // Pictures (N, 3, H, W) uint8 of the reader's size.
  Readings look(const at::Tensor& pictures) const;

 private:
  using Weights = std::map<std::string, at::Tensor>;
  SceneReader(const JudgeConfig& config, Weights weights) : config_(config), weights_(std::move(weights)) {}

  JudgeConfig config_;
  Weights weights_;  // fp32
};

// Drawings of scenes, of all splits alike: (N, 3, H, W) uint8.
at::Tensor drawn_for_reading(DrawnFor purpose, std::uint64_t seed, std::int64_t count, const Canvas& canvas);

// Of drawings it never saw in training, of all splits alike: how often a reading has the right shapes, the
// right hues, and every object right with none more.
struct ReaderRates {
  double objects = 0, colours = 0, everything = 0;
};
ReaderRates held_out_rates(const SceneReader& reader, std::int64_t count = 2000);

}  // namespace pom::eval
