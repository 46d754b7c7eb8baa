// Tests of what a recipe opens: the kinds, the split into training and validation, the range of values.
#include "pom/data/dataset.h"

#include "tests/data/support.h"
#include <set>

#include <ATen/ops/arange.h>

#include "pom/data/shapes.h"

namespace pom::data {
namespace {

class DatasetTest : public FolderTest {
 protected:
  // Files that are no pictures: they are only counted here.
  void put_files(int count) {
    for (int i = 0; i < count; ++i) put("a/" + std::to_string(1000 + i) + ".png", "x");
  }
  Split open(std::int64_t validation, std::uint64_t seed = 0) const {
    return open_dataset({.kind = "folder", .path = folder.string(), .validation = validation}, seed);
  }
};

std::set<std::string> names(const Dataset& set) {
  std::set<std::string> all;
  for (std::int64_t i = 0; i < set.size(); ++i) all.insert(set.name_of(i));
  return all;
}

TEST_F(DatasetTest, ValidationIsHeldBack) {
  put_files(100);
  const Split split = open(7);
  const std::set<std::string> training = names(*split.training), validation = names(*split.validation);
  EXPECT_EQ(training.size(), 93u);
  EXPECT_EQ(validation.size(), 7u);
  for (const std::string& name : validation) EXPECT_FALSE(training.contains(name));
  EXPECT_EQ(names(*open(7).validation), validation);
  EXPECT_NE(names(*open(7, 1).validation), validation);
}

TEST_F(DatasetTest, ValidationIsATenthAtMost) {
  put_files(25);
  EXPECT_EQ(open(512).validation->size(), 2);
  EXPECT_EQ(open(512).training->size(), 23);
  EXPECT_EQ(open(0).validation->size(), 0);
  EXPECT_EQ(open(0).training->size(), 25);
}

TEST(Dataset, ValidationOfShapesIsFarAway) {
  DataConfig config{.size = {8, 8}, .flip = true, .validation = 16};
  const Split split = open_dataset(config, 4);
  EXPECT_EQ(split.training->size(), 0);
  ASSERT_EQ(split.validation->size(), 16);
  const DataConfig still{.size = {8, 8}};
  const auto far = make_shapes(still, 4, 0, std::int64_t{1} << 40);
  for (std::int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(bytes_of(split.validation->get(i, 3).picture), bytes_of(far->get(i, 0).picture));
  config.validation = 0;
  const Split all = open_dataset(config, 4);
  EXPECT_EQ(all.validation->size(), 0);
  EXPECT_FALSE(error_of([&] { all.validation->get(0, 0); }).empty());
}

TEST(Dataset, MistakesAreNamed) {
  const auto mentions = [](const DataConfig& config, const std::string& part) {
    const std::string text = error_of([&] { open_dataset(config, 0); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  mentions({.kind = "shaps"},
           "data: kind: expected shapes, folder, latents, shards, sprites, scenes, clips or clip_shards, got "
           "\"shaps\"; did "
           "you mean \"shapes\"?");
  mentions({.path = "somewhere"}, "data: path: expected none where kind is shapes, got \"somewhere\"");
  mentions({.size = {64}}, "data: size: expected width and height, got 1 number");
  mentions({.size = {0, 64}}, "data: size");
  mentions({.kind = "folder"}, "data: path: expected a folder");
}

TEST(Dataset, RangeOfTheModel) {
  const at::Tensor bytes = at::arange(256).to(at::kByte);
  const at::Tensor values = to_model_range(bytes);
  EXPECT_EQ(values.scalar_type(), at::kFloat);
  EXPECT_EQ(values.data_ptr<float>()[0], -1.0f);
  EXPECT_EQ(values.data_ptr<float>()[255], 1.0f);
  for (int i = 0; i < 256; ++i) EXPECT_NEAR(values.data_ptr<float>()[i], i / 127.5 - 1, 1e-6);
}

}  // namespace
}  // namespace pom::data
