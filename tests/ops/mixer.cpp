// The operator from C++: fused kernels against the composed reference in fp64 for every mask, dtype and
// awkward shape, gradients included; recurrence; exact repeatability; errors. (python/tests compares with the
// paper's listing.)
#include "pom/ops/mixer.h"

#include <functional>
#include <gtest/gtest.h>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include "pom/base/error.h"
#include "pom/ops/composed.h"
#include "pom/ops/state.h"

namespace {

using namespace pom::ops;

struct Case {
  std::int64_t B, m, n, d, order, expand;
};

LayerWeights random_weights(const Case& c, at::ScalarType type) {
  const std::int64_t kD = c.order * c.expand * c.d;
  const auto make = [&](at::IntArrayRef shape, double scale) {
    return (at::randn(shape, at::kDouble) * scale).to(type);
  };
  const double in = 1.0 / std::sqrt(static_cast<double>(c.d)), out = 1.0 / std::sqrt(static_cast<double>(kD));
  return {make({kD, c.d}, in), make({kD}, 0.3),      make({kD, c.d}, in),
          make({kD}, 0.3),     make({c.d, kD}, out), make({c.d}, 0.3)};
}

std::vector<at::Tensor> list_of(const LayerWeights& w) {
  return {w.ho_weight, w.ho_bias, w.se_weight, w.se_bias, w.ag_weight, w.ag_bias};
}
LayerWeights from_list(const std::vector<at::Tensor>& l, std::size_t at) {
  return {l[at], l[at + 1], l[at + 2], l[at + 3], l[at + 4], l[at + 5]};
}

// Output, then the gradients of xq, xc and the weights, by one path.
std::vector<at::Tensor> run(Path path, const std::vector<at::Tensor>& inputs, at::ScalarType type,
                            std::int64_t order, const Mask& mask, const at::Tensor& dout) {
  const PathGuard guard(path);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& t : inputs) leaves.push_back(t.to(type).detach().requires_grad_(true));
  const at::Tensor out = mixer_layer(leaves[0], leaves[1], from_list(leaves, 2), order, mask);
  std::vector<at::Tensor> result = torch::autograd::grad({out}, leaves, {dout.to(type)});
  result.insert(result.begin(), out.detach());
  return result;
}

double error(const at::Tensor& a, const at::Tensor& truth) {
  return (a.to(at::kDouble) - truth).abs().max().item<double>();
}

struct Named {
  const char* name;
  std::function<Mask(std::int64_t, std::int64_t, std::int64_t)> make;
  bool square;
};

const Named kMasks[] = {
    {"none", [](auto, auto, auto) { return Mask::none(); }, false},
    {"keys",
     [](auto B, auto, auto n) {
       return Mask::keys(at::rand({B, n}).gt(0.4));
     },
     false},
    {"causal", [](auto, auto, auto) { return Mask::causal(); }, true},
    {"block 3", [](auto, auto, auto) { return Mask::block_causal(3); }, true},
    {"block 3, window 2", [](auto, auto, auto) { return Mask::block_causal(3, 2); }, true},
    {"causal, window 5", [](auto, auto, auto) { return Mask::causal(5); }, true},
    {"block 64", [](auto, auto, auto) { return Mask::block_causal(64); }, true},
    {"block 40, window 3", [](auto, auto, auto) { return Mask::block_causal(40, 3); }, true},
};

class Accuracy : public testing::TestWithParam<at::ScalarType> {};

