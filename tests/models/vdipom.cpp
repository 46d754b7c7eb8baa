// The network for clips: its table, its tensors, how it starts, what it refuses, and what its time code says.
// python/tests/test_video_network.py has the referee in plain torch, tests/generate/video_stream.cpp the
// stream.
#include "pom/models/vdipom.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "pom/base/error.h"
#include "pom/models/counts.h"
#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"

namespace pom::models {
namespace {

NetworkConfig small(bool attention = false) {
  NetworkConfig config;
  config.kind = "vdipom";
  config.dim = 24, config.depth = 2, config.channels = 3, config.text_width = 7, config.heads = 3;
  config.mixer = attention ? "attention" : "pom";
  return config;
}

// With the choices of the published code for clips.
NetworkConfig authors() {
  NetworkConfig config = small();
  config.position = "narrow", config.time_code = "relative", config.no_text = "mask";
  return config;
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << "\n lacks " << part;
}

TEST(VideoVariants, HaveThePapersSizeAndParameters) {
  const NetworkConfig xl = variant("v-dipom-xl/2");
  EXPECT_EQ(xl.variant, "V-DiPoM-XL/2");
  EXPECT_EQ(xl.depth, 20);
  EXPECT_EQ(xl.dim, 1152);
  EXPECT_EQ(xl.text_width, 4096);
  EXPECT_NEAR(static_cast<double>(count_parameters(xl)), 1.16e9, 0.005e9);
  const std::int64_t d = 1152, n = 15 * 24;  // 240 x 384 pixels, 8 to a side of the latent
  EXPECT_EQ(count_macs(xl, 30, 48), n * (20 * (20 + 8) * d * d + 2 * 128 * d) + (8 + 20 * 11 + 2) * d * d);
  for (const std::string& name : variant_names()) EXPECT_NO_THROW(check_config(variant(name))) << name;
}

TEST(VideoConfig, ContradictionsAreNamed) {
  NetworkConfig config = small();
  config.temporal_mask = "none", config.window = 3;
  expect_parts(message_of([&] { check_config(config); }), {"window", "block-causal", "3"});
  config.window = 0, config.own_every = 2;
  expect_parts(message_of([&] { check_config(config); }), {"own_every", "block-causal", "2"});
  config = small(), config.own_every = 1;
  expect_parts(message_of([&] { check_config(config); }), {"own_every", "at least 2", "got 1"});
  config = small(), config.position = "narrow", config.dim = 28;
  expect_parts(message_of([&] { check_config(config); }), {"dim", "multiple of 8", "narrow", "got 28"});
  config = small(true), config.no_text = "mask";
  expect_parts(message_of([&] { check_config(config); }), {"no_text", "token with attention", "got mask"});
  config = small(), config.no_text = "masc";
  expect_parts(message_of([&] { check_config(config); }), {"no_text", "masc", "did you mean", "mask"});
  config = variant("V-DiPoM-S/2");
  config.patch_time = 4;
  expect_parts(message_of([&] { check_config(config); }), {"patch_time", "2", "4", "V-DiPoM-S/2"});
  config = variant("V-DiPoM-S/2");
  config.kind = "dipom";
  expect_parts(message_of([&] { check_config(config); }), {"kind", "vdipom"});
}

TEST(VideoConfig, IsNotWrittenForPictures) {
  const auto saved = [](NetworkConfig config) {
    std::vector<std::string> names;
    config.fields([&](const Field& field, auto&) {
      if (field.saved) names.emplace_back(field.name);
    });
    return names;
  };
  const std::vector<std::string> pictures = saved(variant("DiPoM-S/2")), clips = saved(small());
  EXPECT_EQ(pictures.size(), 12U);
  EXPECT_EQ(clips.size(), 19U);
  EXPECT_EQ(std::count(pictures.begin(), pictures.end(), "window"), 0);
  NetworkConfig picture = variant("DiPoM-S/2");
  picture.position = "narrow";
  EXPECT_EQ(saved(picture).back(), "position");
  EXPECT_EQ(saved(authors()).size(), 21U);
}

TEST(VideoModule, HasExactlyTheExpectedTensors) {
  for (const NetworkConfig& config : {small(), small(true), authors()}) {
    VDiPoM network(config);
    std::map<std::string, std::vector<std::int64_t>> found;
    for (const auto& item : network->named_parameters()) found[item.key()] = item.value().sizes().vec();
    const std::vector<TensorSpec> expected = expected_tensors(config);
    for (const TensorSpec& spec : expected) EXPECT_EQ(found[spec.name], spec.shape) << spec.name;
    EXPECT_EQ(found.size(), expected.size());
    EXPECT_EQ(found.contains("no_text"), config.no_text == "token");
  }
}

struct Inputs {
  at::Tensor x = at::randn({2, 3, 6, 4, 6}), t = at::rand({2}), text = at::randn({2, 4, 7}),
             mask = at::ones({2, 4}, at::kBool);
};

TEST(VideoModule, StartsAsTheIdentityAndPredictsZero) {
  for (const bool attention : {false, true}) {
    VDiPoM network(small(attention));
    const Inputs in;
    const at::Tensor tokens = at::randn({2, 6, 24}), time = at::randn({2, 24});
    const nn::TextContext text{at::randn({2, 4, 24}), in.mask};
    for (const auto& layer : *network->layers)
      EXPECT_TRUE(at::equal(
          layer->as<nn::VideoBlock>()->forward(tokens, time, text, ops::Mask::block_causal(2)), tokens));
    EXPECT_EQ(network->forward(in.x, in.t, in.text, in.mask).abs().max().item<double>(), 0);
  }
}

void randomise(VDiPoM& network) {
  at::manual_seed(3);
  const at::NoGradGuard no_gradients;
  for (at::Tensor& p : network->parameters()) p.normal_(0, p.dim() > 1 ? 0.1 : 0.3);
}

TEST(VideoModule, APaddedTextIsTheSameAndAnEmptyOneIsNone) {
  VDiPoM network(small());
  randomise(network);
  const at::NoGradGuard no_gradients;
  Inputs in;
  in.mask.slice(1, 2).fill_(false);
  const at::Tensor expected = network->forward(in.x, in.t, in.text, in.mask);
  const at::Tensor shorter =
      network->forward(in.x, in.t, in.text.slice(1, 0, 2), at::ones({2, 2}, at::kBool));
  EXPECT_TRUE(at::allclose(expected, shorter, 1e-5, 1e-5));
  const at::Tensor none = at::zeros({2, 4}, at::kBool);
  const at::Tensor silent = network->forward(in.x, in.t, in.text, none);
  EXPECT_TRUE(at::equal(silent, network->forward(in.x, in.t, at::randn({2, 4, 7}), none)));
  EXPECT_FALSE(at::allclose(silent, expected, 1e-2, 1e-2));
}

// Where a mask of zeros stands for no text, the mixer's context is 0 and its answer the last bias.
TEST(VideoModule, NoTextByAMaskIsTheBiasOfTheMixer) {
  VDiPoM network(authors());
  randomise(network);
  const at::NoGradGuard no_gradients;
  const nn::TextContext silent{at::randn({2, 4, 24}), at::zeros({2, 4}, at::kBool)};
  const at::Tensor x = at::randn({2, 6, 24});
  for (const auto& layer : *network->layers) {
    nn::PoM mixer = layer->as<nn::VideoBlock>()->c_pom;
    const at::Tensor out = mixer->forward(x, silent.tokens, ops::Mask::keys(silent.keys));
    EXPECT_TRUE(at::equal(out, mixer->ag_proj->bias.expand_as(out)));
  }
  Inputs in;
  const at::Tensor none = at::zeros({2, 4}, at::kBool);
  EXPECT_TRUE(at::equal(network->forward(in.x, in.t, in.text, none),
                        network->forward(in.x, in.t, at::randn({2, 4, 7}), none)));
}

TEST(VideoModule, ARelativeTimeIsThatOfAWholeClip) {
  VDiPoM network(authors());
  randomise(network);
  const at::NoGradGuard no_gradients;
  const Inputs in;
  const at::Tensor whole = network->forward(in.x, in.t, in.text, in.mask);
  EXPECT_TRUE(at::equal(network->forward(in.x, in.t, in.text, in.mask, at::full({2}, 7, at::kLong)), whole));
  // Causal as it is: what comes later is not seen, but that it comes is.
  const at::Tensor shorter = network->forward(in.x.slice(2, 0, 4), in.t, in.text, in.mask);
  EXPECT_FALSE(at::allclose(shorter, whole.slice(2, 0, 4), 1e-3, 1e-3));
}

TEST(VideoModule, ABlockDoesNotSeeTheFuture) {
  for (const bool attention : {false, true}) {
    VDiPoM network(small(attention));
    randomise(network);
    const at::NoGradGuard no_gradients;
    const Inputs in;
    at::Tensor other = in.x.clone();
    other.slice(2, 4).normal_();
    const at::Tensor a = network->forward(in.x, in.t, in.text, in.mask),
                     b = network->forward(other, in.t, in.text, in.mask);
    EXPECT_TRUE(at::allclose(a.slice(2, 0, 4), b.slice(2, 0, 4), 1e-6, 1e-6));
    EXPECT_FALSE(at::allclose(a.slice(2, 4), b.slice(2, 4), 1e-2, 1e-2));
  }
}

TEST(VideoModule, ComesRoundWithThePeriodOfItsTime) {
  NetworkConfig config = small();
  config.time_period = 12;
  VDiPoM network(config);
  randomise(network);
  const at::NoGradGuard no_gradients;
  const Inputs in;
  const auto from = [&](std::int64_t block) {
    return network->forward(in.x, in.t, in.text, in.mask, at::full({2}, block, at::kLong));
  };
  EXPECT_TRUE(at::equal(from(5), from(5 + 12)));
  EXPECT_TRUE(at::equal(from(5), from(5 + 12 * 1'000'000'000'000)));
  EXPECT_TRUE(at::equal(from(0), network->forward(in.x, in.t, in.text, in.mask)));
  EXPECT_FALSE(at::allclose(from(5), from(6), 1e-3, 1e-3));
}

TEST(VideoModule, RefusesWhatDoesNotFit) {
  VDiPoM network(small());
  const Inputs in;
  const auto refusal = [&](const at::Tensor& x, const at::Tensor& text, const at::Tensor& mask,
                           const at::Tensor& first = {}) {
    return message_of([&] { network->forward(x, in.t, text, mask, first); });
  };
  expect_parts(refusal(in.x.slice(2, 0, 5), in.text, in.mask), {"whole blocks of 2", "5"});
  expect_parts(refusal(in.x.slice(3, 0, 3), in.text, in.mask), {"patch (2)", "3 x 6"});
  expect_parts(refusal(in.x, in.text.slice(2, 0, 6), in.mask), {"text", "(2, L, 7)", "[2, 4, 6]"});
  expect_parts(refusal(in.x, in.text, in.mask.to(at::kLong)), {"mask", "bool"});
  expect_parts(refusal(in.x, in.text, in.mask, at::zeros({3}, at::kLong)), {"first_block", "(2)"});
  expect_parts(message_of([] { VDiPoM(variant("DiPoM-S/2")); }), {"kind", "vdipom", "dipom"});
}

// Under autocast the stream stays fp32, and the answer near that of fp32.
TEST(VideoModule, LearnsUnderAutocast) {
  VDiPoM network(small());
  randomise(network);
  const Inputs in;
  const at::Tensor expected = network->forward(in.x, in.t, in.text, in.mask).detach();
  network->set_observer([&](std::string_view layer, const at::Tensor& out) {
    EXPECT_EQ(out.scalar_type(), layer == "out_proj" ? at::kBFloat16 : at::kFloat) << layer;
  });
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor out = network->forward(in.x, in.t, in.text, in.mask).to(at::kFloat);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  out.square().sum().backward();
  EXPECT_LT((out - expected).norm().item<double>(), 3e-2 * expected.norm().item<double>());
  for (const auto& item : network->named_parameters()) {
    if (item.key() == "no_text") continue;  // every clip has a text here
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
  }
}

TEST(ClipDenoising, InBf16IsNearFp32) {
  for (const bool attention : {false, true}) {
    const NetworkConfig config = small(attention);
    VDiPoM network(config);
    randomise(network);
    const Inputs in;
    at::Tensor made[2];
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto made_ready = Denoiser::make(config, network->weights(), dtype);
      Denoiser& denoiser = *made_ready;
      denoiser.plan({2, 4, 6, {{0.5, true}}});
      denoiser.tell({.text = in.text, .mask = in.mask});
      for (std::int64_t b = 0; b < 3; ++b) {
        made[dtype == at::kBFloat16] = denoiser(in.x.narrow(2, 2 * b, 2), 0);
        denoiser.advance();
      }
    }
    EXPECT_EQ(made[1].scalar_type(), at::kFloat);
    EXPECT_LT((made[0] - made[1]).norm().item<double>(), 3e-2 * made[0].norm().item<double>());
  }
}

TEST(ClipDenoising, AdvancesOnlyWhenTheBlockIsDone) {
  const NetworkConfig config = small();
  VDiPoM network(config);
  randomise(network);
  const Inputs in;
  const auto made_ready = Denoiser::make(config, network->weights());
  Denoiser& denoiser = *made_ready;
  denoiser.plan({2, 4, 6, {{0.9, false}, {0.4, true}}});
  denoiser.tell({.text = in.text, .mask = in.mask});
  const at::Tensor x = in.x.narrow(2, 0, 2);
  EXPECT_EQ(denoiser(x, 0).size(0), 2);
  expect_parts(message_of([&] { denoiser.advance(); }), {"all 2 evaluations", "1"});
  EXPECT_EQ(denoiser(x, 1).size(0), 4);
  denoiser.advance();
  EXPECT_EQ(denoiser.block(), 1);
  expect_parts(message_of([&] { denoiser(x, 2); }), {"evaluation", "0 to 1", "2"});
  expect_parts(message_of([&] { denoiser(in.x.narrow(2, 0, 3), 0); }), {"x", "planned"});
  expect_parts(message_of([&] { denoiser(in.x.narrow(3, 0, 2), 0); }), {"x", "planned"});
}

// More evaluations than the table of modulations holds.
TEST(ClipDenoising, ManyEvaluationsGoThroughABoundedTable) {
  const NetworkConfig config = small();
  VDiPoM network(config);
  randomise(network);
  const Inputs in;
  std::vector<Evaluation> many;
  for (int i = 0; i < 150; ++i) many.push_back({1 - i / 150.0, false});
  const auto all = Denoiser::make(config, network->weights()),
             one = Denoiser::make(config, network->weights());
  all->plan({2, 4, 6, many});
  all->tell({.text = in.text, .mask = in.mask});
  const at::Tensor x = in.x.narrow(2, 0, 2);
  for (const std::size_t i : {0U, 149U, 70U, 63U, 64U}) {
    one->plan({2, 4, 6, {many[i]}});
    one->tell({.text = in.text, .mask = in.mask});
    EXPECT_TRUE(at::equal((*all)(x, static_cast<std::int64_t>(i)), (*one)(x, 0))) << i;
  }
}

// Blocks evaluated together, or some and then the rest, are those evaluated one after another; those of a
// network whose blocks all see each other are the module's.
TEST(ClipDenoising, SeveralBlocksAtATime) {
  for (const bool attention : {false, true})
    for (const std::int64_t window : {0, 2}) {
      NetworkConfig config = small(attention);
      config.window = window;
      VDiPoM network(config);
      randomise(network);
      const Inputs in;
      const auto sampled = [&](const std::vector<std::int64_t>& chunks) {
        const auto denoiser = Denoiser::make(config, network->weights());
        denoiser->plan({2, 4, 6, {{0.5, true}}});
        denoiser->tell({.text = in.text, .mask = in.mask});
        std::vector<at::Tensor> parts;
        for (const std::int64_t blocks : chunks) {
          parts.push_back((*denoiser)(in.x.narrow(2, 2 * denoiser->block(), 2 * blocks), 0).clone());
          denoiser->advance();
        }
        EXPECT_EQ(denoiser->block(), 3);
        return at::cat(parts, 2);
      };
      const at::Tensor one_by_one = sampled({1, 1, 1});
      for (const auto& chunks : std::vector<std::vector<std::int64_t>>{{3}, {1, 2}, {2, 1}})
        EXPECT_LT((sampled(chunks) - one_by_one).abs().max().item<double>(),
                  1e-5 * one_by_one.abs().max().item<double>());
    }
}

// Streams that are evaluated together, with texts of their own that change at different times: each is what
// it is alone. Of mixers bit for bit; how torch cuts attention depends on the whole batch.
TEST(ClipDenoising, StreamsTogetherAreEachAlone) {
  constexpr std::int64_t streams = 4, blocks = 5, words = 6;
  for (const bool attention : {false, true})
    for (const auto& [window, own_every] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {2, 0}, {3, 2}}) {
      NetworkConfig config = small(attention);
      config.window = window, config.own_every = own_every;
      VDiPoM network(config);
      randomise(network);
      const at::Tensor x = at::randn({streams, 3, 2 * blocks, 4, 6});
      const at::Tensor texts = at::randn({streams, blocks, words, 7}), away = at::randn({streams, 3, 7});
      at::Tensor masks = at::rand({streams, blocks, words}).gt(0.4);
      for (std::int64_t s = 0; s < streams; ++s)
        for (std::int64_t b = 1; b < blocks; ++b)
          if (b != s) texts[s][b].copy_(texts[s][b - 1]), masks[s][b].copy_(masks[s][b - 1]);
      const auto sampled = [&](std::int64_t first, std::int64_t count) {
        const auto denoiser = Denoiser::make(config, network->weights());
        denoiser->plan({count, 4, 6, {{0.8, true}, {0.3, false}}});
        const auto of = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
        std::vector<at::Tensor> parts;
        for (std::int64_t b = 0; b < blocks; ++b) {
          denoiser->tell({.text = of(texts).select(1, b),
                          .mask = of(masks).select(1, b),
                          .away_text = of(away),
                          .away_mask = at::ones({count, 3}, at::kBool)});
          const at::Tensor now = of(x).narrow(2, 2 * b, 2);
          const at::Tensor both = (*denoiser)(now, 0);
          parts.push_back(at::cat({both.narrow(0, 0, count), both.narrow(0, count, count)}, 1).clone());
          parts.push_back(at::constant_pad_nd((*denoiser)(now, 1), {0, 0, 0, 0, 0, 0, 0, 3}));
          denoiser->advance();
        }
        return at::stack(parts);
      };
      const at::Tensor together = sampled(0, streams);
      for (std::int64_t s = 0; s < streams; ++s) {
        const at::Tensor alone = sampled(s, 1), ours = together.narrow(1, s, 1);
        if (attention)
          EXPECT_LT((ours - alone).abs().max().item<double>(), 1e-5 * alone.abs().max().item<double>()) << s;
        else
          EXPECT_TRUE(at::equal(ours, alone)) << s;
      }
    }
}

