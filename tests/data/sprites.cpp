// Tests of the clips of sprites: always the same bytes, one scene at any size, length and rate, nothing of
// what is held out in training, and captions that say what is there.
#include "pom/data/sprites.h"

#include "tests/data/support.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <sstream>
#include <thread>

#include "pom/data/loader.h"
#include "pom/io/sha256.h"

namespace pom::data {
namespace {

using Pixels = std::vector<std::uint8_t>;

Pixels drawn(const SpriteClip& clip, const ClipFormat& format) {
  Pixels pixels(static_cast<std::size_t>(3 * format.frames * format.width * format.height));
  draw_clip(clip, format, pixels);
  return pixels;
}

// Frame f as a picture (3, H, W).
Pixels frame_of(const Pixels& clip, const ClipFormat& format, std::int64_t f) {
  const auto pixels = static_cast<std::size_t>(format.width * format.height);
  Pixels frame;
  for (std::int64_t c = 0; c < 3; ++c) {
    const auto* plane = clip.data() + static_cast<std::size_t>(c * format.frames + f) * pixels;
    frame.insert(frame.end(), plane, plane + pixels);
  }
  return frame;
}

std::string hash(const Pixels& pixels) {
  io::Sha256 sha;
  sha.update(std::as_bytes(std::span(pixels)));
  return sha.hex();
}

const std::vector<std::string> splits = {"training", "new_pairs", "new_wordings", "new_both"};

SpriteOptions of_split(const std::string& split) {
  SpriteOptions options;
  options.split = split;
  return options;
}

std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    while (!word.empty() && (word.back() == ',' || word.back() == ':')) word.pop_back();
    words.insert(word);
  }
  return words;
}

// The bytes of clips are a promise, as those of shapes are.
TEST(Sprites, BytesNeverChange) {
  io::Sha256 all, captions;
  for (std::int64_t i = 0; i < 200; ++i) {
    const SpriteClip clip = sprite_clip_at({}, 7, i);
    const Pixels pixels = drawn(clip, {});
    all.update(std::as_bytes(std::span(pixels)));
    const std::string caption = caption_of(clip);
    captions.update(std::as_bytes(std::span(caption)));
  }
  EXPECT_EQ(all.hex(), "aff35ee838d46a341f68a2764ae079846203b8b8a0211221780b4a3f0c8556d0");
  EXPECT_EQ(captions.hex(), "4846a1ea4e235893be77b1bc74fa6aed80c09547ae2855f9aa2e9b9d4c47f6a6");
  EXPECT_EQ(hash(drawn(sprite_clip_at(of_split("new_both"), ~std::uint64_t{0}, std::int64_t{1} << 40),
                       {.width = 48, .height = 27, .frames = 5, .fps = 29.97, .first = 123456789})),
            "d41fb7cc6370fc6b1354a89a25b27ee02279784bd607e5d2c0f9e4a3281ddb70");
}

TEST(Sprites, AreTheSameFromAnyThread) {
  const auto clips = make_sprites({.kind = "sprites", .size = {24, 24}, .frames = 6}, 3);
  std::vector<Pixels> alone(64), together(64);
  for (std::int64_t i = 0; i < 64; ++i)
    alone[static_cast<std::size_t>(i)] = bytes_of(clips->get(i, 0).picture);
  std::vector<std::jthread> threads;
  for (std::int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 63 - t; i >= 0; i -= 4)
        together[static_cast<std::size_t>(i)] = bytes_of(clips->get(i, 0).picture);
    });
  threads.clear();
  EXPECT_EQ(alone, together);
}

TEST(Sprites, EveryClipIsAnother) {
  std::set<std::string> seen;
  for (std::int64_t i = 0; i < 100; ++i)
    for (const std::uint64_t seed : {0, 1})
      seen.insert(hash(drawn(sprite_clip_at({}, seed, i), {.frames = 2})));
  EXPECT_EQ(seen.size(), 200u);
}

TEST(Sprites, LongClipsBeginWithShortOnes) {
  for (std::int64_t i = 0; i < 40; ++i) {
    const SpriteClip clip = sprite_clip_at({}, 5, i);
    const ClipFormat little = {.width = 20, .height = 16, .frames = 16};
    ClipFormat much = little, later = little;
    much.frames = 160;
    later.first = 137;
    const Pixels some = drawn(clip, little), all = drawn(clip, much), late = drawn(clip, later);
    for (std::int64_t f = 0; f < 16; ++f) {
      ASSERT_EQ(frame_of(some, little, f), frame_of(all, much, f)) << i;
      ASSERT_EQ(frame_of(late, later, f), frame_of(all, much, 137 + f)) << i;
    }
  }
}

