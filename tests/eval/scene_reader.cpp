// Tests of the network that reads scenes: it learns, the same way each time; what it says is compared as the
// other judge's; its files.
#include "pom/eval/scene_reader.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "pom/base/error.h"
#include "pom/eval/scene_reader_network.h"

namespace pom::eval {
namespace {

namespace fs = std::filesystem;

JudgeConfig small(std::int64_t steps) {
  JudgeConfig config = SceneReader::usual_config();
  config.canvas = {32, 32};
  config.steps = steps;
  config.batch = 16;
  return config;
}

TEST(SceneReader, Learns) {
  double first = 0, last = 0;
  SceneReader::train(small(40), [&](std::int64_t step, std::int64_t total, double loss) {
    EXPECT_EQ(total, 40);
    if (step == 1) first = loss;
    last = loss;
  });
  EXPECT_GT(first, 4);
  EXPECT_LT(last, 0.75 * first);
}

TEST(SceneReader, FilesKeepIt) {
  std::string name = (fs::temp_directory_path() / "pom-reader-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data()), file = folder / "reader.safetensors";
  const SceneReader reader = SceneReader::train(small(2));
  reader.write(file);
  const SceneReader again = SceneReader::read(file, {32, 32});
  EXPECT_EQ(again.config().steps, 2);
  const at::Tensor pictures = draw_for_reader(DrawnFor::holding_out, 0, 0, 3, {32, 32}).pictures;
  EXPECT_TRUE(at::equal(reader.look(pictures).features, again.look(pictures).features));
  EXPECT_EQ(reader.look(pictures).features.size(1), reader_features);
  EXPECT_THROW(SceneReader::read(file, {64, 64}), Error);
  EXPECT_THROW(Judge::read(file, {32, 32}), Error);
  EXPECT_THROW(reader.look(at::full({1, 3, 64, 64}, 0, at::kByte)), Error);
  fs::remove_all(folder);
}

// A reading of the truth agrees with its scene, and of nothing else.
TEST(SceneReader, ReadingsAreCompared) {
  const data::Scene scene = reader_scene(DrawnFor::holding_out, 0, 3);
  SceneReading reading;
  SceneVerdict verdict;
  for (const data::SceneObject& object : scene.objects) {
    reading.push_back({object.kind, object.hue, object.x, object.y, 1});
    verdict.objects.push_back({.kind = object.kind, .hue = object.hue});
  }
  EXPECT_TRUE(compare(scene, reading).everything());
  EXPECT_TRUE(read_alike(verdict, reading));
  reading[0].kind = (reading[0].kind + 1) % 10;
  EXPECT_FALSE(compare(scene, reading).pairs);
  EXPECT_FALSE(read_alike(verdict, reading));
  reading.erase(reading.begin());
  EXPECT_FALSE(compare(scene, reading).count);
  EXPECT_FALSE(read_alike(verdict, reading));
}

// What cells are asked for is where the objects are.
TEST(SceneReader, CellsHoldTheCentres) {
  const Canvas canvas{64, 48};
  const ReaderGrid grid = reader_grid(canvas);
  EXPECT_EQ(grid.width * grid.cell, 64);
  EXPECT_EQ(grid.height * grid.cell, 48);
  const SceneDrawings drawings = draw_for_reader(DrawnFor::holding_out, 0, 0, 8, canvas);
  for (std::int64_t i = 0; i < 8; ++i) {
    const data::Scene scene = reader_scene(DrawnFor::holding_out, 0, i);
    EXPECT_EQ(drawings.asked[i].sum().item<double>(), static_cast<double>(scene.objects.size()));
    EXPECT_EQ(drawings.hues[i].gt(0).sum().item<std::int64_t>(), std::ssize(scene.objects));
    EXPECT_LE(drawings.places[i].abs().max().item<double>(), 0.5);
  }
}

}  // namespace
}  // namespace pom::eval