// Attention has the same bits whether its memory is taken once, because it is known how many blocks will
// come, or grows; and whatever was in it before: blocks that were broken off, another clip.
TEST(ClipDenoising, AttentionIsTheSameInAnyMemory) {
  constexpr std::int64_t blocks = 9;
  for (const auto& [window, own_every] :
       {std::pair<std::int64_t, std::int64_t>{0, 0}, {1, 0}, {3, 0}, {2, 2}}) {
    NetworkConfig config = small(/*attention=*/true);
    config.window = window, config.own_every = own_every;
    VDiPoM network(config);
    randomise(network);
    const Inputs in;
    const at::Tensor x = at::randn({2, 3, 2 * blocks, 4, 6});
    const auto sampled = [&](Denoiser& denoiser, std::int64_t known, bool broken_off) {
      denoiser.plan(
          {.batch = 2, .height = 4, .width = 6, .evaluations = {{0.8, true}, {0.3, false}}, .blocks = known});
      denoiser.tell({.text = in.text, .mask = in.mask});
      std::vector<at::Tensor> parts;
      for (std::int64_t b = 0; b < blocks; ++b) {
        const at::Tensor now = x.narrow(2, 2 * b, 2);
        if (broken_off) denoiser(at::randn_like(now), 0), denoiser(at::randn_like(now), 1);
        for (const std::int64_t i : {0, 1}) parts.push_back(denoiser(now, i).clone().flatten());
        denoiser.advance();
        for (const auto& [name, tensor] : denoiser.state())
          if (name.starts_with("keys") || name.starts_with("values"))
            parts.push_back(tensor.clone().flatten());
      }
      return at::cat(parts);
    };
    const auto fresh = [&] { return Denoiser::make(config, network->weights()); };
    const auto grown = fresh(), fixed = fresh();
    const at::Tensor expected = sampled(*grown, 0, false);
    EXPECT_TRUE(at::equal(sampled(*fixed, blocks, false), expected));
    EXPECT_TRUE(at::equal(sampled(*fixed, blocks, true), expected));
    EXPECT_TRUE(at::equal(sampled(*fixed, 4, false), expected));
    EXPECT_TRUE(at::equal(sampled(*grown, 0, true), expected));
  }
}

