// Tests of clips whose prompt changes: the same bytes always, sprites that go on from where the ones before
// them were, grounds that stay unless another is named, and captions of the parts.
#include "pom/data/sprite_shots.h"

#include "tests/data/support.h"
#include <algorithm>
#include <cmath>

#include "pom/data/loader.h"
#include "pom/io/sha256.h"

namespace pom::data {
namespace {

using Pixels = std::vector<std::uint8_t>;

const ClipFormat format = {.frames = 48};

SpriteOptions changing(double changes = 1, double unnamed = 0) {
  SpriteOptions options;
  options.changes = changes, options.unnamed = unnamed;
  return options;
}

Pixels drawn(std::span<const SpriteShot> shots, const ClipFormat& as = format) {
  Pixels pixels(static_cast<std::size_t>(3 * as.frames * as.width * as.height));
  draw_shots(shots, as, pixels);
  return pixels;
}

TEST(SpriteShots, BytesNeverChange) {
  io::Sha256 all;
  std::string captions;
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::vector<SpriteShot> shots = sprite_shots_at(changing(0.5, 0.25), 7, i, format);
    const Pixels pixels = drawn(shots);
    all.update(std::as_bytes(std::span(pixels)));
    for (const std::string& caption : captions_of_parts(shots, 6, 48)) captions += caption + "\n";
  }
  io::Sha256 text;
  text.update(std::as_bytes(std::span(captions)));
  EXPECT_EQ(all.hex(), "c9fe2783828c19d7858b7a83e032751e617a8799cd165f2a1b2cf63dc428097a");
  EXPECT_EQ(text.hex(), "d2f6fee73ff7efea9a5cd7639bb62971d5212180c88e950478f0bdc27e0a468b");
}

// Both begin with the scene that a clip without a change has, frame by frame.
TEST(SpriteShots, BeginLikeTheClipWithoutAChange) {
  for (std::int64_t i = 0; i < 10; ++i) {
    const std::vector<SpriteShot> shots = sprite_shots_at(changing(), 3, i, format);
    ASSERT_EQ(shots.size(), 2u);
    const SpriteClip plain = sprite_clip_at({}, 3, i);
    EXPECT_EQ(caption_of(shots[0].clip), caption_of(plain));
    const Pixels changed = drawn(shots), same = drawn(std::vector<SpriteShot>{{0, plain}});
    const std::int64_t frame = 32 * 32;
    for (std::int64_t c = 0; c < 3; ++c) {
      const auto begin = c * 48 * frame, change = begin + shots[1].first * frame;
      EXPECT_TRUE(std::equal(changed.begin() + begin, changed.begin() + change, same.begin() + begin)) << i;
      EXPECT_FALSE(
          std::equal(changed.begin() + change, changed.begin() + begin + 48 * frame, same.begin() + change))
          << i;
    }
  }
}

TEST(SpriteShots, ChangeAtEveryPlaceInAShareOfTheClips) {
  std::vector<int> at(6);
  const int clips = 4000;
  for (std::int64_t i = 0; i < clips; ++i) {
    const std::vector<SpriteShot> shots = sprite_shots_at(changing(0.4), 5, i, format);
    const std::int64_t first = shots.size() > 1 ? shots[1].first : 0;
    ASSERT_EQ(first % 8, 0);
    ++at[static_cast<std::size_t>(first / 8)];
  }
  EXPECT_NEAR(at[0], 0.6 * clips, 5 * std::sqrt(0.24 * clips));
  for (std::size_t place = 1; place < 6; ++place)
    EXPECT_NEAR(at[place], 0.08 * clips, 5 * std::sqrt(0.08 * clips)) << place;
}

// At any size: drifts exactly where the last one was on the axes along which they go, the others as near as a
// whole sprite may be; bounces on their line.
TEST(SpriteShots, SpritesGoOnFromThePlaceOfThoseBefore) {
  const ClipFormat wide = {.width = 48, .height = 32, .frames = 48, .fps = 10};
  int drifts = 0, bounces = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::vector<SpriteShot> shots = sprite_shots_at(changing(), 9, i, wide);
    const double seconds = static_cast<double>(shots[1].first) / wide.fps;
    const std::size_t both = std::min(shots[0].clip.sprites.size(), shots[1].clip.sprites.size());
    for (std::size_t s = 0; s < both; ++s) {
      const Sprite& now = shots[1].clip.sprites[s];
      const Shape was = sprite_at(shots[0].clip.sprites[s], seconds, 48, 32),
                  is = sprite_at(now, seconds, 48, 32);
      const double room_x = 0.75 - 1.09 * now.radius, room_y = 0.5 - 1.09 * now.radius;
      const double near_x = std::clamp<double>(was.x, -room_x, room_x),
                   near_y = std::clamp<double>(was.y, -room_y, room_y);
      if (now.motion == Motion::bounce) {
        if (now.direction % 2 == 1) continue;
        EXPECT_NEAR(is.x, near_x, 1e-5) << i;
        EXPECT_NEAR(is.y, near_y, 1e-5) << i;
        ++bounces;
        continue;
      }
      const bool still = now.motion == Motion::stay;
      EXPECT_NEAR(std::remainder(is.x - (still || now.direction % 4 == 2 ? near_x : was.x), 1.5), 0, 1e-5);
      EXPECT_NEAR(std::remainder(is.y - (still || now.direction % 4 == 0 ? near_y : was.y), 1.0), 0, 1e-5);
      ++drifts;
    }
  }
  EXPECT_GT(drifts, 500);
  EXPECT_GT(bounces, 50);
}