TEST(Sprites, AnyRateShowsTheSameScene) {
  for (std::int64_t i = 0; i < 20; ++i) {
    const SpriteClip clip = sprite_clip_at({}, 6, i);
    const ClipFormat slow = {.frames = 4, .fps = 4}, fast = {.frames = 16, .fps = 16};
    const Pixels a = drawn(clip, slow), b = drawn(clip, fast);
    for (std::int64_t f = 0; f < 4; ++f) ASSERT_EQ(frame_of(a, slow, f), frame_of(b, fast, 4 * f)) << i;
  }
}

// What the renderer of pictures draws, wherever no edge and no second sprite is near.
TEST(Sprites, FramesAreDrawingsOfShapes) {
  int compared = 0;
  SpriteOptions alone;
  alone.two = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const SpriteClip clip = sprite_clip_at(alone, 9, i);
    Shape shape = sprite_at(clip.sprites[0], 3 / 8.0, 32, 32);
    if (std::max(std::abs(shape.x), std::abs(shape.y)) + 1.2f * shape.radius > 0.4f) continue;
    shape.background = clip.background.background;
    std::copy_n(&clip.background.ground[0][0], 6, &shape.ground[0][0]);
    shape.ground_angle = clip.background.ground_angle;
    shape.ground_cycles = clip.background.ground_cycles;
    shape.ground_crossed = clip.background.ground_crossed;
    Pixels picture(3 * 32 * 32);
    draw_shape(shape, 32, 32, picture);
    ASSERT_EQ(drawn(clip, {.frames = 1, .first = 3}), picture) << i;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(Sprites, WhatLeavesOnOneSideComesInOnTheOther) {
  SpriteClip clip;
  clip.sprites.resize(1);
  Sprite& sprite = clip.sprites[0];
  sprite.radius = 0.25f;
  sprite.speed = 0.5f;
  for (float& c : sprite.colour) c = 1;
  const auto sum = [&](const Pixels& pixels) {
    double total = 0;
    for (const std::uint8_t p : pixels) total += p;
    return total;
  };
  for (const std::int64_t direction : {0, 1, 2, 3, 4, 5, 6, 7}) {
    sprite.direction = direction;
    const ClipFormat format = {.width = 48, .height = 32, .frames = 40};
    const Pixels all = drawn(clip, format);
    const double whole = sum(frame_of(all, format, 0));
    for (std::int64_t f = 0; f < 40; ++f)
      ASSERT_NEAR(sum(frame_of(all, format, f)), whole, 0.01 * whole) << direction << " " << f;
  }
}

double angle_between(double a, double b) {
  return std::abs(std::remainder(a - b, 2 * std::numbers::pi));
}

TEST(Sprites, MoveAsTheirDescriptionSays) {
  int drifting = 0, bouncing = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const SpriteClip clip = sprite_clip_at({}, 8, i);
    for (const Sprite& sprite : clip.sprites) {
      const double w = 1.5, step = 1.0 / 64;
      const Shape a = sprite_at(sprite, 1, 48, 32), b = sprite_at(sprite, 1 + step, 48, 32);
      const double x = std::remainder(b.x - a.x, w), y = std::remainder(b.y - a.y, 1.0);
      const double angle = std::atan2(y, x),
                   meant = static_cast<double>(sprite.direction) * std::numbers::pi / 4;
      if (sprite.motion == Motion::stay) {
        ASSERT_EQ(x, 0);
        ASSERT_EQ(y, 0);
      } else if (sprite.motion == Motion::drift) {
        ASSERT_NEAR(std::hypot(x, y), sprite.speed * step, 1e-6);
        ASSERT_LT(angle_between(angle, meant), 1e-3);
        ++drifting;
      } else if (std::hypot(x, y) > 0.9 * sprite.speed * step) {  // and does not turn back just now
        ASSERT_LT(std::min(angle_between(angle, meant), angle_between(angle + std::numbers::pi, meant)),
                  1e-3);
        ASSERT_LT(std::abs(a.x) + a.radius, 0.5 * w);
        ASSERT_LT(std::abs(a.y) + a.radius, 0.5);
        ++bouncing;
      }
      const double paces[] = {0.15, 0.3, 0.6};
      ASSERT_TRUE(sprite.motion == Motion::stay || std::abs(sprite.speed / paces[sprite.pace] - 1) < 0.101);
      ASSERT_EQ(sprite.spin == 0, angle_between(a.angle, b.angle) < 1e-6);
      ASSERT_LE(a.radius, sprite.radius);
      ASSERT_GE(a.radius, 0.63f * sprite.radius);
    }
  }
  EXPECT_GT(drifting, 1000);
  EXPECT_GT(bouncing, 300);
}

