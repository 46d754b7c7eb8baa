#include "pom/eval/scene_reader.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"
#include "pom/data/dataset.h"
#include "pom/eval/judge_learning.h"
#include "pom/eval/judge_weights_file.h"
#include "pom/eval/scene_reader_network.h"

namespace pom::eval {
namespace {

constexpr const char* reader_format = "pom reader of scenes, 1";

// ---- learning

// There is hardly a cell with an object: those without count less.
at::Tensor grid_loss(const GridOutput& out, const SceneDrawings& truth) {
  at::Tensor weights = at::ones({out.hues.size(1)}, out.hues.options());
  weights[0] = 0.1;
  const at::Tensor hues = at::cross_entropy_loss(out.hues, truth.hues, weights, at::Reduction::Mean,
                                                 skipped_cell),
                   places = ((out.places - truth.places).square() * truth.asked).sum() / truth.asked.sum();
  const at::Tensor kinds =
      at::cross_entropy_loss(out.kinds, truth.shown, {}, at::Reduction::Mean, skipped_cell);
  return hues + places + kinds;
}

// ---- reading

// The surest cell among those of its hue that are near: an object is seen from some cells beside its centre.
bool is_surest(const at::TensorAccessor<float, 3>& hues, std::int64_t hue, std::int64_t y, std::int64_t x) {
  constexpr std::int64_t reach = 2;
  const float own = hues[1 + hue][y][x];
  for (std::int64_t v = std::max<std::int64_t>(y - reach, 0); v <= std::min(y + reach, hues.size(1) - 1); ++v)
    for (std::int64_t u = std::max<std::int64_t>(x - reach, 0); u <= std::min(x + reach, hues.size(2) - 1);
         ++u)
      if (const float other = hues[1 + hue][v][u];
          other > own || (other == own && (v < y || (v == y && u < x))))
        return false;
  return true;
}

// What the first network says of one picture: hues (1 + hues, G, G') as probabilities, places (2, G, G').
SceneReading read_cells(const at::Tensor& hue_cells, const at::Tensor& place_cells, const Canvas& canvas) {
  const auto hues = hue_cells.accessor<float, 3>(), places = place_cells.accessor<float, 3>();
  const auto unit = static_cast<double>(std::min(canvas.width, canvas.height));
  const double cell = reader_grid(canvas).cell;
  SceneReading reading;
  for (std::int64_t y = 0; y < hues.size(1); ++y)
    for (std::int64_t x = 0; x < hues.size(2); ++x)
      for (std::int64_t hue = 0; hue + 1 < hues.size(0); ++hue) {
        if (hues[1 + hue][y][x] < 0.5f || !is_surest(hues, hue, y, x)) continue;
        const double right = (static_cast<double>(x) + 0.5 + static_cast<double>(places[0][y][x])) * cell,
                     down = (static_cast<double>(y) + 0.5 + static_cast<double>(places[1][y][x])) * cell;
        reading.push_back({0, hue, (right - static_cast<double>(canvas.width) / 2) / unit,
                           (static_cast<double>(canvas.height) / 2 - down) / unit,
                           static_cast<double>(hues[1 + hue][y][x])});
      }
  std::ranges::stable_sort(reading, std::ranges::greater{}, &SeenObject::sure);
  return reading;
}

std::vector<Cut> cuts_of(const std::vector<SceneReading>& readings, const Canvas& canvas) {
  const auto unit = static_cast<double>(std::min(canvas.width, canvas.height));
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < readings.size(); ++i)
    for (const SeenObject& seen : readings[i])
      cuts.push_back({static_cast<std::int64_t>(i), seen.hue,
                      std::llround(seen.x * unit + static_cast<double>(canvas.width) / 2),
                      std::llround(static_cast<double>(canvas.height) / 2 - seen.y * unit)});
  return cuts;
}

// The kinds of what was seen, by the second network; and its features, the mean of each picture's.
at::Tensor look_closer(const JudgeWeights& weights, const at::Tensor& pictures, const Canvas& canvas,
                       std::vector<SceneReading>& readings) {
  at::Tensor features = at::zeros({pictures.size(0), cut_features}, pictures.options());
  const std::vector<Cut> cuts = cuts_of(readings, canvas);
  if (cuts.empty()) return features;
  const CutOutput out = cut_forward(weights, cut_out(pictures, cuts));
  const at::Tensor kinds = out.kinds.argmax(1);
  std::int64_t next = 0;
  for (std::size_t i = 0; i < readings.size(); ++i) {
    const std::int64_t first = next;
    for (SeenObject& seen : readings[i]) seen.kind = kinds[next++].item<std::int64_t>();
    if (next > first)
      features[static_cast<std::int64_t>(i)].copy_(out.features.narrow(0, first, next - first).mean(0));
  }
  return features;
}

// As if the other judge had found it, drawn well.
SceneVerdict as_verdict(const SceneReading& reading) {
  SceneVerdict verdict;
  for (const SeenObject& seen : reading) {
    FoundObject& object = verdict.objects.emplace_back();
    object.kind = seen.kind, object.hue = seen.hue, object.x = seen.x, object.y = seen.y;
  }
  return verdict;
}

}  // namespace