// Error against fp64 within twice that of plain ATen in the same dtype, plus a few units in the last place;
// fp64 itself within 1e-12.
TEST_P(Accuracy, FusedWithinTwiceTheComposedError) {
  at::manual_seed(1);
  const at::ScalarType type = GetParam();
  const double eps = type == at::kFloat ? 0x1p-23 : type == at::kHalf ? 0x1p-10 : 0x1p-7;
  for (const Case& c : {Case{2, 7, 13, 8, 2, 1}, Case{1, 1, 1, 16, 3, 2}, Case{3, 113, 203, 24, 1, 2},
                        Case{2, 300, 301, 9, 4, 1}, Case{1, 530, 700, 40, 6, 1}})
    for (const Named& named : kMasks) {
      const std::int64_t m = named.square ? c.n : c.m;
      std::vector<at::Tensor> inputs{at::randn({c.B, m, c.d}).to(type), at::randn({c.B, c.n, c.d}).to(type)};
      for (const at::Tensor& w : list_of(random_weights(c, type))) inputs.push_back(w);
      const Mask mask = named.make(c.B, m, c.n);
      const at::Tensor dout = at::randn({c.B, m, c.d}).to(type);
      const auto truth = run(Path::composed, inputs, at::kDouble, c.order, mask, dout);
      const auto plain = run(Path::composed, inputs, type, c.order, mask, dout);
      const auto ours = run(Path::fused, inputs, type, c.order, mask, dout);
      for (std::size_t i = 0; i < ours.size(); ++i) {
        const double scale = truth[i].abs().max().item<double>();
        const double allowed =
            type == at::kDouble ? 1e-12 * scale : 2 * error(plain[i], truth[i]) + 8 * eps * scale;
        EXPECT_LE(error(ours[i], truth[i]), allowed)
            << named.name << ", result " << i << ", order " << c.order << ", n " << c.n << ", " << type;
      }
    }
}
INSTANTIATE_TEST_SUITE_P(Types, Accuracy, testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Mixer, ProjectedFormEqualsComposed) {
  at::manual_seed(2);
  for (const Named& named : kMasks) {
    const std::int64_t m = named.square ? 203 : 57;
    const at::Tensor ho = at::randn({2, 203, 3 * 37}, at::kDouble).requires_grad_(true);
    const at::Tensor se = at::randn({2, m, 3 * 37}, at::kDouble).requires_grad_(true);
    const Mask mask = named.make(2, m, 203);
    const at::Tensor dout = at::randn({2, m, 3 * 37}, at::kDouble);
    const auto with = [&](Path path) {
      const PathGuard guard(path);
      const at::Tensor out = polynomial_mixer(ho, se, 3, mask);
      auto g = torch::autograd::grad({out}, {ho, se}, {dout});
      g.push_back(out.detach());
      return g;
    };
    const auto ours = with(Path::fused), truth = with(Path::composed);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LT(error(ours[i], truth[i]), 1e-12) << named.name << " " << i;
  }
}

TEST(Mixer, FullMaskInTilesEqualsComposed) {
  at::manual_seed(12);
  const LayerWeights w = random_weights({2, 0, 0, 24, 2, 2}, at::kDouble);
  const at::Tensor q = at::randn({2, 37, 24}, at::kDouble), x = at::randn({2, 1100, 24}, at::kDouble);
  const Mask mask = Mask::full(at::rand({2, 37, 1100}).gt(0.7));
  const at::NoGradGuard no_grad;
  const at::Tensor ours = mixer_layer(q, x, w, 2, mask);
  const PathGuard guard(Path::composed);
  EXPECT_LT(error(ours, mixer_layer(q, x, w, 2, mask)), 1e-12);
}

// A few tokens are shared between threads by another route than many are; the bits must not tell.
TEST(Mixer, FewTokensGiveTheBitsOfMany) {
  at::manual_seed(13);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kHalf})
    for (const Case& c : {Case{1, 0, 0, 100, 2, 2}, Case{1, 0, 0, 9, 3, 1}}) {
      const LayerWeights w = random_weights(c, type);
      const at::Tensor q = at::randn({1, 70, c.d}).to(type),
                       H = at::randn({1, c.order * c.expand * c.d})
                               .to(type == at::kDouble ? at::kDouble : at::kFloat);
      const at::NoGradGuard no_grad;
      at::set_num_threads(1);
      const at::Tensor alone = mixer_select(q, H, w);
      at::set_num_threads(3);
      EXPECT_TRUE(at::equal(alone, mixer_select(q, H, w)));
      EXPECT_TRUE(at::equal(alone.slice(1, 0, 1), mixer_select(q.slice(1, 0, 1), H, w)));
      at::set_num_threads(2);
    }
}