TEST(Sprites, FarFramesStayExact) {
  Sprite sprite;
  sprite.direction = 4;
  sprite.speed = 0.3f;
  const double period = 1 / static_cast<double>(sprite.speed);  // once round a square picture
  const Shape now = sprite_at(sprite, 0.25, 32, 32), later = sprite_at(sprite, 0.25 + 1e6 * period, 32, 32);
  EXPECT_NEAR(now.x, later.x, 1e-6);
}

TEST(Sprites, HeldOutPairsAreOneOfEachHue) {
  std::set<std::int64_t> kinds;
  for (std::int64_t hue = 0; hue < 8; ++hue) {
    int held = 0;
    for (std::int64_t kind = 0; kind < 10; ++kind)
      if (is_held_out_pair(hue, kind)) {
        ++held;
        kinds.insert(kind);
      }
    EXPECT_EQ(held, 1);
  }
  EXPECT_EQ(kinds.size(), 8u);
}

TEST(Sprites, SplitsKeepApart) {
  for (const std::string& split : splits) {
    const bool pairs = split == "new_pairs" || split == "new_both",
               wordings = split == "new_wordings" || split == "new_both";
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    std::set<std::int64_t> worded;
    for (std::int64_t i = 0; i < 5000; ++i) {
      const SpriteClip clip = sprite_clip_at(of_split(split), 12, i);
      ASSERT_EQ(is_held_out_wording(clip.wording), wordings) << split;
      worded.insert(clip.wording);
      for (const Sprite& sprite : clip.sprites) {
        ASSERT_EQ(is_held_out_pair(sprite.hue, sprite.kind), pairs) << split;
        seen.emplace(sprite.hue, sprite.kind);
      }
    }
    EXPECT_EQ(seen.size(), pairs ? 8u : 72u) << split;
    EXPECT_EQ(worded.size(), wordings ? 3u : 6u) << split;
  }
}

TEST(Sprites, EverythingOccursAsOftenAsItShould) {
  std::map<std::string, int> count;
  int clips = 20000, sprites = 0;
  for (std::int64_t i = 0; i < clips; ++i) {
    const SpriteClip clip = sprite_clip_at({}, 77, i);
    ++count["ground " + ground_names()[static_cast<std::size_t>(clip.ground)]];
    ++count["style " + std::to_string(clip.background.background)];
    count["two"] += clip.sprites.size() == 2 ? 1 : 0;
    for (const Sprite& sprite : clip.sprites) {
      ++sprites;
      ++count["hue " + std::to_string(sprite.hue)];
      ++count["kind " + std::to_string(sprite.kind)];
      ++count["pace " + std::to_string(sprite.pace)];
      count["bounce"] += sprite.motion == Motion::bounce ? 1 : 0;
      count["stay"] += sprite.motion == Motion::stay ? 1 : 0;
      if (sprite.motion == Motion::drift) ++count["way " + std::to_string(sprite.direction)];
      count["pulse"] += sprite.pulse > 0 ? 1 : 0;
      count["spin"] += sprite.spin != 0 ? 1 : 0;
      count["against the clock"] += sprite.spin > 0 ? 1 : 0;
    }
  }
  const auto near = [&](const std::string& what, double of, double share) {
    EXPECT_NEAR(count[what], of * share, 5 * std::sqrt(of * share * (1 - share))) << what;
  };
  near("two", clips, 0.2);
  near("bounce", sprites, 0.2);
  near("stay", sprites, 0.1);
  near("pulse", sprites, 0.2);
  for (int i = 0; i < 3; ++i) near("style " + std::to_string(i), clips, 1.0 / 3);
  for (int i = 0; i < 3; ++i) near("pace " + std::to_string(i), sprites, 1.0 / 3);
  for (int i = 0; i < 8; ++i) near("hue " + std::to_string(i), sprites, 1.0 / 8);
  for (int i = 0; i < 8; ++i) near("way " + std::to_string(i), sprites, 0.7 / 8);
  for (int i = 0; i < 10; ++i)
    EXPECT_NEAR(count["kind " + std::to_string(i)], sprites / 10.0, sprites * 0.015) << i;
  for (const std::string& ground : ground_names()) EXPECT_GT(count["ground " + ground], clips / 9) << ground;
  EXPECT_NEAR(count["spin"], 0.25 * 0.8 * sprites, 0.02 * sprites);  // discs and rings do not
  EXPECT_NEAR(count["against the clock"], 0.5 * count["spin"], 0.05 * count["spin"]);
}

