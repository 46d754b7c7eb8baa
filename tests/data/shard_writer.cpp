// Tests of the writer of shards: the same bytes however often it was stopped, and what it refuses.
#include "pom/data/shard_writer.h"

#include "tests/data/shard_support.h"
#include <map>

#include "pom/io/webdataset.h"

namespace pom::data {
namespace {

using ShardWriterTest = FolderTest;

std::map<std::string, std::string> all_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename()] = bytes_in_file(entry);
  return files;
}

TEST_F(ShardWriterTest, ShardsAndTheirList) {
  write_samples(folder / "a", picture_info(), 7, 3);
  const ShardSetInfo info = read_shard_set(folder / "a" / "dataset.json");
  EXPECT_EQ(info.samples, 7);
  EXPECT_EQ(info.shard_names,
            (std::vector<std::string>{"train-000000.tar", "train-000001.tar", "train-000002.tar"}));
  EXPECT_EQ(info.shard_counts, (std::vector<std::int64_t>{3, 3, 1}));
  EXPECT_EQ(info.codec_hash, std::string(64, 'a'));
  EXPECT_EQ(all_files(folder / "a").size(), 4u);
  io::WebShard shard(folder / "a" / "train-000001.tar");
  io::WebSample sample;
  std::int64_t number = 3;
  for (; shard.next(sample); ++number) {
    EXPECT_EQ(sample.key, "picture" + std::to_string(number));
    ASSERT_EQ(sample.fields.size(), 3u);
    EXPECT_EQ(sample.fields[0].name, "moments.npy");
    EXPECT_EQ(shard.read(*sample.find("cls"), 10), std::to_string(number % 3));
    expect_part(shard.read(*sample.find("json"), 1000),
                "{\"source\": \"cat/" + std::to_string(number) + ".png\", \"mirrored\": " +
                    (number % 2 == 1 ? "true" : "false") + ", \"crc32\": {\"moments.npy\": \"");
  }
  EXPECT_EQ(number, 6);
}

TEST_F(ShardWriterTest, StoppedAnywhereTheBytesAreTheSame) {
  write_samples(folder / "whole", picture_info(), 8, 3);
  const auto whole = all_files(folder / "whole");
  for (std::int64_t stop = 0; stop <= 8; ++stop) {
    const fs::path there = folder / std::to_string(stop);
    {
      ShardWriter writer(there, "train", picture_info(), 3);
      for (std::int64_t i = 0; i < stop; ++i) writer.add(picture_sample(i).sample);
    }
    {
      const ShardWriter writer(there, "train", picture_info(), 3);
      EXPECT_EQ(writer.samples(), stop / 3 * 3);
      EXPECT_EQ(writer.shards(), stop / 3);
      EXPECT_FALSE(writer.finished());
    }
    write_samples(there, picture_info(), 8, 3);
    EXPECT_EQ(all_files(there), whole) << stop;
  }
}

// As if killed after the last shard, before dataset.json, and between dataset.json and the end.
TEST_F(ShardWriterTest, StoppedInFinish) {
  write_samples(folder / "whole", picture_info(), 8, 3);
  const auto whole = all_files(folder / "whole");
  for (const bool listed : {false, true}) {
    const fs::path there = folder / (listed ? "listed" : "not");
    { const ShardWriter writer(there, "train", picture_info(), 3); }
    for (const auto& [name, bytes] : whole)
      if (listed || name != "dataset.json") put_file(there / name, bytes);
    EXPECT_EQ(ShardWriter(there, "train", picture_info(), 3).samples(), 6);
    write_samples(there, picture_info(), 8, 3);
    EXPECT_EQ(all_files(there), whole);
  }
}

TEST_F(ShardWriterTest, FinishedIsFinished) {
  write_samples(folder, picture_info(), 4, 3);
  ShardWriter writer(folder, "train", picture_info(), 3);
  EXPECT_TRUE(writer.finished());
  EXPECT_EQ(writer.samples(), 4);
  writer.finish();
  expect_part(error_of([&] { writer.add(picture_sample(9).sample); }), "the data set is finished");
  ShardSetInfo other = picture_info();
  other.scale = 3;
  expect_part(error_of([&] { ShardWriter(folder, "train", other, 3); }),
              "expected data sets that agree, got another scale");
}

TEST_F(ShardWriterTest, GoingOnWithOtherSettingsIsAnError) {
  { ShardWriter(folder, "train", picture_info(), 3).add(picture_sample(0).sample); }
  ShardSetInfo other = picture_info();
  other.codec_hash = std::string(64, 'c');
  expect_part(error_of([&] { ShardWriter(folder, "train", other, 3); }), "got another codec_hash");
  {
    ShardWriter writer(folder, "train", picture_info(), 3);
    for (int i = 0; i < 3; ++i) writer.add(picture_sample(i).sample);
  }
  expect_part(error_of([&] { ShardWriter(folder, "train", picture_info(), 2); }),
              "expected 2 samples in a shard, as it is asked for now, got 3");
  fs::remove(folder / "train.unfinished.json");
  expect_part(error_of([&] { ShardWriter(folder, "train", picture_info(), 3); }),
              "expected no shards of this name");
  std::string cut = bytes_in_file(folder / "train-000000.tar");
  { const ShardWriter writer(folder, "other", picture_info(), 3); }
  put_file(folder / "other-000000.tar", cut.substr(0, 3000));
  expect_part(error_of([&] { ShardWriter(folder, "other", picture_info(), 3); }), "other-000000.tar");
}

