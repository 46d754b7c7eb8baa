// Tests of what a model folder is when it is opened: one config, one network and one text encoder that belong
// together, and hashes of the bytes that were read, whatever is written there afterwards.
#include "pom/generate/model_files.h"

#include "tests/generate/tiny_model.h"
#include <fstream>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>

#include "pom/base/error.h"
#include "pom/codecs/words.h"
#include "pom/generate/engine.h"
#include "pom/generate/text_folder.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

// Other weights of the same network, by writing into the very file, as `cp` does.
void write_over(const fs::path& file, const models::NetworkConfig& network) {
  models::Weights weights = TinyModel::random_weights(network);
  for (auto& [name, tensor] : weights) tensor.add_(0.25);
  const fs::path other = file.parent_path() / "other";
  models::write_weights(other, weights, at::kFloat);
  std::ofstream(file, std::ios::binary) << std::ifstream(other, std::ios::binary).rdbuf();
  fs::remove(other);
}

Request first(const char* dtype = "fp32") {
  Request request;
  request.class_name = "0", request.dtype = dtype;
  return request;
}

std::vector<std::uint8_t> drawn(const std::filesystem::path& folder) {
  Engine engine(folder);
  return engine.images(engine.resolve(first()))[0].data;
}

TEST(ModelFiles, TheHashIsOfTheWeightsThatWereRead) {
  const TinyModel tiny;
  const fs::path file = tiny.folder() / weights_file;
  const std::string before = io::sha256_file(file);
  Engine engine(tiny.folder());
  const std::vector<std::uint8_t> pixels = engine.images(engine.resolve(first()))[0].data;
  write_over(file, tiny.config().network);
  ASSERT_NE(io::sha256_file(file), before);
  EXPECT_EQ(engine.weights_hash(), before);
  EXPECT_EQ(engine.images(engine.resolve(first()))[0].data, pixels);
}

TEST(ModelFiles, AskedForFirstItIsStillThatOfTheNetwork) {
  const TinyModel tiny, same;
  const std::vector<std::uint8_t> pixels = drawn(same.folder());
  Engine engine(tiny.folder());
  const std::string hash = engine.weights_hash();
  EXPECT_EQ(hash, io::sha256_file(same.folder() / weights_file));
  write_over(tiny.folder() / weights_file, tiny.config().network);
  EXPECT_EQ(engine.images(engine.resolve(first()))[0].data, pixels);
  EXPECT_EQ(engine.weights_hash(), hash);
  const std::string message = error_of([&] { engine.images(engine.resolve(first("bf16"))); });
  expect_parts(message, {"model.safetensors", "changed while it was in use"});
}

TEST(ModelFiles, AFileThatIsReplacedStaysWhatWasOpened) {
  const TinyModel tiny;
  const fs::path file = tiny.folder() / weights_file;
  const std::string before = io::sha256_file(file);
  const Engine engine(tiny.folder());
  models::Weights weights = TinyModel::random_weights(tiny.config().network);
  weights.begin()->second.add_(1);
  models::write_weights(file, weights, at::kFloat);
  EXPECT_EQ(engine.weights_hash(), before);
  EXPECT_NE(Engine(tiny.folder()).weights_hash(), before);
}

TEST(ModelFiles, WhatIsDerivedCountsInTheHash) {
  const TinyModel tiny;
  models::Weights weights = TinyModel::random_weights(tiny.config().network);
  weights["freqs"] = at::empty({5}).fill_(2);  // which others store, and the network computes
  models::write_weights(tiny.folder() / weights_file, weights, at::kHalf);
  EXPECT_EQ(Engine(tiny.folder()).weights_hash(), io::sha256_file(tiny.folder() / weights_file));
}

// ---- with a text encoder ----

ModelConfig clip_config() {
  ModelConfig config = TinyModel::tiny_config();
  models::NetworkConfig& n = config.network;
  n.kind = "vdipom", n.dim = 24, n.depth = 1, n.patch = 4, n.patch_time = 2, n.text_width = 8;
  config.text = {.kind = "words", .width = 8, .limit = 12, .layers = 1};
  config.classes.clear();
  return config;
}

void write_words(const fs::path& folder, const codecs::TextConfig& config, const char* words,
                 std::uint64_t seed) {
  codecs::Words(config, codecs::WordPieces::from_lines(words), seed).save(folder / codecs::text_folder);
}

TEST(ModelFiles, TheTextEncoderHasAHashOfItsOwn) {
  const TinyModel tiny(clip_config());
  const codecs::TextConfig text = tiny.config().text;
  write_words(tiny.folder(), text, "a\nstar\n", 1);
  const Engine engine(tiny.folder());
  EXPECT_EQ(engine.text_hash(), io::sha256_file(tiny.folder() / codecs::text_file));
  write_words(tiny.folder(), text, "a\nstar\n", 2);
  const Engine other_weights(tiny.folder());
  write_words(tiny.folder(), text, "a\nstir\n", 1);
  const Engine other_words(tiny.folder());
  EXPECT_NE(engine.text_hash(), other_weights.text_hash());
  EXPECT_NE(engine.text_hash(), other_words.text_hash());
  EXPECT_EQ(engine.weights_hash(), other_words.weights_hash());
}

TEST(ModelFiles, TheTextEncoderIsWhatTheConfigSays) {
  const TinyModel tiny(clip_config());
  const auto refusal = [&](const codecs::TextConfig& text) {
    write_words(tiny.folder(), text, "a\n", 1);
    return error_of([&] { Engine engine(tiny.folder()); });
  };
  expect_parts(refusal({.width = 8, .limit = 12, .layers = 1}), {"no error"});
  expect_parts(refusal({.width = 8, .limit = 12, .layers = 2}),
               {"text_encoder/model.safetensors", "layers: expected 1", "text.layers", "got 2"});
  expect_parts(refusal({.width = 8, .limit = 13, .layers = 1}),
               {"limit: expected 12", "text.limit", "got 13"});
  expect_parts(refusal({.width = 9, .limit = 12, .layers = 1}), {"width 8", "network.text_width", "got 9"});
  ModelConfig other = tiny.config();
  other.text.width = 16;
  write_config(tiny.folder(), other);
  expect_parts(refusal({.width = 8, .limit = 12, .layers = 1}),
               {"width: expected 16", "text.width", "got 8"});
  fs::remove_all(tiny.folder() / codecs::text_folder);
  expect_parts(error_of([&] { Engine engine(tiny.folder()); }), {": no text_encoder/model.safetensors"});
}

}  // namespace
}  // namespace pom::generate