TEST(Mixer, PackedSequencesEqualOneByOne) {
  at::manual_seed(3);
  const Case c{1, 0, 0, 24, 2, 2};
  const LayerWeights w = random_weights(c, at::kFloat);
  const std::vector<std::int64_t> ends{0, 5, 6, 6, 80, 411, 413, 700};
  const at::Tensor x = at::randn({700, 24}), cu = at::tensor(ends, at::kInt);
  const at::NoGradGuard no_grad;
  for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::block_causal(3, 2), Mask::block_causal(50),
                           Mask::causal(200), Mask::block_causal(40, 5)}) {
    const at::Tensor packed = mixer_layer(x, x, w, 2, mask, {cu, cu});
    for (std::size_t s = 1; s < ends.size(); ++s) {
      if (ends[s] == ends[s - 1]) continue;
      const at::Tensor one = x.slice(0, ends[s - 1], ends[s]).unsqueeze(0);
      EXPECT_TRUE(
          at::equal(packed.slice(0, ends[s - 1], ends[s]), mixer_layer(one, one, w, 2, mask).squeeze(0)))
          << "sequence " << s << ", block " << mask.block;
    }
  }
}

TEST(Mixer, SameBitsOnEveryRunAndNumberOfThreads) {
  at::manual_seed(4);
  const Case c{2, 0, 0, 48, 2, 2};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const Mask& mask :
         {Mask::none(), Mask::causal(), Mask::block_causal(3, 2), Mask::block_causal(64)}) {
      std::vector<at::Tensor> inputs{at::randn({2, 611, 48}), at::randn({2, 611, 48})};
      for (const at::Tensor& w : list_of(random_weights(c, at::kFloat))) inputs.push_back(w);
      const at::Tensor dout = at::randn({2, 611, 48});
      std::vector<std::vector<at::Tensor>> results;
      for (const int threads : {1, 2, 3, 2}) {
        at::set_num_threads(threads);
        results.push_back(run(Path::fused, inputs, type, 2, mask, dout));
      }
      for (std::size_t r = 1; r < results.size(); ++r)
        for (std::size_t i = 0; i < results[0].size(); ++i)
          EXPECT_TRUE(at::equal(results[0][i], results[r][i])) << "run " << r << ", result " << i;
    }
}

TEST(Mixer, NeighboursInTheBatchChangeNoBit) {
  at::manual_seed(5);
  const LayerWeights w = random_weights({5, 0, 0, 32, 2, 2}, at::kFloat);
  const at::Tensor x = at::randn({5, 333, 32});
  const at::NoGradGuard no_grad;
  for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::block_causal(64)}) {
    const at::Tensor all = mixer_layer(x, x, w, 2, mask);
    const at::Tensor one = x.slice(0, 3, 4);
    EXPECT_TRUE(at::equal(all.slice(0, 3, 4), mixer_layer(one, one, w, 2, mask)));
  }
}

// Gradients that themselves have a graph are the same gradients: also where inputs are one tensor or depend
// on another.
TEST(Mixer, CreateGraphGivesTheSameGradients) {
  at::manual_seed(14);
  const LayerWeights w = random_weights({1, 0, 0, 8, 2, 1}, at::kDouble);
  const at::Tensor x = at::randn({1, 5, 8}, at::kDouble).requires_grad_(true);
  const std::function<at::Tensor()> calls[] = {
      [&] { return mixer_layer(x, x, w, 2); }, [&] { return mixer_layer(x, x.tanh(), w, 2, Mask::causal()); },
      [&] { return polynomial_mixer(x, x, 2); }, [&] { return polynomial_mixer(x, x.tanh(), 2); }};
  for (const auto& call : calls) {
    const at::Tensor plain = torch::autograd::grad({call().square().sum()}, {x})[0];
    const at::Tensor graph = torch::autograd::grad({call().square().sum()}, {x}, {}, std::nullopt, true)[0];
    EXPECT_LT(error(graph.detach(), plain), 1e-12);
  }
}

