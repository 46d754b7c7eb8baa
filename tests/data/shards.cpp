// Tests of our shards as data sets: what training sees, and everything that can be wrong with the files.
// python/tests/test_shards.py has the layouts of others.
#include "pom/data/shards.h"

#include "tests/data/shard_support.h"
#include <thread>

#include "pom/base/noise.h"
#include "pom/data/loader.h"
#include "pom/data/shard_files.h"

namespace pom::data {
namespace {

using Values = std::vector<float>;

class ShardsTest : public FolderTest {
 protected:
  DataConfig config(const std::string& kind = "shards") const {
    return {.kind = kind, .path = folder.string(), .validation = 0};
  }
  Split open(std::uint64_t seed = 5, std::int64_t validation = 0) const {
    DataConfig wanted = config();
    wanted.validation = validation;
    return open_dataset(wanted, seed);
  }
  std::string open_error(const DataConfig& wanted) const {
    return error_of([&] { open_dataset(wanted, 0); });
  }
};

Values floats_in(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

TEST_F(ShardsTest, MeanPlusNoiseOfTheVisit) {
  write_samples(folder, picture_info(), 7, 3);
  const auto set = open().training;
  EXPECT_TRUE(set->latents());
  EXPECT_EQ(set->size(), 7);
  EXPECT_EQ(set->shape(), (std::vector<std::int64_t>{2, 2, 3}));
  EXPECT_EQ(set->classes(), picture_info().classes);
  EXPECT_TRUE(set->text_shape().empty());
  for (const std::int64_t visit : {0, 3})
    for (std::int64_t i = 0; i < 7; ++i) {
      const Example example = set->get(i, visit);
      EXPECT_EQ(example.label, i % 3);
      const Values values = floats_in(example.picture);
      const NoiseKey key{5, noise_for::codec, static_cast<std::uint32_t>(visit)};
      for (int place = 0; place < 12; ++place) {
        const float mean = static_cast<float>(i) + static_cast<float>(place) / 10;
        const float deviation = std::exp(static_cast<float>(-place) / 8);
        EXPECT_NEAR(values[static_cast<std::size_t>(place)],
                    (mean + deviation * normal_at(key, 12 * i + place) - 0.25f) * 0.5f, 1e-5);
      }
    }
  EXPECT_NE(floats_in(set->get(1, 0).picture), floats_in(set->get(1, 1).picture));
  EXPECT_EQ(floats_in(set->get(1, 1).picture), floats_in(set->get(1, 1).picture));
}

TEST_F(ShardsTest, ValidationSeesTheMean) {
  write_samples(folder, picture_info(), 30, 8);
  const Split split = open(5, 3);
  ASSERT_EQ(split.validation->size(), 3);
  ASSERT_EQ(split.training->size(), 27);
  const Values values = floats_in(split.validation->get(0, 7).picture);
  EXPECT_FLOAT_EQ(values[1] - values[0], 0.05f);
  std::int64_t sum = 0;
  for (const std::int64_t size : split.training->groups()) sum += size;
  EXPECT_EQ(split.training->groups().size(), 4u);
  EXPECT_EQ(sum, 27);
}

TEST_F(ShardsTest, ClipsWithTextStates) {
  write_samples(folder, clip_info(), 6, 4);
  const auto set = open_dataset(config("clip_shards"), 1).training;
  EXPECT_EQ(set->shape(), (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(set->text_shape(), (std::vector<std::int64_t>{4, 3}));
  Loader loader(set, {.batch = 6, .workers = 2});
  const Batch batch = loader.next();
  EXPECT_EQ(batch.text.sizes(), (at::IntArrayRef{6, 4, 3}));
  EXPECT_EQ(batch.text.scalar_type(), at::kHalf);
  EXPECT_EQ(batch.text_mask.sizes(), (at::IntArrayRef{6, 4}));
  std::set<std::int64_t> seen;
  for (std::int64_t b = 0; b < 6; ++b) {
    const std::string& caption = batch.captions[static_cast<std::size_t>(b)];
    const std::int64_t i = std::stoll(caption.substr(5)), tokens = 1 + i % 4;
    seen.insert(i);
    EXPECT_EQ(caption, "clip " + std::to_string(i) + " \u2606");
    EXPECT_EQ(batch.pictures.data_ptr<float>()[16 * b], (static_cast<float>(i) - 0.25f) * 0.5f);
    for (std::int64_t t = 0; t < 4; ++t) {
      const bool last = t == tokens - 1;
      EXPECT_EQ(batch.text_mask.data_ptr<bool>()[4 * b + t], last ? i % 2 == 0 : t < tokens);
      EXPECT_EQ(static_cast<const std::uint16_t*>(batch.text.data_ptr())[12 * b + 3 * t],
                t < tokens ? 0x3e00 : 0);
    }
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST_F(ShardsTest, ReadFromManyThreads) {
  write_samples(folder, picture_info(), 60, 7);
  const auto set = open().training;
  std::vector<Values> alone;
  for (std::int64_t i = 0; i < 60; ++i) alone.push_back(floats_in(open().training->get(i, 0).picture));
  std::vector<std::jthread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 60; ++i) {
        const std::int64_t index = (i * 7 + t * 13) % 60;
        if (floats_in(set->get(index, 0).picture) != alone[static_cast<std::size_t>(index)]) ++wrong;
      }
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

// Somebody who rewrote the tars leaves no index behind.
TEST_F(ShardsTest, WithoutAnIndexTheShardIsListed) {
  write_samples(folder, picture_info(), 5, 3);
  const Values expected = floats_in(open().training->get(4, 0).picture);
  const fs::path shard = folder / "train-000001.tar";
  std::string bytes = bytes_in_file(shard);
  const std::size_t before = bytes.size();
  bytes.erase(bytes.find("__index__"));
  bytes.append(1024, '\0');
  put_file(shard, bytes);
  expect_part(open_error(config()),
              "expected " + std::to_string(before) + " bytes, as dataset.json says, got ");
  std::string list = bytes_in_file(folder / "dataset.json");
  list.replace(list.find(std::to_string(before), list.find("shard_bytes")), std::to_string(before).size(),
               std::to_string(bytes.size()));
  put_file(folder / "dataset.json", list);
  // The first shard has other bytes than the second, so that only one number was replaced.
  EXPECT_EQ(floats_in(open().training->get(4, 0).picture), expected);
}

TEST_F(ShardsTest, FlippedBitsAreNamed) {
  write_samples(folder, picture_info(), 3, 3);
  const fs::path shard = folder / "train-000000.tar";
  const std::string good = bytes_in_file(shard);
  const auto set = open().training;
  const Values expected = floats_in(set->get(1, 0).picture);
  const std::size_t begin = good.find("picture1.moments.npy"), end = good.find("picture2.moments.npy");
  std::size_t harmless = 0, damaged = 0;
  for (std::size_t at = begin; at < end; at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at % 8);
    put_file(shard, bad);
    const auto open_again = open_dataset(config(), 5).training;
    try {
      EXPECT_EQ(floats_in(open_again->get(1, 0).picture), expected) << at;
      EXPECT_EQ(open_again->get(1, 0).label, 1) << at;
      ++harmless;  // zeros between members, the path in the json
    } catch (const Error& error) {
      ++damaged;
      expect_part(error.what(), shard.string());
    }
    EXPECT_NO_THROW(open_again->get(0, 0));
  }
  EXPECT_GT(damaged, 100u);
  EXPECT_GT(harmless, 0u);
  std::string bad = good;
  const std::size_t value = good.find('\n', begin) + 5;
  bad[value] = static_cast<char>(bad[value] ^ 4);
  put_file(shard, bad);
  expect_part(error_of([&] { set->get(1, 0); }),
              "sample \"picture1\": moments.npy: damaged: expected the CRC ");
}

// The loader passes it over and says so.
TEST_F(ShardsTest, TheLoaderPassesOverADamagedSample) {
  write_samples(folder, picture_info(), 6, 3);
  const fs::path shard = folder / "train-000000.tar";
  std::string bytes = bytes_in_file(shard);
  const std::size_t value = bytes.find('\n', bytes.find("picture1.moments.npy")) + 5;
  bytes[value] = static_cast<char>(bytes[value] ^ 4);
  put_file(shard, bytes);
  std::vector<std::string> told;
  Loader loader(open().training,
                {.batch = 6, .workers = 2, .on_broken = [&](const std::string& name, const std::string& why) {
                   told.push_back(name + " | " + why);
                 }});
  loader.next();
  ASSERT_EQ(told.size(), 1u);
  expect_part(told[0], "train-000000.tar, sample 1 | ");
  expect_part(told[0], "damaged: expected the CRC");
}

TEST_F(ShardsTest, CutOffAndMissingShards) {
  write_samples(folder, picture_info(), 6, 3);
  const fs::path shard = folder / "train-000001.tar";
  const std::string good = bytes_in_file(shard);
  for (const std::size_t size : {std::size_t{0}, std::size_t{512}, good.size() / 2, good.size() - 1}) {
    put_file(shard, good.substr(0, size));
    expect_part(open_error(config()), "shards: " + shard.string() + ": cut off: expected " +
                                          std::to_string(good.size()) + " bytes, as dataset.json says, got " +
                                          std::to_string(size));
  }
  std::string zeros = good;
  zeros.replace(zeros.size() - 1024, 1024, std::string(1024, 'x'));
  put_file(shard, zeros);
  expect_part(open_error(config()), "cut off: expected the two blocks of zeros");
  fs::remove(shard);
  expect_part(open_error(config()), "train-000001.tar: cannot open");
}

TEST_F(ShardsTest, AnotherCodecOrTextEncoder) {
  write_samples(folder, clip_info(), 3, 3);
  DataConfig wanted = config("clip_shards");
  wanted.codec_hash = std::string(64, 'a');
  wanted.text_hash = std::string(64, 'b');
  EXPECT_NO_THROW(open_dataset(wanted, 0));
  wanted.codec_hash = std::string(64, 'f');
  expect_part(open_error(wanted), "dataset.json: codec_hash: expected latents of this run's codec, ffff");
  wanted.codec_hash = "";
  wanted.text_hash = std::string(64, 'f');
  expect_part(open_error(wanted), "text_hash: expected latents of this run's text encoder, ffff");
}

TEST_F(ShardsTest, MomentsTakenForLatents) {
  write_samples(folder, picture_info(), 3, 3);
  std::string list = bytes_in_file(folder / "dataset.json");
  list.replace(list.find("\"moments\""), 9, "\"latent\"");
  put_file(folder / "dataset.json", list);
  expect_part(open_error(config()),
              "sample \"picture0\": expected a member latent.npy, as dataset.json says it is stored, got "
              "moments.npy");
  const fs::path other = folder / "other";
  ShardSetInfo info = picture_info();
  info.stored = "latent";
  info.channels = 4;
  write_samples(other, info, 3, 3);
  list = bytes_in_file(other / "dataset.json");
  list.replace(list.find("\"channels\": 4"), 13, "\"channels\": 2");
  put_file(other / "dataset.json", list);
  DataConfig wanted = config();
  wanted.path = other.string();
  expect_part(open_error(wanted),
              "expected a latent (2, h, w), got (4, 2, 3): moments (mean and log-variance) and no latent");
}

TEST_F(ShardsTest, MistakesOfTheRecipe) {
  write_samples(folder, picture_info(), 3, 3);
  DataConfig wanted = config();
  wanted.flip = true;
  expect_part(open_error(wanted), "data: flip");
  wanted = config("clip_shards");
  expect_part(open_error(wanted), "kind: expected clips with data.kind clip_shards, got pictures");
  wanted = config();
  wanted.scale = 2;
  expect_part(open_error(wanted), "scale: expected data.scale, 2, got 0.5");
  wanted = config();
  wanted.layout = "homm-video";
  expect_part(open_error(wanted),
              "data: layout: expected auto, libpom, homm or edm2 with data.kind shards, got \"homm-video\"");
  wanted = config();
  wanted.layout = "homm";
  expect_part(open_error(wanted), "index.json: cannot open");
  wanted = config();
  wanted.path = (folder / "nowhere").string();
  expect_part(open_error(wanted), "expected a folder of shards, got no such folder");
  fs::create_directories(folder / "empty");
  wanted.path = (folder / "empty").string();
  expect_part(open_error(wanted), "expected dataset.json (libpom's shards, EDM2's latents) or index.json");
  wanted.path = "";
  expect_part(open_error(wanted), "data: path: expected the folder of the shards, got nothing");
}

TEST_F(ShardsTest, ACountThatLies) {
  write_samples(folder, picture_info(), 6, 3);
  std::string list = bytes_in_file(folder / "dataset.json");
  list.replace(list.find("[3, 3]"), 6, "[3, 4]");
  list.replace(list.find("\"samples\": 6"), 12, "\"samples\": 7");
  put_file(folder / "dataset.json", list);
  const auto set = open().training;
  EXPECT_NO_THROW(set->get(2, 0));
  expect_part(error_of([&] { set->get(4, 0); }),
              "train-000001.tar: expected 4 samples, as the index says, got 3");
}

}  // namespace
}  // namespace pom::data