TEST_F(ShardWriterTest, ShardsThatTheCallerEnds) {
  ShardWriter writer(folder, "part1", picture_info(), 0, "dataset-1.json");
  writer.add(picture_sample(0).sample);
  writer.end_shard();
  writer.end_shard();  // all of its sources were broken
  EXPECT_EQ(writer.shards(), 2);
  {
    ShardWriter again(folder, "part1", picture_info(), 0, "dataset-1.json");
    EXPECT_EQ(again.shards(), 2);
    EXPECT_EQ(again.samples(), 1);
    again.add(picture_sample(1).sample);
    again.add(picture_sample(2).sample);
    again.end_shard();
    again.finish();
  }
  ShardWriter second(folder, "part2", picture_info(), 2, "dataset-2.json");
  second.add(picture_sample(3).sample);
  second.finish();
  const ShardSetInfo whole = join_shard_sets(std::vector<ShardSetInfo>{
      read_shard_set(folder / "dataset-1.json"), read_shard_set(folder / "dataset-2.json")});
  EXPECT_EQ(whole.samples, 4);
  EXPECT_EQ(whole.shard_counts, (std::vector<std::int64_t>{1, 0, 2, 1}));
  expect_part(error_of([&] { join_shard_sets(std::vector<ShardSetInfo>{whole, whole}); }), "is there twice");
}

TEST_F(ShardWriterTest, SamplesThatContradictTheList) {
  ShardWriter writer(folder, "train", picture_info(), 3);
  const auto refused = [&](auto change, const std::string& part) {
    TestSample made = picture_sample(0);
    change(made);
    expect_part(error_of([&] { writer.add(made.sample); }), part);
  };
  refused(
      [](TestSample& m) {
        m.sample.latent.shape = {2, 2, 3};
      },
      "expected moments (4, h, w), got (2, 2, 3): a latent");
  refused([](TestSample& m) { m.sample.latent.shape = {4, 6}; }, "expected moments (4, h, w), got (4, 6)");
  refused([](TestSample& m) { m.sample.latent.type = io::NpyType::int32; }, "expected fp16 or fp32, got <i4");
  refused([](TestSample& m) { m.values[3] = NAN; }, "moments: expected finite numbers, got nan");
  refused([](TestSample& m) { m.sample.label = 3; }, "class: expected below 3, got 3");
  refused([](TestSample& m) { m.sample.key = "a.b"; }, "key: expected a name without dots");
  refused([](TestSample& m) { m.sample.key = ""; }, "key: expected a name");
  refused([](TestSample& m) { m.sample.key = "__a"; }, "key: expected a name");
  refused([](TestSample& m) { m.sample.caption = "x"; }, "expected a class or a caption, got both");
  ShardWriter clips(folder, "clips", clip_info(), 3, "clips.json");
  TestSample clip = clip_sample(0);
  clip.sample.caption = "\xff";
  expect_part(error_of([&] { clips.add(clip.sample); }), "caption: expected UTF-8");
  clip = clip_sample(1);
  clip.sample.mask->shape = {1};
  clip.sample.mask->elements = clip.sample.mask->elements.first(1);
  expect_part(error_of([&] { clips.add(clip.sample); }), "mask: expected a bool for each token");
  clip = clip_sample(1);
  clip.sample.text->shape = {3, 2};
  expect_part(error_of([&] { clips.add(clip.sample); }), "text: expected states (at most 4, 3), got (3, 2)");
  expect_part(error_of([&] { ShardWriter(folder, "../x", picture_info(), 3); }), "shards: name");
}

TEST_F(ShardWriterTest, ListsThatContradictThemselves) {
  write_samples(folder, picture_info(), 4, 3);
  const fs::path file = folder / "dataset.json";
  const std::string good = bytes_in_file(file);
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& part) {
    std::string bad = good;
    ASSERT_NE(bad.find(from), std::string::npos) << bad;
    bad.replace(bad.find(from), from.size(), to);
    put_file(file, bad);
    expect_part(error_of([&] { read_shard_set(file); }), part);
  };
  refused("\"samples\": 4", "\"samples\": 5", "samples: expected the sum of shard_counts, 4, got 5");
  refused("\"format\": 1", "\"format\": 2", "format: expected 1");
  refused("\"train-000000.tar\"", "\"../secret.tar\"",
          "expected names of files in the folder, got \"../secret.tar\"");
  refused("\"train-000000.tar\"", "\"train-000001.tar\"", "is there twice");
  refused("[3, 1]", "[3]", "expected as many of each, got 2, 1 and 2");
  refused("\"moments\"", "\"noise\"", "stored: unknown value \"noise\"; there are moments, latent");
  refused("\"stored\": \"moments\",", "", "stored: expected it, got none");
  refused("\"scale\": 0.5", "\"scala\": 0.5", "scala: unknown field; did you mean \"scale\"?");
}

}  // namespace
}  // namespace pom::data