SceneAgreement compare(const data::Scene& scene, const SceneReading& reading) {
  data::Scene seen = scene;
  std::erase_if(seen.relations, [](const data::SceneRelation& relation) {
    return relation.what == data::Relation::in_front_of || relation.what == data::Relation::behind;
  });
  SceneAgreement agreement = compare(seen, as_verdict(reading));
  agreement.ground = true;
  return agreement;
}

bool read_alike(const SceneVerdict& verdict, const SceneReading& reading) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> balance;
  for (const FoundObject& object : verdict.objects) ++balance[{object.kind, object.hue}];
  for (const SeenObject& object : reading) --balance[{object.kind, object.hue}];
  return std::ranges::all_of(balance, [](const auto& entry) { return entry.second == 0; });
}

JudgeConfig SceneReader::usual_config() {
  return {.canvas = {}, .seed = 0, .steps = 1200, .batch = 64, .lr = 4e-3};
}

SceneReader SceneReader::train(const JudgeConfig& config, const OnJudgeStep& on_step) {
  check_judge_config(config);
  JudgeWeights weights = initial_weights(reader_shapes(config.canvas), config.seed, {"says", "cut.kinds"});
  const auto loss = [&](std::int64_t step) {
    const SceneDrawings batch =
        draw_for_reader(DrawnFor::learning, config.seed, step * config.batch, config.batch, config.canvas);
    const at::Tensor x = worn(data::to_model_range(batch.pictures), config.seed, step);
    const CutOutput cuts = cut_forward(weights, cut_out(x, batch.cuts), /*learning=*/true);
    return grid_loss(grid_forward(weights, x, /*learning=*/true), batch) +
           at::cross_entropy_loss(cuts.kinds, batch.kinds);
  };
  learn(weights, config, loss, on_step);
  return SceneReader(config, std::move(weights));
}

SceneReader SceneReader::read(const std::filesystem::path& path, const Canvas& canvas) {
  JudgeFile file = read_judge_file(path, reader_format, canvas, reader_shapes(canvas));
  return SceneReader(file.config, std::move(file.weights));
}

void SceneReader::write(const std::filesystem::path& path) const {
  write_judge_file(path, reader_format, config_, weights_);
}

SceneReader::Readings SceneReader::look(const at::Tensor& pictures) const {
  const bool fitting = pictures.dim() == 4 && pictures.scalar_type() == at::kByte && pictures.size(0) > 0 &&
                       pictures.size(1) == 3 && pictures.size(2) == config_.canvas.height &&
                       pictures.size(3) == config_.canvas.width;
  check(fitting, "reader: pictures: expected uint8 (N, 3, ", config_.canvas.height, ", ",
        config_.canvas.width, "), got ", pictures.scalar_type(), " ", pictures.sizes());
  const at::NoGradGuard no_gradients;
  constexpr std::int64_t some = 256;
  Readings readings;
  std::vector<at::Tensor> features;
  for (const at::Tensor& part : pictures.split(some)) {
    const at::Tensor x = data::to_model_range(part);
    const GridOutput out = grid_forward(weights_, x);
    const at::Tensor hues = at::softmax(out.hues, 1), places = out.places.contiguous();
    std::vector<SceneReading> scenes;
    for (std::int64_t i = 0; i < part.size(0); ++i)
      scenes.push_back(read_cells(hues[i], places[i], config_.canvas));
    features.push_back(at::cat({out.features, look_closer(weights_, x, config_.canvas, scenes)}, 1));
    readings.scenes.insert(readings.scenes.end(), scenes.begin(), scenes.end());
  }
  readings.features = at::cat(features);
  return readings;
}

at::Tensor drawn_for_reading(DrawnFor purpose, std::uint64_t seed, std::int64_t count, const Canvas& canvas) {
  return draw_for_reader(purpose, seed, 0, count, canvas).pictures;
}

ReaderRates held_out_rates(const SceneReader& reader, std::int64_t count) {
  const JudgeConfig& config = reader.config();
  const SceneDrawings drawings = draw_for_reader(DrawnFor::holding_out, config.seed, 0, count, config.canvas);
  const SceneReader::Readings readings = reader.look(drawings.pictures);
  ReaderRates rates;
  for (std::int64_t i = 0; i < count; ++i) {
    const SceneAgreement agreement = compare(reader_scene(DrawnFor::holding_out, config.seed, i),
                                             readings.scenes[static_cast<std::size_t>(i)]);
    rates.objects += agreement.objects ? 1 : 0;
    rates.colours += agreement.colours ? 1 : 0;
    rates.everything += agreement.pairs && agreement.count ? 1 : 0;
  }
  for (double* rate : {&rates.objects, &rates.colours, &rates.everything})
    *rate /= static_cast<double>(count);
  return rates;
}

}  // namespace pom::eval