TEST(SpriteShots, TheGroundStaysUnlessAnotherIsNamed) {
  int stayed = 0, changed = 0, named_anyway = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::vector<SpriteShot> shots = sprite_shots_at(changing(1, 0.5), 2, i, format);
    const SpriteClip &before = shots[0].clip, &after = shots[1].clip;
    const std::string caption = caption_of(after);
    const bool same = std::equal(&before.background.ground[0][0], &before.background.ground[0][0] + 6,
                                 &after.background.ground[0][0]);
    EXPECT_EQ(same, before.ground == after.ground);
    EXPECT_FALSE(hides(after.ground, after.sprites)) << caption;
    if (!after.named) {
      EXPECT_TRUE(same);
      ++stayed;
    }
    changed += !same;
    named_anyway += after.named && hides(before.ground, after.sprites);
  }
  EXPECT_GT(stayed, 600);
  EXPECT_GT(changed, 600);
  EXPECT_GT(named_anyway, 50);
}

TEST(SpriteShots, CaptionsWithoutTheGroundSayTheRest) {
  SpriteClip clip;
  clip.sprites.resize(1);
  clip.sprites[0].kind = 3;
  clip.sprites[0].direction = 4;
  clip.named = false;
  EXPECT_EQ(caption_of(clip, 0), "a red star drifts to the left");
  EXPECT_EQ(caption_of(clip, 2), "red star moving left");
  EXPECT_EQ(caption_of(clip, 7), "a star that is red floats to the left");
  int unnamed = 0;
  for (std::int64_t i = 0; i < 4000; ++i) unnamed += !sprite_clip_at(changing(0, 0.25), 1, i).named;
  EXPECT_NEAR(unnamed, 1000, 140);
}

TEST(SpriteShots, ThroughTheLoader) {
  DataConfig config{.kind = "sprites", .size = {16, 16}, .frames = 16};
  config.sprites = changing(0.5);
  config.sprites.change_every = 4;
  const Split split = open_dataset(config, 3);
  EXPECT_EQ(split.training->parts(), 4);
  EXPECT_EQ(split.validation->parts(), 4);
  Loader loader(split.training, {.batch = 8, .workers = 2});
  const Batch batch = loader.next();
  ASSERT_EQ(batch.captions.size(), 32u);
  const ClipFormat as = {.width = 16, .height = 16, .frames = 16};
  for (std::int64_t i = 0; i < 8; ++i) {
    const std::vector<SpriteShot> shots = sprite_shots_at(config.sprites, 3, i, as);
    EXPECT_EQ(bytes_of(batch.pictures[i]), drawn(shots, as));
    for (std::int64_t part = 0; part < 4; ++part) {
      const bool later = shots.size() > 1 && part * 4 >= shots[1].first;
      EXPECT_EQ(batch.captions[static_cast<std::size_t>(4 * i + part)],
                caption_of(shots[later ? 1 : 0].clip));
    }
  }
}

TEST(SpriteShots, MistakesAreNamed) {
  const auto message = [](std::int64_t every) -> std::string {
    DataConfig config{.kind = "sprites", .frames = 16};
    config.sprites = changing();
    config.sprites.change_every = every;
    try {
      make_sprites(config, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  for (const std::int64_t every : {5, 16, 0})
    EXPECT_EQ(message(every), "data: change_every: expected a divisor of data.frames (16) below it, got " +
                                  std::to_string(every));
}

}  // namespace
}  // namespace pom::data
