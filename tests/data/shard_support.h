// What tests of shards share: samples that are a function of their number, and data sets of them.
#pragma once

#include "tests/data/support.h"
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "pom/data/shard_writer.h"

namespace pom::data {

inline ShardSetInfo picture_info() {
  ShardSetInfo info;
  info.codec = "kl";
  info.codec_hash = std::string(64, 'a');
  info.scale = 0.5;
  info.shift = 0.25;
  info.channels = 2;
  info.size = {24, 16};
  info.crop = "centre";
  info.classes = {"cat", "dog", "owl"};
  return info;
}

inline ShardSetInfo clip_info() {
  ShardSetInfo info = picture_info();
  info.kind = "clips";
  info.stored = "latent";
  info.frames = 8;
  info.fps = 8;
  info.classes = {};
  info.text_hash = std::string(64, 'b');
  info.text_tokens = 4;
  info.text_width = 3;
  return info;
}

// Owns what a ShardSample points to.
struct TestSample {
  std::vector<float> values;
  std::vector<std::uint16_t> text;
  std::vector<std::uint8_t> mask;
  ShardSample sample;
};

// Number i: mean i + place / 10, log-variance -place / 4.
inline TestSample picture_sample(std::int64_t i) {
  TestSample made;
  const std::vector<std::int64_t> shape = {4, 2, 3};
  for (int place = 0; place < 12; ++place)
    made.values.push_back(static_cast<float>(i) + static_cast<float>(place) / 10);
  for (int place = 0; place < 12; ++place) made.values.push_back(static_cast<float>(-place) / 4);
  made.sample.key = "picture" + std::to_string(i);
  made.sample.latent = {io::NpyType::single, shape, std::as_bytes(std::span(made.values))};
  made.sample.label = i % 3;
  made.sample.source = "cat/" + std::to_string(i) + ".png";
  made.sample.mirrored = i % 2 == 1;
  return made;
}

// With 1 to 4 tokens of text, all 1.5.
inline TestSample clip_sample(std::int64_t i) {
  TestSample made;
  const std::int64_t tokens = 1 + i % 4;
  made.values.assign(2 * 2 * 2 * 2, static_cast<float>(i));
  made.text.assign(static_cast<std::size_t>(tokens) * 3, 0x3e00);
  made.mask.assign(static_cast<std::size_t>(tokens), 1);
  made.mask.back() = i % 2 == 0;
  made.sample.key = "clips/" + std::to_string(i);
  made.sample.latent = {io::NpyType::single, {2, 2, 2, 2}, std::as_bytes(std::span(made.values))};
  made.sample.caption = "clip " + std::to_string(i) + " \u2606";
  made.sample.text = {io::NpyType::half, {tokens, 3}, std::as_bytes(std::span(made.text))};
  made.sample.mask = {io::NpyType::boolean, {tokens}, std::as_bytes(std::span(made.mask))};
  return made;
}

inline void write_samples(const fs::path& folder, const ShardSetInfo& info, std::int64_t count,
                          std::int64_t per_shard) {
  ShardWriter writer(folder, "train", info, per_shard);
  for (std::int64_t i = writer.samples(); i < count; ++i) {
    const TestSample made = info.clips() ? clip_sample(i) : picture_sample(i);
    writer.add(made.sample);
  }
  writer.finish();
}

inline std::string bytes_in_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
}

}  // namespace pom::data