TEST(ClipDenoising, Fp8IsForGpus) {
  VDiPoM network(small());
  expect_parts(message_of([&] { Denoiser::make(small(), network->weights(), at::kFloat8_e4m3fn); }),
               {"dtype", "fp8 needs a GPU", "the CPU"});
  expect_parts(message_of([&] { Denoiser::make(small(), network->weights(), at::kInt); }),
               {"dtype", "fp32, bf16, fp16, fp64 or fp8"});
}

// One denoiser for clips of other sizes, lengths, batches and windows that are longer than they: as a new
// one.
TEST(ClipDenoising, PlansAnew) {
  NetworkConfig config = small();
  config.window = 4, config.own_every = 2;
  VDiPoM network(config);
  randomise(network);
  const auto kept = Denoiser::make(config, network->weights());
  struct Plan {
    std::int64_t batch, height, width, blocks;
    bool both;
  };
  for (const Plan& plan : {Plan{2, 4, 6, 3, true},
                           {2, 8, 4, 3, true},
                           {2, 8, 4, 3, false},
                           {1, 4, 6, 6, true},
                           {1, 4, 6, 1, true},
                           {2, 4, 6, 3, true}}) {
    const at::Tensor x = at::randn({plan.batch, 3, 2 * plan.blocks, plan.height, plan.width}),
                     text = at::randn({plan.batch, 5, 7});
    const auto sampled = [&](Denoiser& denoiser) {
      denoiser.plan({plan.batch, plan.height, plan.width, {{0.5, plan.both}}});
      denoiser.tell({.text = text, .mask = at::ones({plan.batch, 5}, at::kBool)});
      at::Tensor whole = denoiser(x, 0).clone();
      denoiser.advance();
      return std::pair{whole, denoiser(x.narrow(2, 0, 2), 0).clone()};  // and one block after them
    };
    const auto fresh = Denoiser::make(config, network->weights());
    const auto [clip, next] = sampled(*kept);
    const auto [expected, expected_next] = sampled(*fresh);
    EXPECT_TRUE(at::equal(clip, expected)) << plan.height << "x" << plan.width << ", " << plan.blocks;
    EXPECT_TRUE(at::equal(next, expected_next)) << plan.height << "x" << plan.width << ", " << plan.blocks;
    const at::NoGradGuard no_gradients;
    const at::Tensor module =
        network->forward(x, at::full({plan.batch}, 0.5), text, at::ones({plan.batch, 5}, at::kBool));
    EXPECT_LT((clip.narrow(0, 0, plan.batch) - module).abs().max().item<double>(),
              1e-4 * module.abs().max().item<double>());
  }
}

