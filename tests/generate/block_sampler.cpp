// Streaming against whole clips: same seeds, prompts and steps, but all blocks at once, by the composed
// parallel form with its mask written out. And what a saved state is worth.
#include "pom/generate/block_sampler.h"

#include "tests/generate/whole_clip.h"
#include <filesystem>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/generate/stream_state.h"
#include "pom/io/safetensors.h"
#include "pom/ops/mixer.h"

namespace pom::generate {
namespace {

constexpr double kTolerance = 1e-5;  // on pictures in [0, 1]

models::NetworkConfig small(const std::string& mixer = "pom", std::int64_t window = 0) {
  models::NetworkConfig config;
  config.kind = "vdipom";
  config.dim = 48, config.depth = 3, config.patch = 2, config.patch_time = 2, config.channels = 3;
  config.text_width = 10, config.heads = 4, config.ffw_expand = 2;
  config.mixer = mixer, config.window = window, config.time_period = 8;
  return config;
}

// Of the size that training leaves: what starts at zero has values too.
models::Weights some_weights(const models::NetworkConfig& config) {
  at::manual_seed(5);
  models::Weights weights;
  for (const models::TensorSpec& spec : models::expected_tensors(config)) {
    at::Tensor values = at::randn(spec.shape);
    const bool matrix = spec.shape.size() > 1;
    weights[spec.name] =
        values * (matrix ? 0.6 / std::sqrt(static_cast<double>(values.numel() / values.size(0))) : 0.1);
  }
  return weights;
}

struct Text {
  at::Tensor tokens, mask;
};

// A sampler with the model that its states are of.
class Stream : public BlockSampler {
 public:
  Stream(models::Denoiser& network, const BatchSampling& sampling, StreamModel model = {})
      : BlockSampler(network, sampling), model_(std::move(model)) {}

  void tell(const at::Tensor& text, const at::Tensor& mask) {
    BlockSampler::tell({.text = text, .mask = mask});
  }
  at::Tensor next_block(const diffusion::OnStep& on_step = {}) { return next(1, {.on_step = on_step}); }
  at::Tensor next_blocks(std::int64_t blocks) { return next(blocks); }
  void save(const std::filesystem::path& path, const StateNotes& notes = {}) const {
    save_stream(path, *this, model_, notes);
  }
  StateNotes restore(const std::filesystem::path& path) { return restore_stream(path, *this, model_); }