TEST(Sprites, OptionsHold) {
  const SpriteOptions plain = {
      .directions = 4, .two = 0, .bouncing = 0, .staying = 0, .spinning = 0, .pulsing = 0};
  for (std::int64_t i = 0; i < 1000; ++i) {
    const SpriteClip clip = sprite_clip_at(plain, 1, i);
    ASSERT_EQ(clip.sprites.size(), 1u);
    ASSERT_EQ(clip.sprites[0].motion, Motion::drift);
    ASSERT_EQ(clip.sprites[0].direction % 2, 0);
    ASSERT_EQ(clip.sprites[0].spin, 0);
    ASSERT_EQ(clip.sprites[0].pulse, 0);
  }
}

TEST(Sprites, StandOutFromTheirGround) {
  for (int i = 0; i < 5000; ++i) {
    const SpriteClip clip = sprite_clip_at({}, 55, i);
    for (const Sprite& sprite : clip.sprites)
      for (const auto& tint : clip.background.ground) {
        double squares = 0;
        for (int c = 0; c < 3; ++c) squares += std::pow(sprite.colour[c] - tint[c], 2);
        ASSERT_GT(std::sqrt(squares), 0.3) << i << " " << caption_of(clip);
      }
  }
}

TEST(Captions, AreThese) {
  SpriteClip clip;
  clip.sprites.resize(1);
  Sprite& sprite = clip.sprites[0];
  sprite.kind = 3;
  sprite.direction = 4;
  clip.ground = 3;
  EXPECT_EQ(caption_of(clip), "a red star drifts to the left over blue");
  sprite.pace = 0;
  EXPECT_EQ(caption_of(clip, 1), "a red star moves slowly left on a blue background");
  sprite.spin = 0.2f;
  EXPECT_EQ(caption_of(clip, 2), "red star moving slowly left while spinning, blue background");
  sprite.pulse = 0.5f;
  EXPECT_EQ(caption_of(clip, 3),
            "over blue, a red star floats slowly to the left while spinning and growing and shrinking");
  sprite.motion = Motion::bounce;
  sprite.direction = 1;
  sprite.spin = 0;
  EXPECT_EQ(caption_of(clip, 4),
            "a star that is red bounces slowly between lower left and upper right while pulsing across blue");
  clip.sprites.push_back({.kind = 0, .hue = 1, .motion = Motion::stay});
  clip.sprites[0].pulse = 0;
  EXPECT_EQ(caption_of(clip, 0),
            "a red star bounces slowly between the lower left and the upper right and an orange circle stays "
            "in place over blue");
}

TEST(Captions, SayWhatIsThere) {
  for (const std::string& split : splits)
    for (std::int64_t i = 0; i < 1000; ++i) {
      const SpriteClip clip = sprite_clip_at(of_split(split), 31, i);
      const std::string caption = caption_of(clip);
      const std::set<std::string> words = words_of(caption);
      const auto has = [&](const std::string& word) { return words.contains(word); };
      ASSERT_EQ(caption.find('{'), std::string::npos) << caption;
      ASSERT_TRUE(has(ground_names()[static_cast<std::size_t>(clip.ground)])) << caption;
      bool spins = false, quick = false;
      for (const Sprite& sprite : clip.sprites) {
        ASSERT_TRUE(has(hue_names()[static_cast<std::size_t>(sprite.hue)])) << caption;
        ASSERT_TRUE(has(shape_names()[static_cast<std::size_t>(sprite.kind)])) << caption;
        spins |= sprite.spin != 0;
        quick |= sprite.pace == 2 && sprite.motion != Motion::stay;
        if (sprite.motion != Motion::drift) continue;
        const bool up = sprite.direction >= 1 && sprite.direction <= 3, down = sprite.direction >= 5;
        const bool sideways = sprite.direction % 4 != 2,
                   right = sprite.direction < 2 || sprite.direction == 7;
        ASSERT_TRUE(!up || has("up") || has("upper") || has("upwards")) << caption;
        ASSERT_TRUE(!down || has("down") || has("lower") || has("downwards")) << caption;
        ASSERT_TRUE(!sideways || has(right ? "right" : "left")) << caption;
      }
      ASSERT_EQ(has("spinning"), spins) << caption;
      ASSERT_EQ(has("quickly"), quick) << caption;
      ASSERT_EQ(caption.find("a orange"), std::string::npos) << caption;
    }
}