// A text for each of some equal parts is the same text for each of their blocks, with the same gradients; and
// blocks one after another, told the next text where its part begins, are those of the whole clip.
TEST(ClipDenoising, ATextOfEachPart) {
  for (const bool attention : {false, true}) {
    const NetworkConfig config = [&] {
      NetworkConfig c = small(attention);
      c.window = 3;
      return c;
    }();
    VDiPoM network(config);
    randomise(network);
    const at::Tensor x = at::randn({2, 3, 12, 4, 6}), t = at::full({2}, 0.5);
    at::Tensor texts = at::randn({2, 3, 5, 7}).requires_grad_();
    const at::Tensor mask = at::rand({2, 3, 5}).gt(0.3), up = at::randn({2, 3, 12, 4, 6});
    const auto gradient = [&](const at::Tensor& out) {
      return torch::autograd::grad({(out * up).sum()}, {texts})[0];
    };
    const at::Tensor parts = network->forward(x, t, texts, mask);
    const at::Tensor blocks =
        network->forward(x, t, texts.repeat_interleave(2, 1), mask.repeat_interleave(2, 1));
    const double size = parts.abs().max().item<double>();
    EXPECT_LT((parts - blocks).abs().max().item<double>(), 1e-5 * size);
    const at::Tensor one = gradient(parts), other = gradient(blocks);
    EXPECT_LT((one - other).abs().max().item<double>(), 1e-5 * one.abs().max().item<double>());
    const at::Tensor same = texts.narrow(1, 0, 1), same_mask = mask.narrow(1, 0, 1);
    EXPECT_LT((network->forward(x, t, same.expand_as(texts), same_mask.expand_as(mask)) -
               network->forward(x, t, same.squeeze(1), same_mask.squeeze(1)))
                  .abs()
                  .max()
                  .item<double>(),
              1e-5 * size);
    const auto denoiser = Denoiser::make(config, network->weights());
    denoiser->plan({2, 4, 6, {{0.5, false}}});
    std::vector<at::Tensor> stream;
    for (std::int64_t b = 0; b < 6; ++b) {
      if (b % 2 == 0)
        denoiser->tell({.text = texts.detach().select(1, b / 2), .mask = mask.select(1, b / 2)});
      stream.push_back((*denoiser)(x.narrow(2, 2 * b, 2), 0).clone());
      denoiser->advance();
    }
    EXPECT_LT((at::cat(stream, 2) - parts).abs().max().item<double>(), 1e-4 * size);
    EXPECT_GT((parts - network->forward(x, t, texts.flip(1), mask.flip(1))).abs().max().item<double>(),
              1e-2 * size)
        << "texts matter";
  }
}