 private:
  StreamModel model_;
};

// Prompts of three and five words for two clips.
Text prompt(std::int64_t seed) {
  at::manual_seed(seed);
  Text text{at::randn({2, 5, 10}), at::ones({2, 5}, at::kBool)};
  text.mask.slice(0, 0, 1).slice(1, 3).fill_(false);
  return text;
}

BatchSampling sampling(const std::string& sampler, double scale = 1) {
  BatchSampling s;
  s.height = 6, s.width = 8;
  s.seeds = {7, 1234567890123};
  s.sampler = sampler;
  s.options.steps = 6;
  s.guidance.scale = scale;
  return s;
}

// What the stream tells at each block.
using Prompts = std::vector<Text>;

at::Tensor streamed(Stream& stream, const Prompts& prompts) {
  std::vector<at::Tensor> blocks;
  for (const Text& text : prompts) {
    stream.tell(text.tokens, text.mask);
    blocks.push_back(stream.next_block());
  }
  return at::cat(blocks, 2);
}

at::Tensor whole(const models::NetworkConfig& config, const BatchSampling& s, const Prompts& prompts) {
  const ops::PathGuard composed(ops::Path::composed);
  models::VDiPoM network(config);
  network->set_weights(some_weights(config));
  network->set_materialised(true);
  std::vector<at::Tensor> tokens, masks;
  for (const Text& text : prompts) tokens.push_back(text.tokens), masks.push_back(text.mask);
  return sample_clip(network, s, static_cast<std::int64_t>(prompts.size()), at::stack(tokens, 1),
                     at::stack(masks, 1));
}

double difference(const at::Tensor& a, const at::Tensor& b) {  // of pictures in [0, 1]
  EXPECT_EQ(a.sizes(), b.sizes());
  return ((a - b).abs().max() / 2).item<double>();
}

struct Case {
  const char* name;
  std::string mixer;
  std::int64_t window, blocks;
  std::string sampler;
  double scale;
};

class Streaming : public testing::TestWithParam<Case> {};

TEST_P(Streaming, EqualsTheWholeClip) {
  const Case& c = GetParam();
  const models::NetworkConfig config = small(c.mixer, c.window);
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  Stream stream(network, sampling(c.sampler, c.scale));
  const Prompts prompts(static_cast<std::size_t>(c.blocks), prompt(1));
  const at::Tensor got = streamed(stream, prompts), expected = whole(config, stream.sampling(), prompts);
  const double error = difference(got, expected);
  RecordProperty("difference", detail::concat(error));
  EXPECT_LE(error, kTolerance);
  EXPECT_GT(difference(got.narrow(2, 0, 2), got.narrow(2, 2, 2)), 0.01);  // blocks are not all one
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Streaming,
    testing::Values(Case{"euler", "pom", 0, 5, "euler", 1}, Case{"heun", "pom", 0, 3, "heun", 1},
                    Case{"euler_guided", "pom", 0, 3, "euler", 3},
                    Case{"heun_guided", "pom", 0, 5, "heun", 2}, Case{"window", "pom", 2, 7, "euler", 1},
                    Case{"window_guided_heun", "pom", 3, 7, "heun", 2},
                    Case{"window_of_one", "pom", 1, 3, "euler", 2}, Case{"ddpm", "pom", 2, 5, "ddpm", 2},
                    Case{"multistep", "pom", 0, 3, "dpm++2m", 1},
                    Case{"longer_than_the_period", "pom", 0, 11, "euler", 1},
                    Case{"attention", "attention", 0, 5, "heun", 2},
                    Case{"attention_window", "attention", 2, 7, "euler", 1}),
    [](const auto& info) { return info.param.name; });

// Else the tests above would prove little.
TEST(BlockSampler, WhatABlockSawIsInItsPictures) {
  at::Tensor made[3];
  for (const std::int64_t window : {0, 1, 2}) {
    const models::NetworkConfig config = small("pom", window);
    const auto network_made = models::Denoiser::make(config, some_weights(config));
    models::Denoiser& network = *network_made;
    Stream stream(network, sampling("euler"));
    made[window] = streamed(stream, Prompts(3, prompt(1)));
  }
  EXPECT_TRUE(at::equal(made[0].slice(2, 0, 4), made[2].slice(2, 0, 4)));
  EXPECT_TRUE(at::equal(made[0].slice(2, 0, 2), made[1].slice(2, 0, 2)));
  for (int narrow : {1, 2}) EXPECT_GT(difference(made[0].slice(2, 4), made[narrow].slice(2, 4)), 1e-3);
}

// Counts the rows that it is asked for.
class Counting : public models::Denoiser {
 public:
  explicit Counting(std::unique_ptr<models::Denoiser> inner) : inner_(std::move(inner)) {}
  const models::NetworkConfig& config() const override { return inner_->config(); }
  at::ScalarType dtype() const override { return inner_->dtype(); }
  at::Device device() const override { return inner_->device(); }
  void plan(const models::SamplingPlan& plan) override { inner_->plan(plan); }
  void tell(const models::Condition& condition) override { inner_->tell(condition); }
  at::Tensor operator()(const at::Tensor& x, std::int64_t evaluation) override {
    rows.push_back(x.size(0));
    return (*inner_)(x, evaluation);
  }
  void advance() override { inner_->advance(); }
  std::int64_t block() const override { return inner_->block(); }
  std::map<std::string, at::Tensor> state() const override { return inner_->state(); }
  void set_state(const std::map<std::string, at::Tensor>& state) override { inner_->set_state(state); }