// Nothing but the wording is new to whoever learnt from training.
TEST(Captions, HeldOutWordingsUseTheWordsOfTraining) {
  std::set<std::string> known, tested;
  std::set<std::string> training;
  for (std::int64_t i = 0; i < 20000; ++i) {
    const std::string caption = caption_of(sprite_clip_at({}, 2, i));
    training.insert(caption);
    known.merge(words_of(caption));
    tested.merge(words_of(caption_of(sprite_clip_at(of_split("new_both"), 2, i))));
  }
  for (const std::string& word : tested) EXPECT_TRUE(known.contains(word)) << word;
  EXPECT_LT(known.size(), 90u);
  for (std::int64_t i = 0; i < 2000; ++i)
    EXPECT_FALSE(training.contains(caption_of(sprite_clip_at(of_split("new_wordings"), 3, i))));
}

TEST(Sprites, AsADataSet) {
  const DataConfig config{.kind = "sprites", .size = {20, 12}, .frames = 5, .fps = 10, .validation = 7};
  const Split split = open_dataset(config, 4);
  EXPECT_EQ(split.training->size(), 0);
  EXPECT_EQ(split.validation->size(), 7);
  EXPECT_TRUE(split.training->classes().empty());
  EXPECT_EQ(split.training->shape(), (std::vector<std::int64_t>{3, 5, 12, 20}));
  EXPECT_EQ(split.training->name_of(17), "sprites item 17");
  const Example example = split.training->get(17, 0);
  const SpriteClip clip = sprite_clip_at({}, 4, 17);
  EXPECT_EQ(example.caption, caption_of(clip));
  EXPECT_EQ(bytes_of(example.picture), drawn(clip, {.width = 20, .height = 12, .frames = 5, .fps = 10}));
  EXPECT_EQ(example.picture.sizes(), (std::vector<std::int64_t>{3, 5, 12, 20}));
  EXPECT_NE(split.validation->get(0, 0).caption, "");
}

TEST(Sprites, ThroughTheLoader) {
  const auto clips = make_sprites({.kind = "sprites", .size = {16, 16}, .frames = 4}, 3);
  Loader loader(clips, {.batch = 6, .workers = 3, .start = 12});
  const Batch batch = loader.next();
  EXPECT_EQ(batch.pictures.sizes(), (std::vector<std::int64_t>{6, 3, 4, 16, 16}));
  ASSERT_EQ(batch.captions.size(), 6u);
  for (std::int64_t i = 0; i < 6; ++i) {
    const Example example = clips->get(12 + i, 0);
    EXPECT_EQ(batch.captions[static_cast<std::size_t>(i)], example.caption);
    EXPECT_EQ(bytes_of(batch.pictures[i]), bytes_of(example.picture));
  }
}

TEST(Sprites, MistakesAreNamed) {
  const auto mentions = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  mentions(error_of([] { sprite_clip_at(of_split("new_pair"), 0, 0); }), "new_pairs");
  mentions(error_of([] { sprite_clip_at({.directions = 5}, 0, 0); }), "expected 4 or 8, got 5");
  mentions(error_of([] { sprite_clip_at({.two = 1.5}, 0, 0); }), "expected 0 to 1, got 1.5");
  mentions(error_of([] { sprite_clip_at({.bouncing = 0.7, .staying = 0.7}, 0, 0); }), "bouncing + staying");
  mentions(error_of([] { sprite_clip_at({}, 0, -1); }), "index");
  mentions(error_of([] { caption_of(sprite_clip_at({}, 0, 0), 99); }), "wording");
  Pixels pixels(12);
  const SpriteClip clip = sprite_clip_at({}, 0, 0);
  mentions(error_of([&] { draw_clip(clip, {.width = 2, .height = 2, .frames = 2}, pixels); }),
           "expected 24 bytes, got 12");
  mentions(error_of([&] { draw_clip(clip, {.frames = 0}, pixels); }), "frames");
  mentions(error_of([&] { draw_clip(clip, {.fps = 0}, pixels); }), "fps");
  mentions(error_of([&] { draw_clip(clip, {.first = -1}, pixels); }), "first");
  mentions(error_of([] { make_sprites({.kind = "sprites", .flip = true}, 0); }), "flip");
  mentions(error_of([] { make_sprites({.kind = "sprites", .frames = 0}, 0); }), "data: frames");
  mentions(error_of([] {
             make_sprites({.kind = "sprites", .size = {4096, 4096}, .frames = 1000}, 0);
           }),
           "data: frames");
  mentions(error_of([] { open_dataset({.kind = "sprites", .path = "x"}, 0); }),
           "expected none where kind is sprites");
  mentions(error_of([] { open_dataset({.kind = "sprite"}, 0); }), "sprites");
}

}  // namespace
}  // namespace pom::data