TEST(ClipDenoising, BlocksThatAllSeeEachOther) {
  for (const bool attention : {false, true}) {
    NetworkConfig config = small(attention);
    config.temporal_mask = "none";
    VDiPoM network(config);
    randomise(network);
    const Inputs in;
    const auto denoiser = Denoiser::make(config, network->weights());
    denoiser->plan({2, 4, 6, {{0.5, false}}});
    denoiser->tell({.text = in.text, .mask = in.mask});
    const at::NoGradGuard no_gradients;
    const at::Tensor expected = network->forward(in.x, at::full({2}, 0.5), in.text, in.mask);
    EXPECT_LT(((*denoiser)(in.x, 0) - expected).abs().max().item<double>(),
              2e-5 * expected.abs().max().item<double>());
    expect_parts(message_of([&] { denoiser->state(); }), {"state", "block-causal"});
  }
}

// All blocks at once and one by one, of a clip whose length was planned; and what has no length.
TEST(ClipDenoising, EqualsTheModuleWithTheAuthorsChoices) {
  const NetworkConfig config = authors();
  VDiPoM network(config);
  randomise(network);
  network->to(at::kDouble);
  Inputs in;
  const at::Tensor x = in.x.to(at::kDouble), text = in.text.to(at::kDouble),
                   t = at::full({2}, 0.5, at::kDouble);
  in.mask[1].fill_(false);
  const at::NoGradGuard no_gradients;
  const at::Tensor expected =
      at::cat({network->forward(x, t, text, in.mask), network->forward(x, t, text, at::zeros_like(in.mask))});
  const auto denoiser = Denoiser::make(config, network->weights(), at::kDouble);
  expect_parts(message_of([&] {
                 denoiser->plan({2, 4, 6, {{0.5, true}}});
               }),
               {"blocks", "relative", "got 0"});
  for (const std::vector<std::int64_t>& chunks : {std::vector<std::int64_t>{3}, {1, 1, 1}, {1, 2}}) {
    denoiser->plan({2, 4, 6, {{0.5, true}}, 3});
    denoiser->tell({.text = text, .mask = in.mask});
    std::vector<at::Tensor> parts;
    for (const std::int64_t blocks : chunks) {
      parts.push_back((*denoiser)(x.narrow(2, 2 * denoiser->block(), 2 * blocks), 0).clone());
      denoiser->advance();
    }
    EXPECT_LT((at::cat(parts, 2) - expected).abs().max().item<double>(),
              1e-12 * expected.abs().max().item<double>());
  }
  expect_parts(message_of([&] { (*denoiser)(x.narrow(2, 0, 2), 0); }),
               {"3 blocks that were planned", "got 4"});
}