TEST(Mixer, NoQueriesGiveZeroGradients) {
  const LayerWeights w = random_weights({1, 0, 0, 48, 3, 2}, at::kFloat);
  const at::Tensor q = at::zeros({1, 0, 48}).requires_grad_(true),
                   c = at::randn({1, 300, 48}).requires_grad_(true);
  std::vector<at::Tensor> leaves{q, c};
  for (const at::Tensor& t : list_of(w)) leaves.push_back(t.detach().requires_grad_(true));
  const at::Tensor out = mixer_layer(q, c, from_list(leaves, 2), 3);
  for (const at::Tensor& g : torch::autograd::grad({out.sum()}, leaves))
    EXPECT_EQ(g.abs().sum().item<float>(), 0);
}

TEST(Mixer, StridedViewsAndEmptyBatch) {
  at::manual_seed(6);
  const LayerWeights w = random_weights({2, 0, 0, 16, 2, 1}, at::kFloat);
  const at::Tensor wide = at::randn({16, 2, 90});
  const at::Tensor view = wide.permute({1, 2, 0}), cut = at::randn({2, 45, 40}).slice(2, 3, 19);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(
      at::equal(mixer_layer(view, cut, w, 2), mixer_layer(view.contiguous(), cut.contiguous(), w, 2)));
  EXPECT_EQ(mixer_layer(view.slice(0, 0, 0), cut.slice(0, 0, 0), w, 2).sizes(), at::IntArrayRef({0, 90, 16}));
  EXPECT_EQ(mixer_layer(view.slice(1, 0, 0), cut, w, 2).sizes(), at::IntArrayRef({2, 0, 16}));
}

TEST(Mixer, RowWithNothingVisibleGivesTheBias) {
  const LayerWeights w = random_weights({1, 0, 0, 8, 2, 1}, at::kFloat);
  const at::Tensor x = at::randn({1, 6, 8});
  const at::NoGradGuard no_grad;
  for (const Mask& mask :
       {Mask::keys(at::zeros({1, 6}, at::kBool)), Mask::full(at::zeros({1, 6, 6}, at::kBool))})
    EXPECT_TRUE(at::allclose(mixer_layer(x, x, w, 2, mask), w.ag_bias.expand({1, 6, 8})));
}

TEST(Mixer, MaskedTokensMayHoldAnything) {
  const LayerWeights w = random_weights({1, 0, 0, 8, 2, 1}, at::kFloat);
  at::Tensor x = at::randn({1, 6, 8}), q = at::randn({1, 3, 8}), keys = at::ones({1, 6}, at::kBool);
  keys[0][2].fill_(false);
  const at::NoGradGuard no_grad;
  const at::Tensor before = mixer_layer(q, x, w, 2, Mask::keys(keys));
  x[0][2].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(at::equal(before, mixer_layer(q, x, w, 2, Mask::keys(keys))));
}

TEST(Mixer, NansComeThrough) {
  const LayerWeights w = random_weights({1, 0, 0, 8, 2, 1}, at::kFloat);
  at::Tensor x = at::randn({1, 40, 8});
  x[0][33].fill_(std::numeric_limits<float>::quiet_NaN());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(mixer_layer(x, x, w, 2).isnan().all().item<bool>());
  const at::Tensor causal = mixer_layer(x, x, w, 2, Mask::causal()).isnan().any(-1);
  EXPECT_FALSE(causal.slice(1, 0, 33).any().item<bool>());
  EXPECT_TRUE(causal.slice(1, 33).all().item<bool>());
}

// ---- the recurrent form ----

