// Blocks of pictures on their way through a network: the same for any order and any share, and nothing
// missed.
#include "pom/eval/picture_features.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

// Its feature is a picture's mean, and the sum of the block's means: whoever changes a block changes that.
class Means final : public FeatureNetwork {
 public:
  std::string name() const override { return "means"; }
  std::string resize() const override { return "none"; }
  const std::string& sha256() const override { return name_; }
  const at::Device& device() const override { return device_; }
  at::Tensor input(const at::Tensor& pictures) const override {
    return pictures.to(at::kFloat).mean({2, 3}).mean(1, /*keepdim=*/true);
  }
  PictureFeatures forward(const at::Tensor& input) const override {
    ++blocks;
    EXPECT_EQ(input.size(0), feature_block);  // short ones are filled up
    return {at::cat({input, input.sum().expand({input.size(0), 1})}, 1), {}, input * 2};
  }
  mutable std::int64_t blocks = 0;

 private:
  std::string name_ = "x";
  at::Device device_ = at::kCPU;
};

constexpr std::int64_t count = 75;

at::Tensor picture(std::int64_t number) {
  return at::full({3, 4, 4 + number % 2}, number, at::kByte);  // of two sizes
}

PictureFeatures whole(const Means& network) {
  return features_of(network, count, {0, count}, picture);
}

TEST(FeatureRows, AreThoseOfAnyOrder) {
  const Means network;
  const PictureFeatures expected = whole(network);
  EXPECT_EQ(network.blocks, 3);
  EXPECT_EQ(expected.main.sizes().vec(), (std::vector<std::int64_t>{count, 2}));
  EXPECT_EQ(expected.main[40][0].item<float>(), 40);
  EXPECT_EQ(expected.main[40][1].item<float>(), (32 + 63) * 16);
  EXPECT_FALSE(expected.spatial.defined());
  FeatureRows rows(network, count, {0, count});
  for (std::int64_t i = count; i-- > 0;) rows.add(i, picture(i));
  EXPECT_TRUE(at::equal(rows.rows().main, expected.main));
  EXPECT_TRUE(at::equal(rows.rows().logits, expected.logits));
}

TEST(FeatureRows, SharesAreWholeBlocks) {
  const Means network;
  std::vector<at::Tensor> parts;
  for (std::int64_t part = 0; part < 4; ++part) {
    const parallel::Share share = feature_share(count, 4, part);
    EXPECT_TRUE(share.count == 0 || share.first % feature_block == 0);
    if (share.count > 0) parts.push_back(features_of(network, count, share, picture).main);
  }
  EXPECT_TRUE(at::equal(at::cat(parts), whole(network).main));
  const PictureFeatures nothing = features_of(network, count, feature_share(count, 4, 3), picture);
  EXPECT_FALSE(nothing.main.defined());
}

TEST(FeatureRows, MissNothing) {
  const Means network;
  FeatureRows rows(network, count, {32, 32});
  rows.add(33, picture(33));
  EXPECT_THROW(rows.add(33, picture(33)), Error);
  EXPECT_THROW(rows.add(31, picture(31)), Error);
  EXPECT_THROW(rows.add(64, picture(64)), Error);
  EXPECT_THROW(rows.rows(), Error);
  EXPECT_THROW(FeatureRows(network, count, {16, 32}), Error);
  EXPECT_THROW(FeatureRows(network, 0, {0, 0}), Error);
  for (std::int64_t i = 32; i < 64; ++i)
    if (i != 33) rows.add(i, picture(i));
  EXPECT_EQ(rows.done(), 32);
  EXPECT_THROW(rows.add(40, picture(40)), Error);
  EXPECT_EQ(rows.rows().main.size(0), 32);
}

}  // namespace
}  // namespace pom::eval
