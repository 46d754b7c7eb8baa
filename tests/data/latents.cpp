// Tests of latents in files: mean and standard deviation, drawn anew at each visit, and every mistake.
#include "tests/data/support.h"
#include <cmath>
#include <cstring>
#include <map>

#include <c10/util/BFloat16.h>

#include "pom/base/noise.h"
#include "pom/data/folder.h"
#include "pom/data/loader.h"
#include "pom/io/safetensors.h"

namespace pom::data {
namespace {

namespace st = io::safetensors;
using Values = std::vector<float>;
using Shape3 = std::vector<std::int64_t>;

class LatentsTest : public FolderTest {
 protected:
  void put_latent(const std::string& name, const std::map<std::string, Values>& tensors,
                  const Shape3& shape = {2, 1, 3}) {
    std::vector<st::TensorView> views;
    for (const auto& [key, values] : tensors)
      views.push_back({key, st::Dtype::F32, shape, std::as_bytes(std::span(values))});
    fs::create_directories((folder / name).parent_path());
    st::write(folder / name, views);
  }
  Split open(std::uint64_t seed = 5, std::int64_t validation = 0) const {
    return open_dataset({.kind = "latents", .path = folder.string(), .validation = validation}, seed);
  }
};

Values floats_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

const Values ramp = {0, 1, 2, 3, 4, 5}, ones = {1, 1, 1, 1, 1, 1};

TEST_F(LatentsTest, MeanPlusNoiseOfTheVisit) {
  put_latent("cat/1.safetensors", {{"mean", ramp}});
  put_latent("dog/2.safetensors", {{"mean", ramp}, {"std", {0.5f, 0.5f, 0.5f, 2, 2, 0}}});
  const auto set = open().training;
  EXPECT_TRUE(set->latents());
  EXPECT_EQ(set->shape(), (Shape3{2, 1, 3}));
  EXPECT_EQ(set->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(floats_of(set->get(0, 3).picture), ramp);
  for (const std::int64_t visit : {0, 1}) {
    const Values sample = floats_of(set->get(1, visit).picture);
    const NoiseKey key{5, noise_for::codec, static_cast<std::uint32_t>(visit)};
    for (std::size_t i = 0; i < 6; ++i) {
      const float width = i < 3 ? 0.5f : i < 5 ? 2.0f : 0.0f;
      EXPECT_FLOAT_EQ(sample[i], ramp[i] + width * normal_at(key, static_cast<std::int64_t>(6 + i)));
    }
  }
  EXPECT_NE(floats_of(set->get(1, 0).picture), floats_of(set->get(1, 1).picture));
  EXPECT_EQ(floats_of(set->get(1, 1).picture), floats_of(set->get(1, 1).picture));
}

TEST_F(LatentsTest, ValidationSeesTheMean) {
  for (int i = 0; i < 20; ++i)
    put_latent("a/" + std::to_string(i) + ".safetensors", {{"mean", ramp}, {"std", ones}});
  const Split split = open(5, 2);
  ASSERT_EQ(split.validation->size(), 2);
  EXPECT_EQ(floats_of(split.validation->get(0, 7).picture), ramp);
}

TEST_F(LatentsTest, HalfPrecisionIsWidened) {
  const std::vector<c10::BFloat16> values = {1.5f, -2.0f};
  const Shape3 shape = {2, 1, 1};
  fs::create_directories(folder / "a");
  st::write(folder / "a/1.safetensors",
            std::vector<st::TensorView>{{"mean", st::Dtype::BF16, shape, std::as_bytes(std::span(values))}});
  EXPECT_EQ(floats_of(open().training->get(0, 0).picture), (Values{1.5f, -2.0f}));
}

TEST_F(LatentsTest, BatchesAreFloats) {
  for (int i = 0; i < 4; ++i)
    put_latent("a/" + std::to_string(i) + ".safetensors", {{"mean", Values(6, static_cast<float>(i))}});
  Loader loader(open().training, {.batch = 4, .workers = 2});
  const Batch batch = loader.next();
  EXPECT_EQ(batch.pictures.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.pictures.sizes(), (at::IntArrayRef{4, 2, 1, 3}));
  for (std::int64_t i = 0; i < 4; ++i)
    EXPECT_EQ(batch.pictures.data_ptr<float>()[6 * i], static_cast<float>(example_at(i, 4, 0).index));
  EXPECT_TRUE(to_model_range(batch.pictures).is_same(batch.pictures));
}

TEST_F(LatentsTest, MistakesAreNamed) {
  const auto mentions = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  put_latent("a/1.safetensors", {{"mean", ramp}});
  put_latent("a/2.safetensors", {{"mean", ramp}}, {2, 3, 1});
  put_latent("a/3.safetensors", {{"average", ramp}});
  put("a/4.safetensors", "broken");
  const auto set = open().training;
  mentions(error_of([&] { set->get(1, 0); }),
           "expected the shape (2, 1, 3) of the first file, got (2, 3, 1)");
  mentions(error_of([&] { set->get(2, 0); }), "mean");
  mentions(error_of([&] { set->get(3, 0); }), (folder / "a/4.safetensors").string());
  mentions(error_of([&] { open_dataset({.kind = "latents", .path = folder.string(), .flip = true}, 0); }),
           "data: flip");
  put_latent("a/0.safetensors", {{"mean", ramp}}, {6});
  mentions(error_of([&] { open(); }), "expected a shape (channels, height, width), got (6)");
  fs::create_directories(folder / "b");
  mentions(error_of([&] { open(); }), "expected latents (.safetensors), got none");
}

}  // namespace
}  // namespace pom::data
