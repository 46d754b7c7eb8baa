// Tests of the judge of clips: right on drawings that nothing was fitted to, of every split, also where they
// are noisy, small, wide or long; and honest where there is nothing to see.
#include "pom/eval/sprite_judge.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"

namespace pom::eval {
namespace {

at::Tensor drawn(const data::SpriteClip& clip, const data::ClipFormat& format, double noise,
                 std::uint64_t seed) {
  at::Tensor pixels = at::empty({3, format.frames, format.height, format.width}, at::kByte);
  auto* bytes = pixels.data_ptr<std::uint8_t>();
  data::draw_clip(clip, format, {bytes, static_cast<std::size_t>(pixels.numel())});
  for (std::int64_t i = 0; noise > 0 && i < pixels.numel(); ++i) {
    const double z = normal_at({seed, noise_for::test, 0}, i);
    bytes[i] = static_cast<std::uint8_t>(std::clamp(bytes[i] + 255 * noise * z, 0.0, 255.0));
  }
  return pixels;
}

SpriteScores scores_of(const data::SpriteOptions& wanted, const data::ClipFormat& format, int count,
                       double noise = 0) {
  data::SpriteOptions options = wanted;
  options.two = 0;
  SpriteScores scores;
  for (int i = 0; i < count; ++i) {
    const data::SpriteClip clip = data::sprite_clip_at(options, 0x6a75646765, i);
    const at::Tensor pixels = drawn(clip, format, noise, static_cast<std::uint64_t>(i));
    scores.add(compare(clip.sprites[0], judge_sprite(pixels, format.fps)));
  }
  return scores;
}

void expect_right(const SpriteScores& scores, double least) {
  EXPECT_GE(scores.kind_rate(), least);
  EXPECT_GE(scores.hue_rate(), least);
  EXPECT_GE(scores.direction_rate(), least);
}

TEST(SpriteJudge, IsRightOnDrawings) {
  for (const char* split : {"training", "new_both"}) {
    data::SpriteOptions options;
    options.split = split;
    expect_right(scores_of(options, {}, 300), 0.99);
  }
}

TEST(SpriteJudge, IsRightAtOtherSizesLengthsAndRates) {
  expect_right(scores_of({}, {.width = 48, .height = 32, .frames = 12}, 60), 0.98);
  expect_right(scores_of({}, {.width = 24, .height = 40, .frames = 24, .fps = 16}, 60), 0.98);
  expect_right(scores_of({}, {.frames = 48, .first = 1000}, 40), 0.97);
  expect_right(scores_of({}, {.frames = 5}, 60), 0.96);
}

TEST(SpriteJudge, PutsUpWithNoise) {
  expect_right(scores_of({}, {}, 100, 0.04), 0.97);
}

// A judge that says yes to everything would pass the tests above.
TEST(SpriteJudge, DeniesWhatIsNotSo) {
  data::SpriteOptions options;
  options.two = 0;
  SpriteScores scores;
  for (int i = 0; i < 60; ++i) {
    const data::Sprite other = data::sprite_clip_at(options, 1, i + 1).sprites[0];
    scores.add(compare(other, judge_sprite(drawn(data::sprite_clip_at(options, 1, i), {}, 0, 0), 8)));
  }
  EXPECT_LT(scores.kinds, 20);
  EXPECT_LT(scores.hues, 20);
  EXPECT_LT(scores.directions, 25);
}

TEST(SpriteJudge, ClipsRunBackwardsGoTheOtherWay) {
  data::SpriteOptions options = {.two = 0, .bouncing = 0, .staying = 0};
  for (int i = 0; i < 30; ++i) {
    const data::SpriteClip clip = data::sprite_clip_at(options, 5, i);
    const SpriteVerdict verdict = judge_sprite(drawn(clip, {}, 0, 0).flip({1}), 8);
    EXPECT_EQ(verdict.direction, (clip.sprites[0].direction + 4) % 8) << data::caption_of(clip);
    EXPECT_NEAR(verdict.speed / clip.sprites[0].speed, 1, 0.1) << data::caption_of(clip);
  }
}

TEST(SpriteJudge, LongClipsInParts) {
  data::SpriteOptions options = {.two = 0, .bouncing = 0, .staying = 0};
  const data::SpriteClip one = data::sprite_clip_at(options, 6, 0), two = data::sprite_clip_at(options, 6, 1);
  const at::Tensor clip =
      at::cat({drawn(one, {}, 0, 0), drawn(two, {}, 0, 0), drawn(two, {.frames = 5}, 0, 0)}, 1);
  const std::vector<SpriteVerdict> verdicts = judge_parts(clip, 8, 16);
  ASSERT_EQ(verdicts.size(), 3u);
  EXPECT_EQ(verdicts[0].kind, one.sprites[0].kind);
  EXPECT_EQ(verdicts[0].direction, one.sprites[0].direction);
  EXPECT_EQ(verdicts[1].kind, two.sprites[0].kind);
  EXPECT_EQ(verdicts[1].direction, two.sprites[0].direction);
  EXPECT_EQ(verdicts[1].hue, two.sprites[0].hue);
}

TEST(SpriteJudge, SeesNothingWhereNothingIs) {
  EXPECT_FALSE(judge_sprite(at::full({3, 8, 32, 32}, 80, at::kByte), 8).found);
  data::SpriteClip clip = data::sprite_clip_at({}, 2, 4);
  clip.sprites.clear();
  EXPECT_FALSE(judge_sprite(drawn(clip, {}, 0, 0), 8).found);
  EXPECT_FALSE(judge_sprite(drawn(clip, {}, 0.03, 0), 8).found);
  EXPECT_FALSE(compare({}, {}).kind);
}

TEST(SpriteJudge, DrawingsFitTheirShapes) {
  data::SpriteOptions options;
  options.two = 0;
  for (int i = 0; i < 60; ++i) {
    const data::SpriteClip clip = data::sprite_clip_at(options, 3, i);
    EXPECT_LT(judge_sprite(drawn(clip, {}, 0, 0), 8).misfit, worst_fit / 4) << data::caption_of(clip);
  }
}

// Red on dark, wherever `inside` says so of a place in a square of 16 pixels, which goes to the right.
at::Tensor moving(const std::function<bool(int, int)>& inside) {
  at::Tensor clip = at::full({3, 8, 32, 32}, 30, at::kByte);
  for (int frame = 0; frame < 8; ++frame)
    for (int y = 0; y < 16; ++y)
      for (int x = 0; x < 16; ++x)
        if (inside(x, y)) clip[0][frame][8 + y][4 + x + frame] = 220;
  return clip;
}

// The judge names the nearest shape even here, and that must not count.
TEST(SpriteJudge, WhatIsNoneOfTheShapesIsNotRight) {
  at::Tensor bar = at::full({3, 8, 32, 32}, 30, at::kByte);
  bar.narrow(3, 3, 4).fill_(200);  // through the whole picture
  at::Tensor noise = at::full({3, 8, 32, 32}, 30, at::kByte);
  for (std::int64_t i = 0; i < noise.numel() / 3; ++i)  // red dots, others in each frame
    if (normal_at({7, noise_for::test, 0}, i) > 1.2) noise.data_ptr<std::uint8_t>()[i] = 220;
  const at::Tensor corner = moving([](int x, int y) { return x < 4 || y >= 12; }),
                   two = moving([](int x, int y) { return x < 5 || x >= 11; }),
                   frame = moving([](int x, int y) { return x < 3 || y < 3 || x >= 13 || y >= 13; });
  for (const at::Tensor& clip : {bar, noise, corner, two, frame}) {
    const SpriteVerdict verdict = judge_sprite(clip, 8);
    ASSERT_TRUE(verdict.found);
    EXPECT_GT(verdict.misfit, worst_fit);
    data::Sprite named;
    named.kind = verdict.kind, named.hue = verdict.hue;
    const SpriteAgreement agreement = compare(named, verdict);
    EXPECT_FALSE(agreement.kind);
    EXPECT_TRUE(agreement.hue);
    SpriteScores scores;
    scores.add(agreement);
    EXPECT_EQ(scores.found, 1);
    EXPECT_EQ(scores.fitting, 0);
  }
  SpriteScores nothing;
  nothing.add(compare({}, judge_sprite(at::full({3, 8, 32, 32}, 80, at::kByte), 8)));
  EXPECT_EQ(nothing.clips, 1);
  EXPECT_EQ(nothing.found + nothing.fitting + nothing.kinds, 0);
}

TEST(SpriteJudge, MistakesAreNamed) {
  const auto error_of = [](const at::Tensor& clip, double fps) {
    try {
      judge_sprite(clip, fps);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of(at::full({3, 32, 32}, 0, at::kByte), 8).find("(3, F, H, W)"), std::string::npos);
  EXPECT_NE(error_of(at::full({3, 8, 32, 32}, 0, at::kFloat), 8).find("uint8"), std::string::npos);
  EXPECT_NE(error_of(at::full({3, 8, 32, 32}, 0, at::kByte), 0).find("fps"), std::string::npos);
}

}  // namespace
}  // namespace pom::eval