TEST(State, AnyMixOfBlocksEqualsTheParallelForm) {
  at::manual_seed(7);
  const LayerWeights w = random_weights({2, 0, 0, 24, 3, 1}, at::kDouble);
  const at::Tensor x = at::randn({2, 60, 24}, at::kDouble);
  const at::NoGradGuard no_grad;
  MixerState state = MixerState::start(2, 72, x);
  const at::Tensor parallel = mixer_layer(x, x, w, 3, Mask::block_causal(12));
  for (std::int64_t t = 0; t < 60; t += 12)
    EXPECT_LT(error(step(x.slice(1, t, t + 12), state, w, 3), parallel.slice(1, t, t + 12)), 1e-12);
  MixerState causal = MixerState::start(2, 72, x);
  const at::Tensor all = mixer_layer(x, x, w, 3, Mask::causal());
  std::int64_t at = 0;
  for (const std::int64_t count : {1, 7, 2, 30, 20}) {
    EXPECT_LT(error(step_causal(x.slice(1, at, at + count), causal, w, 3), all.slice(1, at, at + count)),
              1e-12);
    at += count;
  }
  EXPECT_LT(error(causal.sum(), state.sum()), 1e-12);
  EXPECT_TRUE(at::equal(causal.count(), state.count()));
}

TEST(State, WindowedStepsEqualTheWindowedParallelForm) {
  at::manual_seed(8);
  const LayerWeights w = random_weights({2, 0, 0, 16, 2, 2}, at::kDouble);
  const at::Tensor x = at::randn({2, 50, 16}, at::kDouble);
  const at::NoGradGuard no_grad;
  MixerState state = MixerState::start(2, 64, x, 3);
  const at::Tensor parallel = mixer_layer(x, x, w, 2, Mask::block_causal(7, 3));
  for (std::int64_t t = 0; t < 50; t += 7)
    EXPECT_LT(error(step(x.slice(1, t, std::min<std::int64_t>(t + 7, 50)), state, w, 2),
                    parallel.slice(1, t, t + 7)),
              1e-12);
  MixerState tokens = MixerState::start(2, 64, x, 4);
  EXPECT_LT(error(step_causal(x, tokens, w, 2), mixer_layer(x, x, w, 2, Mask::causal(4))), 1e-12);
}

TEST(State, ForksMergesAndSaves) {
  at::manual_seed(9);
  const LayerWeights w = random_weights({1, 0, 0, 16, 2, 1}, at::kDouble);
  const at::Tensor x = at::randn({1, 40, 16}, at::kDouble);
  const at::NoGradGuard no_grad;
  for (const std::int64_t window : {0, 3}) {
    MixerState first = MixerState::start(1, 32, x, window), second = first.clone(), whole = first.clone();
    for (std::int64_t t = 0; t < 20; t += 5) step(x.slice(1, t, t + 5), first, w, 2);
    for (std::int64_t t = 20; t < 40; t += 5) step(x.slice(1, t, t + 5), second, w, 2);
    for (std::int64_t t = 0; t < 40; t += 5) step(x.slice(1, t, t + 5), whole, w, 2);
    const MixerState merged = first.merged(second);
    EXPECT_LT(error(merged.sum(), whole.sum()), 1e-12);
    EXPECT_TRUE(at::equal(merged.count(), whole.count()));

    MixerState fork = first.clone();
    const at::Tensor before = first.sum().clone();
    step(x.slice(1, 0, 5), fork, w, 2);
    EXPECT_TRUE(at::equal(before, first.sum()));

    MixerState again = MixerState::from_tensors(whole.tensors());
    MixerState copy = whole.clone();
    EXPECT_TRUE(at::equal(step(x.slice(1, 0, 5), again, w, 2), step(x.slice(1, 0, 5), copy, w, 2)));
  }
}

// ---- mistakes ----