TEST(ClipDenoising, WeightsWithoutATokenSayWhichFieldWantsNone) {
  Weights weights = initial_weights(authors(), 0);
  expect_parts(message_of([&] { Denoiser::make(small(), weights); }),
               {"\"no_text\" of shape (24) is missing", "network.no_text is \"mask\""});
  weights = initial_weights(small(), 0);
  expect_parts(message_of([&] { Denoiser::make(authors(), weights); }), {"\"no_text\" is not part"});
}

// What guidance leads away from is what that text alone would give; no text unless told.
TEST(ClipDenoising, LeadsAwayFromAText) {
  for (const bool attention : {false, true}) {
    const NetworkConfig config = small(attention);
    VDiPoM network(config);
    randomise(network);
    const Inputs in;
    const at::Tensor x = in.x.narrow(2, 0, 2), other = in.text.flip(0), other_mask = in.mask.flip(0);
    const auto denoiser = Denoiser::make(config, network->weights());
    denoiser->plan({2, 4, 6, {{0.5, true}, {0.5, false}}});
    denoiser->tell({.text = other, .mask = other_mask});
    const at::Tensor alone = (*denoiser)(x, 1).clone();
    denoiser->tell({.text = in.text, .mask = in.mask, .away_text = other, .away_mask = other_mask});
    EXPECT_LT(((*denoiser)(x, 0).narrow(0, 2, 2) - alone).abs().max().item<double>(),
              1e-5 * alone.abs().max().item<double>());
    denoiser->tell({.text = in.text, .mask = in.mask});
    const at::Tensor nothing = (*denoiser)(x, 0).clone();
    denoiser->tell(
        {.text = in.text, .mask = in.mask, .away_text = other, .away_mask = at::zeros_like(other_mask)});
    EXPECT_LT(((*denoiser)(x, 0) - nothing).abs().max().item<double>(),
              1e-5 * nothing.abs().max().item<double>());
  }
}

TEST(ClipPatches, TimesTheWeightsAreTheConvolution) {
  NetworkConfig config = small();
  for (const std::int64_t pt : {1, 2, 3}) {
    config.patch_time = pt;
    const at::Tensor x = at::randn({2, 3, 2 * pt, 4, 6}, at::kDouble),
                     w = at::randn({7, 3, pt, 2, 2}, at::kDouble);
    const at::Tensor expected = at::conv3d(x, w, {}, {pt, 2, 2}).flatten(2).transpose(1, 2);
    EXPECT_TRUE(at::allclose(at::linear(clip_patchify(x, config), w.flatten(1)), expected, 1e-12, 1e-12));
  }
}

}  // namespace
}  // namespace pom::models
