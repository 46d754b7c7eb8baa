// Tests of the codec whose latents are the pictures.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/codecs/codec.h"

namespace pom::codecs {
namespace {

TEST(Pixels, PlainPicturesPassThrough) {
  const auto codec = make_codec({}, 3);
  EXPECT_EQ(codec->channels(), 3);
  EXPECT_EQ(codec->factor(), 1);
  EXPECT_EQ(codec->decode_bytes(64, 64), 0);
  const at::Tensor x = at::rand({2, 3, 4, 5});
  EXPECT_TRUE(at::equal(codec->encode(x), x));
  EXPECT_TRUE(at::equal(codec->decode(x), x));
}

TEST(Pixels, ScaleAndShift) {
  const auto codec = make_codec({.scale = 4, .shift = 0.5}, 1);
  const at::Tensor x = at::rand({2, 1, 4, 5}), before = x.clone();
  const at::Tensor latents = codec->encode(x);
  EXPECT_TRUE(at::equal(latents, (x - 0.5) * 4));
  EXPECT_TRUE(at::allclose(codec->decode(latents), x, 1e-6, 1e-7));
  EXPECT_TRUE(at::equal(x, before)) << "the input was changed";
  EXPECT_GT(codec->decode_bytes(64, 64), 0);
}

TEST(Pixels, FramesOfClipsArePictures) {
  const auto codec = make_codec({.scale = 4, .shift = 0.5}, 3);
  const at::Tensor clips = at::rand({2, 3, 6, 4, 5});
  const at::Tensor latents = codec->encode_clips(clips);
  EXPECT_EQ(codec->time_factor(), 1);
  ASSERT_EQ(latents.sizes(), clips.sizes());
  EXPECT_TRUE(at::equal(latents.select(2, 4), codec->encode(clips.select(2, 4))));
  const auto decoder = codec->clip_decoder();
  const at::Tensor frames =
      at::cat({decoder->next(latents.slice(2, 0, 2)), decoder->next(latents.slice(2, 2))}, 2);
  EXPECT_TRUE(at::allclose(frames, clips, 1e-6, 1e-7));
  EXPECT_TRUE(decoder->state().empty());
  EXPECT_THROW(decoder->set_state({{"a", at::zeros({1})}}), Error);
  EXPECT_THROW(decoder->next(at::rand({2, 3, 4, 5})), Error);
}

TEST(Pixels, Refusals) {
  EXPECT_THROW(make_codec({}, 4), Error);
  EXPECT_THROW(make_codec({.kind = "vae"}, 3), Error);
  const auto codec = make_codec({}, 3);
  EXPECT_THROW(codec->decode(at::rand({2, 1, 4, 4})), Error);
  EXPECT_THROW(codec->decode(at::rand({3, 4, 4})), Error);
  EXPECT_THROW(codec->encode(at::zeros({1, 3, 4, 4}, at::kByte)), Error);
}

}  // namespace
}  // namespace pom::codecs