std::string message(const std::function<void()>& body) {
  try {
    body();
  } catch (const pom::Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Errors, NameTheArgumentWhatWasExpectedAndWhatCame) {
  const LayerWeights w = random_weights({1, 0, 0, 8, 2, 1}, at::kFloat);
  const at::Tensor x = at::randn({2, 6, 8});
  const auto expect = [](const std::function<void()>& body, const std::string& text) {
    EXPECT_EQ(message(body), text);
  };
  expect([&] { mixer_layer(x[0], x, w, 2); },
         "mixer_layer: xq: expected 3 dimensions (batch, tokens, channels), got shape (6, 8)");
  expect([&] { mixer_layer(x, x.to(at::kDouble), w, 2); },
         "mixer_layer: xc: expected dtype Float like xq, got Double");
  expect([&] { mixer_layer(x.to(at::kInt), x.to(at::kInt), w, 2); },
         "mixer_layer: xq: expected float32, float64, bfloat16 or float16, got Int");
  expect([&] { mixer_layer(x, x.slice(1, 0, 0), w, 2); },
         "mixer_layer: xc: expected at least one context token, got shape (2, 0, 8)");
  expect([&] { mixer_layer(x, x, w, 3); },
         "mixer_layer: order: expected a divisor of the 16 features of ho_weight, got 3");
  expect([&] { mixer_layer(x, x, w, 0); }, "mixer_layer: order: expected at least 1, got 0");
  expect(
      [&] {
        mixer_layer(x, x, w, 2, Mask::keys(at::ones({2, 5})));
      },
      "mixer_layer: mask: expected shape (2, 6), got (2, 5)");
  expect(
      [&] {
        mixer_layer(x, x, w, 2, Mask::keys(at::full({2, 6}, 0.5)));
      },
      "mixer_layer: mask: expected bool or only 0 and 1, got other values in a tensor of Float");
  expect([&] { mixer_layer(x.slice(1, 0, 4), x, w, 2, Mask::causal()); },
         "mixer_layer: mask: expected as many queries as context tokens under a causal mask, got 4 queries "
         "and 6 "
         "context tokens");
  expect(
      [&] {
        mixer_layer(x[0], x[0], w, 2, {}, {at::tensor({0, 3, 2, 6}), at::tensor({0, 3, 2, 6})});
      },
      "mixer_layer: cu_q: expected offsets that never decrease, got 2 after 3");
  MixerState state = MixerState::start(3, 16, x);
  expect([&] { step(x, state, w, 2); }, "step: state: expected a batch of 2 like x, got 3");
}

TEST(Errors, InnerOperatorsCheckToo) {
  const at::Tensor h = at::randn({1, 4, 34});
  const auto backward = c10::Dispatcher::singleton().findSchemaOrThrow("pom::mixer_backward", "");
  const auto call = [&](const at::Tensor& dout, std::int64_t order) {
    torch::jit::Stack stack{dout, h, h, order, c10::IValue(), 0, 0, c10::IValue(), c10::IValue()};
    backward.callBoxed(stack);
  };
  EXPECT_EQ(message([&] { call(h, 17); }),
            "mixer_backward: expected a mask and an order with a fused kernel, got order 17");
  EXPECT_NE(message([&] { call(h.slice(1, 0, 1), 2); }).find("mixer_backward: dout: expected"),
            std::string::npos);
}

TEST(Errors, FusedPathIsNeverReplacedSilently) {
  const LayerWeights w = random_weights({1, 0, 0, 8, 2, 1}, at::kFloat);
  const at::Tensor x = at::randn({1, 6, 8});
  const PathGuard guard(Path::fused);
  for (const bool grad : {false, true}) {
    const at::AutoGradMode mode(grad);
    const at::Tensor q = x.detach().requires_grad_(grad);
    EXPECT_EQ(message([&] {
                mixer_layer(q, q, w, 2, Mask::full(at::ones({1, 6, 6}, at::kBool)));
              }),
              "mixer_layer: path: fused was asked for, but a full mask has no fused kernel");
  }
}

}  // namespace