  std::vector<std::int64_t> rows;

 private:
  std::unique_ptr<models::Denoiser> inner_;
};

TEST(BlockSampler, WhoLeavesIsNotEvaluated) {
  const models::NetworkConfig config = small();
  BatchSampling s = sampling("euler", 2);
  s.blocks = 1;
  const Text text = prompt(1);
  const auto made = [&](Counting& network, const SamplingHooks& hooks) {
    BlockSampler sampler(network, s);
    sampler.tell({.text = text.tokens, .mask = text.mask});
    return sampler.next(1, hooks);
  };
  Counting network(models::Denoiser::make(config, some_weights(config)));
  const at::Tensor whole = made(network, {});
  EXPECT_EQ(network.rows, (std::vector<std::int64_t>{2, 2, 2, 2, 2, 2}));
  network.rows.clear();
  const at::Tensor part =
      made(network, {.left = [&](std::int64_t item) { return item == 0 && network.rows.size() >= 2; }});
  EXPECT_EQ(network.rows, (std::vector<std::int64_t>{2, 2, 1, 1, 1, 1}));
  EXPECT_TRUE(at::equal(part[1], whole[1]));
  EXPECT_FALSE(at::equal(part[0], whole[0]));
  network.rows.clear();
  made(network, {.left = [](std::int64_t) { return true; }});  // whoever wants none stops the run
  EXPECT_EQ(network.rows.back(), 2);
}

TEST(BlockSampler, GuidanceInAnIntervalEqualsTheWholeClip) {
  const models::NetworkConfig config = small();
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  BatchSampling s = sampling("heun", 2.5);
  s.guidance.from = 0.3, s.guidance.to = 0.7;
  Stream stream(network, s);
  const Prompts prompts(3, prompt(1));
  EXPECT_LE(difference(streamed(stream, prompts), whole(config, s, prompts)), kTolerance);
}

TEST(BlockSampler, APromptThatChangesEqualsTheWholeClipWithPromptsOfItsBlocks) {
  for (const char* mixer : {"pom", "attention"}) {
    const models::NetworkConfig config = small(mixer, 3);
    const auto network_made = models::Denoiser::make(config, some_weights(config));
    models::Denoiser& network = *network_made;
    Stream stream(network, sampling("heun", 2));
    const Prompts prompts{prompt(1), prompt(1), prompt(2), prompt(3), prompt(3)}, same(5, prompt(1));
    const at::Tensor got = streamed(stream, prompts);
    EXPECT_LE(difference(got, whole(config, stream.sampling(), prompts)), kTolerance);
    Stream other(network, sampling("heun", 2));
    const at::Tensor unchanged = streamed(other, same);
    EXPECT_TRUE(at::equal(unchanged.slice(2, 0, 4), got.slice(2, 0, 4)));
    EXPECT_GT(difference(unchanged.slice(2, 4), got.slice(2, 4)), 1e-3);
  }
}

TEST(BlockSampler, AClipIsItsOwnWhateverTheBatch) {
  const models::NetworkConfig config = small("pom", 2);
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  BatchSampling s = sampling("heun", 2);
  Stream both(network, s);
  const at::Tensor expected = streamed(both, Prompts(3, prompt(1)));
  for (std::int64_t b = 0; b < 2; ++b) {
    BatchSampling one = s;
    one.seeds = {s.seeds[static_cast<std::size_t>(b)]};
    Stream alone(network, one);
    const Text text{prompt(1).tokens.narrow(0, b, 1), prompt(1).mask.narrow(0, b, 1)};
    EXPECT_TRUE(at::equal(streamed(alone, Prompts(3, text))[0], expected[b])) << "clip " << b;
  }
}

TEST(BlockSampler, ABlockThatWasBrokenOffIsMadeAgain) {
  const models::NetworkConfig config = small("pom", 2);
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  Stream undisturbed(network, sampling("heun"));
  const at::Tensor expected = streamed(undisturbed, Prompts(4, prompt(1)));
  Stream stream(network, sampling("heun"));
  std::vector<at::Tensor> blocks;
  stream.tell(prompt(1).tokens, prompt(1).mask);
  for (int b = 0; b < 4; ++b) {
    EXPECT_THROW(stream.next_block([](const diffusion::StepInfo& info) {
      if (info.step == 4) throw Error("stop");
    }),
                 Error);
    EXPECT_EQ(stream.block(), b);
    blocks.push_back(stream.next_block());
  }
  EXPECT_TRUE(at::equal(at::cat(blocks, 2), expected));
}

// ---- states in files ----

class States : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                 ("pom_stream_" + std::to_string(::getpid()) + "_" +
                                  testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(States, GoOnAsIfNothingHadHappenedAndMoreThanOnce) {
  for (const char* mixer : {"pom", "attention"})
    for (const std::int64_t window : {0, 2, 4}) {
      const models::NetworkConfig config = small(mixer, window);
      const auto network_made = models::Denoiser::make(config, some_weights(config));
      models::Denoiser& network = *network_made;
      Stream unbroken(network, sampling("heun", 2), {"hash"});
      const at::Tensor expected = streamed(unbroken, Prompts(5, prompt(1)));
      Stream first(network, sampling("heun", 2), {"hash"});
      streamed(first, Prompts(3, prompt(1)));
      const at::Tensor memory = at::randn({2, 3});
      first.save(folder / "s.safetensors", {.texts = {{"prompt", "a star"}}, .tensors = {{"codec", memory}}});

      const auto another_made = models::Denoiser::make(config, some_weights(config));
      models::Denoiser& another = *another_made;
      BatchSampling unseeded = sampling("heun", 2);
      unseeded.seeds = {0, 0};
      Stream second(another, unseeded, {"hash"});
      const StateNotes beside = second.restore(folder / "s.safetensors");
      EXPECT_EQ(beside.texts, (std::map<std::string, std::string>{{"prompt", "a star"}}));
      EXPECT_EQ(beside.tensors.size(), 1U);
      EXPECT_TRUE(at::equal(beside.tensors.at("codec"), memory));
      EXPECT_EQ(second.block(), 3);
      const at::Tensor went_on = at::cat({second.next_block(), second.next_block()}, 2);
      EXPECT_TRUE(at::equal(went_on, expected.slice(2, 6)));

      Stream third(another, unseeded, {"hash"});
      third.restore(folder / "s.safetensors");
      const at::Tensor elsewhere = streamed(third, Prompts(2, prompt(2)));
      Prompts turned(3, prompt(1));
      turned.resize(5, prompt(2));
      const at::Tensor clip = whole(config, sampling("heun", 2), turned);
      EXPECT_LE(difference(elsewhere, clip.slice(2, 6)), kTolerance);
    }
}

TEST_F(States, BeforeTheFirstBlockAreFineToo) {
  const models::NetworkConfig config = small();
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  Stream first(network, sampling("euler"));
  first.tell(prompt(1).tokens, prompt(1).mask);
  first.save(folder / "s.safetensors");
  const at::Tensor expected = first.next_block();
  Stream second(network, sampling("euler"));
  second.restore(folder / "s.safetensors");
  EXPECT_TRUE(at::equal(second.next_block(), expected));
}

TEST_F(States, OfAnotherModelSamplerOrNumberOfStepsAreRefused) {
  const models::NetworkConfig config = small();
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  const std::filesystem::path path = folder / "s.safetensors";
  Stream first(network, sampling("heun", 2), {"hash"});
  first.tell(prompt(1).tokens, prompt(1).mask);
  first.next_block();
  first.save(path);
  const auto refusal = [&](auto change, const std::string& model = "hash") {
    BatchSampling s = sampling("heun", 2);
    change(s);
    Stream stream(network, s, {model});
    try {
      stream.restore(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto nothing = [](BatchSampling&) {};
  const auto expect = [&](const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal(nothing), {"no error"});
  expect(refusal([](BatchSampling& s) { s.guidance.scale = 3; }), {"no error"});
  expect(refusal(nothing, "other"), {"s.safetensors", "model", "hash", "other"});
  expect(refusal([](BatchSampling& s) { s.sampler = "euler"; }), {"sampler", "heun", "euler"});
  expect(refusal([](BatchSampling& s) { s.options.steps = 7; }), {"steps", "6", "7"});
  expect(refusal([](BatchSampling& s) { s.guidance.scale = 1; }), {"guided evaluations", "none"});
  expect(refusal([](BatchSampling& s) { s.width = 10; }), {"size", "8x6", "10x6"});
  expect(refusal([](BatchSampling& s) { s.seeds.pop_back(); }), {"clips", "2", "1"});
}

TEST_F(States, OfAnotherTextEncoderAreRefused) {
  const models::NetworkConfig config = small();
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  const std::filesystem::path path = folder / "s.safetensors";
  const auto save = [&](const StreamModel& model) {
    Stream stream(network, sampling("euler"), model);
    stream.tell(prompt(1).tokens, prompt(1).mask);
    stream.save(path);
  };
  const auto refusal = [&](const StreamModel& model) {
    try {
      Stream(network, sampling("euler"), model).restore(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  save({"hash", "words"});
  EXPECT_EQ(refusal({"hash", "words"}), "no error");
  EXPECT_EQ(refusal({"hash", "others"}), path.string() +
                                             ": text encoder: the state was made with \"words\" and cannot "
                                             "continue with \"others\"");
  const std::int64_t tokens = prompt(1).tokens.size(1);
  EXPECT_EQ(refusal({"hash", "words", tokens}), "no error");
  EXPECT_EQ(refusal({"hash", "words", tokens - 1}),
            detail::concat(path.string(), ": text: expected at most ", tokens - 1,
                           " tokens, as many as the text encoder gives, got ", tokens));
  save({"hash"});
  EXPECT_EQ(refusal({"hash", "words"}), "no error") << "a state of earlier does not say";
}

TEST_F(States, SeedsAreReadWhole) {
  const models::NetworkConfig config = small();
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  const std::filesystem::path path = folder / "s.safetensors";
  Stream first(network, sampling("euler"));
  first.tell(prompt(1).tokens, prompt(1).mask);
  first.save(path);
  const io::safetensors::File file = io::safetensors::File::open(path);
  const auto with_seeds = [&](const std::string& seeds) {
    io::safetensors::Metadata metadata = *file.header().metadata();
    for (auto& [key, text] : metadata)
      if (key == "seeds") text = seeds;
    io::safetensors::write(path, file.tensors(), metadata);
    Stream stream(network, sampling("euler"));
    try {
      stream.restore(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    std::string text;
    for (const std::uint64_t seed : stream.sampling().seeds) text += detail::concat(seed, " ");
    return text;
  };
  EXPECT_EQ(with_seeds("3 18446744073709551615"), "3 18446744073709551615 ");
  for (const std::string seeds :
       {"1junk 2", "1 2junk", "1  2", " 1 2", "1 2 ", "1 -2", "1 18446744073709551616", "x", "1,2"})
    EXPECT_EQ(with_seeds(seeds), path.string() +
                                     ": seeds: expected numbers below 2^64 with spaces between them, got \"" +
                                     seeds + "\"");
  EXPECT_EQ(with_seeds("1"), path.string() + ": seeds: expected 2, got 1");
  EXPECT_EQ(with_seeds(""), path.string() + ": seeds: expected 2, got 0");
}

TEST(BlockSampler, TheStateIsAsLargeAfterManyBlocksAsAfterAFew) {
  for (const std::int64_t window : {0, 2}) {
    const models::NetworkConfig config = small("pom", window);
    const auto network_made = models::Denoiser::make(config, some_weights(config));
    models::Denoiser& network = *network_made;
    Stream stream(network, sampling("euler", 2));
    stream.tell(prompt(1).tokens, prompt(1).mask);
    const auto bytes = [&] {
      std::size_t sum = 0;
      for (const auto& [name, tensor] : network.state()) sum += tensor.nbytes();
      return sum;
    };
    for (int b = 0; b < 3; ++b) stream.next_block();
    const std::size_t early = bytes();
    for (int b = 0; b < 20; ++b) stream.next_block();
    EXPECT_EQ(bytes(), early);
  }
}

TEST(BlockSampler, RunsOnAGpuWhereThereIsOne) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const char* mixer : {"pom", "attention"}) {
    const models::NetworkConfig config = small(mixer, 2);
    models::Weights moved;
    for (const auto& [name, tensor] : some_weights(config)) moved[name] = tensor.cuda();
    const auto here_made = models::Denoiser::make(config, some_weights(config)),
               there_made = models::Denoiser::make(config, moved);
    models::Denoiser &here = *here_made, &there = *there_made;
    models::VDiPoM network(config);
    network->set_weights(some_weights(config));
    network->to(at::kCUDA);
    Stream a(here, sampling("heun", 2)), b(there, sampling("heun", 2));
    const Prompts prompts(5, prompt(1));
    const at::Tensor expected = streamed(a, prompts), got = streamed(b, prompts);
    EXPECT_LE(difference(got.cpu(), expected), 1e-4);
    const at::Tensor clip =
        sample_clip(network, sampling("heun", 2), 5, prompt(1).tokens.cuda(), prompt(1).mask.cuda());
    EXPECT_LE(difference(got, clip), 1e-4);
    b.save(std::filesystem::temp_directory_path() / "pom_stream_gpu.safetensors");
    Stream c(there, sampling("heun", 2));
    c.restore(std::filesystem::temp_directory_path() / "pom_stream_gpu.safetensors");
    EXPECT_EQ(c.next_block().device().type(), at::kCUDA);
    std::filesystem::remove(std::filesystem::temp_directory_path() / "pom_stream_gpu.safetensors");
  }
}

// However many are made at a time.
TEST(BlockSampler, BlocksTogetherAreBlocksOneByOne) {
  for (const char* mixer : {"pom", "attention"}) {
    const models::NetworkConfig config = small(mixer, 2);
    const auto network = models::Denoiser::make(config, some_weights(config));
    Stream one(*network, sampling("heun", 2));
    const at::Tensor expected = streamed(one, Prompts(5, prompt(1)));
    Stream some(*network, sampling("heun", 2));
    some.tell(prompt(1).tokens, prompt(1).mask);
    EXPECT_LE(difference(at::cat({some.next_blocks(2), some.next_blocks(3)}, 2), expected), kTolerance);
  }
}

TEST(BlockSampler, NeedsACausalNetworkAndAText) {
  models::NetworkConfig config = small();
  const auto network_made = models::Denoiser::make(config, some_weights(config));
  models::Denoiser& network = *network_made;
  Stream stream(network, sampling("euler"));
  EXPECT_THROW(stream.next_block(), Error);
  EXPECT_THROW(stream.tell(at::zeros({2, 5, 9}), at::ones({2, 5}, at::kBool)), Error);
  config.temporal_mask = "none";
  const auto whole = models::Denoiser::make(config, some_weights(config));  // its blocks all see each other
  Stream clip(*whole, sampling("euler"));
  clip.tell(at::zeros({2, 5, config.text_width}), at::ones({2, 5}, at::kBool));
  clip.next_blocks(2);
  EXPECT_THROW(clip.next_block(), Error);
}

}  // namespace
}  // namespace pom::generate
