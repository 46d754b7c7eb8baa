// How decoding enters a plan: whole where it fits, in strips where only those do, and refused where neither
// does. A codec that says what it takes stands for those that do.
#include "pom/generate/plan.h"

#include "tests/generate/tiny_model.h"
#include <gtest/gtest.h>

#include "pom/generate/process.h"
#include "pom/generate/resolve.h"

namespace pom::generate {
namespace {

constexpr std::int64_t mib = 1 << 20;

class Hungry : public codecs::Codec {
 public:
  std::int64_t channels() const override { return 3; }
  std::int64_t factor() const override { return 1; }
  at::Tensor encode(const at::Tensor& pictures, std::span<const std::uint64_t>) const override {
    return pictures;
  }
  at::Tensor decode(const at::Tensor& latents) const override { return latents; }
  std::int64_t decode_bytes(std::int64_t, std::int64_t, std::int64_t frames) const override {
    asked = frames;
    return 4000 * mib;
  }
  std::int64_t least_decode_bytes(std::int64_t, std::int64_t, std::int64_t) const override {
    return 1000 * mib;
  }
  std::int64_t weight_bytes() const override { return 100 * mib; }
  mutable std::int64_t asked = 0;
};

class PlanTest : public testing::Test {
 protected:
  Plan plan(std::int64_t memory, Work work = {.items = 3}) const {
    Request request;
    request.class_name = "star";
    const Request whole = resolve(request, config, {.factor = 1, .block_frames = 1}).first();
    return make_plan(config, codec, whole, work, {.memory_bytes = memory}, 0);
  }
  ModelConfig config = TinyModel::tiny_config();
  Hungry codec;
};

TEST_F(PlanTest, WholeWhereItFits) {
  const Plan p = plan(resident_bytes() + 5000 * mib);
  EXPECT_TRUE(p.fits);
  EXPECT_EQ(p.decode_memory, 0);
  EXPECT_GT(p.peak_bytes, resident_bytes() + 4000 * mib);
  EXPECT_EQ(p.batch, 3) << "items are decoded one after another";
}

TEST_F(PlanTest, InStripsWhereOnlyThoseFit) {
  const std::int64_t memory = resident_bytes() + 2000 * mib;
  const Plan p = plan(memory);
  EXPECT_TRUE(p.fits);
  EXPECT_GT(p.decode_memory, 1000 * mib);
  EXPECT_LT(p.decode_memory, 2000 * mib);
  EXPECT_LE(p.peak_bytes, memory);
}

TEST_F(PlanTest, RefusedWhereNeitherDoes) {
  const Plan p = plan(resident_bytes() + 500 * mib);
  EXPECT_FALSE(p.fits);
  EXPECT_EQ(p.decode_memory, 1000 * mib) << "no less than it must";
}

TEST_F(PlanTest, NothingOnAGpu) {
  const Plan p = plan(resident_bytes() + 500 * mib, {.items = 3, .on_gpu = true});
  EXPECT_TRUE(p.fits) << "the host decodes nothing";
}

TEST_F(PlanTest, FramesOfAClipAreAskedForAtOnce) {
  config.network.kind = "vdipom";
  config.network.patch_time = 2;
  Request request;
  request.prompt = {"a star"};
  const Request whole = resolve(request, config, {.factor = 1, .block_frames = 2}).first();
  run_memory(config, codec, whole, {.clip = true}, 0);
  EXPECT_EQ(codec.asked, 2);
}

}  // namespace
}  // namespace pom::generate
