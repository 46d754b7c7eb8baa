// The halves of blocks for sampling, against ATen in fp64: values, dtypes, odd shapes, and bits that depend
// on nothing but the row.
#include "pom/ops/block/inference.h"

#include "tests/ops/block/seen_blocks.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"
#include "pom/ops/composed.h"

namespace pom::ops {
namespace {

struct Case {
  std::int64_t B, N, d, hidden;
};

class Halves : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    const auto [shape, type] = GetParam();
    B = shape.B, N = shape.N, d = shape.d, hidden = shape.hidden, dtype = type;
    stream = dtype == at::kDouble ? at::kDouble : at::kFloat;
    x = at::randn({B, N, d}, stream) * 2 + 1;
    const at::Tensor rows = at::randn({B, 3 * d + 5}, stream) * 0.5;
    modulation = {rows.narrow(1, 0, d), rows.narrow(1, d, d), 1e-6};
    gate = rows.narrow(1, 2 * d + 3, d);
  }
  Dense dense(std::int64_t in, std::int64_t out) const {
    return {(at::randn({out, in}, at::kDouble) / std::sqrt(static_cast<double>(in))).to(dtype),
            (at::randn({out}, at::kDouble) * 0.3).to(dtype)};
  }
  at::Tensor wide(const at::Tensor& t) const { return t.to(at::kDouble); }
  at::Tensor modulated() const {
    const at::Tensor normal = at::layer_norm(wide(x), {d}, {}, {}, 1e-6);
    return normal * (1 + wide(modulation.scale).unsqueeze(1)) + wide(modulation.shift).unsqueeze(1);
  }
  at::Tensor linear(const at::Tensor& in, const Dense& w) const {
    return at::linear(in, wide(w.weight), wide(w.bias));
  }
  double tolerance() const {
    switch (dtype) {
      case at::kDouble:
        return 1e-12;
      case at::kFloat:
        return 2e-5;
      case at::kHalf:
        return 6e-3;
      default:
        return 4e-2;
    }
  }
  void near(const at::Tensor& got, const at::Tensor& expected) const {
    const double error = ((wide(got) - expected).abs() / (1 + expected.abs())).max().item<double>();
    EXPECT_LT(error, tolerance());
  }

  std::int64_t B, N, d, hidden;
  at::ScalarType dtype, stream;
  at::Tensor x, gate;
  Modulation modulation;
};

TEST_P(Halves, FeedForward) {
  const Dense up = dense(d, hidden), down = dense(hidden, d);
  const at::Tensor expected =
      wide(x) + wide(gate).unsqueeze(1) * linear(at::gelu(linear(modulated(), up)), down);
  add_feed_forward(x, modulation, up, down, gate);
  near(x, expected);
}

TEST_P(Halves, FeedForwardByTanh) {
  const Dense up = dense(d, hidden), down = dense(hidden, d);
  const at::Tensor inner = linear(modulated(), up);
  const auto with = [&](const char* form) {
    return wide(x) + wide(gate).unsqueeze(1) * linear(at::gelu(inner, form), down);
  };
  const at::Tensor expected = with("tanh"), exact = with("none");
  if (dtype == at::kDouble) {
    EXPECT_GT((expected - exact).abs().max().item<double>(), 1e-6);
  }
  add_feed_forward(x, modulation, up, down, gate, {}, Gelu::tanh);
  near(x, expected);
}

TEST_P(Halves, Mixer) {
  const std::int64_t order = 2, features = 2 * order * d;
  const Dense ho = dense(d, features), se = dense(d, features), ag = dense(features, d);
  const LayerWeights weights{ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  const LayerWeights wide_weights{wide(ho.weight), wide(ho.bias),   wide(se.weight),
                                  wide(se.bias),   wide(ag.weight), wide(ag.bias)};
  const at::Tensor expected =
      wide(x) +
      wide(gate).unsqueeze(1) * composed::mixer_layer(modulated(), modulated(), wide_weights, order, {}, {});
  add_mixer(x, modulation, weights, order, gate);
  near(x, expected);
}

// Blocks that see those before them, of sequences of as many blocks as divide the batch; with and without a
// window, after others and as the first, and in one go or one after another.
TEST_P(Halves, MixersOfBlocks) {
  const std::int64_t order = 2, features = 2 * order * d, n = B % 2 == 0 ? 2 : B, R = B / n;
  const Dense ho = dense(d, features), se = dense(d, features), ag = dense(features, d);
  const LayerWeights weights{ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  const LayerWeights wide_weights{wide(ho.weight), wide(ho.bias),   wide(se.weight),
                                  wide(se.bias),   wide(ag.weight), wide(ag.bias)};
  const at::Tensor sums =
      composed::mixer_summary(modulated(), wide_weights, order, {}).view({R, n, features});
  const at::Tensor before = x.clone();
  for (const std::int64_t window : {0, 1, 3}) {
    const std::int64_t kept = std::max<std::int64_t>(window, 1);
    const at::Tensor past = at::randn({R, kept, features}, stream) * 5;
    const at::Tensor seen = at::rand({n}, stream) * 20 + static_cast<double>(N);
    const auto [H, left] = seen_blocks(sums, past, seen, window);
    const at::Tensor expected =
        wide(before) + wide(gate).unsqueeze(1) * composed::mixer_select(modulated(), H, wide_weights);
    for (const Path way : {Path::automatic, Path::composed}) {
      const PathGuard guard(way);
      at::Tensor out = before.clone(), kept_now = at::empty_like(past);
      add_mixer(out, modulation, weights, order, gate, {window, past, kept_now, seen});
      near(out, expected);
      near(kept_now / static_cast<double>(N), left / static_cast<double>(N));
    }
    if (R > 1 || n == 1) continue;
    at::Tensor state = past.clone();  // block by block
    for (std::int64_t b = 0; b < n; ++b) {
      const auto one = [&](const at::Tensor& rows) { return rows.narrow(0, b, 1); };
      at::Tensor block = one(before).clone(), next = at::empty_like(state);
      add_mixer(block, {one(modulation.scale), one(modulation.shift), 1e-6}, weights, order, one(gate),
                {window, state, next, seen.narrow(0, b, 1)});
      near(block, one(expected));
      state = next;
    }
    near(state / static_cast<double>(N), left / static_cast<double>(N));
  }
}

TEST_P(Halves, MixersOfBlocksAlone) {
  const std::int64_t order = 2, features = 2 * order * d;
  const Dense ho = dense(d, features), se = dense(d, features), ag = dense(features, d);
  const LayerWeights weights{ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  at::Tensor expected = x.clone();
  add_mixer(expected, modulation, weights, order, gate);
  add_mixer(x, modulation, weights, order, gate,
            {.window = 1, .past = {}, .left = {}, .tokens_seen = at::full({B}, N, stream)});
  near(x, wide(expected));
}

TEST_P(Halves, Selection) {
  const std::int64_t features = 3 * d;
  const Dense se = dense(d, features), ag = dense(features, d);
  const LayerWeights weights{{}, {}, se.weight, se.bias, ag.weight, ag.bias};
  const LayerWeights wide_weights{{}, {}, wide(se.weight), wide(se.bias), wide(ag.weight), wide(ag.bias)};
  const at::Tensor H = at::randn({B, features}, stream);
  const at::Tensor expected =
      wide(x) + wide(gate).unsqueeze(1) * composed::mixer_select(modulated(), wide(H), wide_weights);
  at::Tensor plain = x.clone();
  add_selection(x, modulation, H, weights, gate);
  near(x, expected);
  const PathGuard guard(Path::composed);
  add_selection(plain, modulation, H, weights, gate);
  near(plain, expected);
}

TEST_P(Halves, Linears) {
  const Dense out = dense(d, hidden), back = dense(hidden, d);
  at::Tensor y = at::empty({B, N, hidden}, dtype), z = at::empty({B, N, hidden}, stream);
  modulated_linear(x, modulation, out, y);
  modulated_linear(x, modulation, out, z);
  near(y, linear(modulated(), out));
  near(z, linear(modulated(), out));
  const at::Tensor expected = wide(x) + wide(gate).unsqueeze(1) * linear(wide(z), back);
  add_linear(x, z, back, gate);
  near(x, expected);
}

TEST_P(Halves, Rows) {
  const Dense up = dense(d, hidden), down = dense(hidden, d);
  const at::Tensor rows = x.view({B * N, d});
  at::Tensor plain = at::empty({B * N, hidden}, stream), silu = at::empty({B * N, hidden}, stream),
             mlp = at::empty({B * N, d}, stream);
  linear_rows(rows, up, plain);
  silu_linear_rows(rows, up, silu);
  silu_mlp_rows(rows, up, down, mlp);
  near(plain, linear(wide(rows), up));
  near(silu, linear(at::silu(wide(rows)), up));
  near(mlp, linear(at::silu(linear(wide(rows), up)), down));
}

// A sequence alone, in the batch, and with another number of threads: the same bits.
TEST_P(Halves, NeighboursAndThreadsChangeNoBit) {
  const Dense up = dense(d, hidden), down = dense(hidden, d);
  const std::int64_t order = 3, features = order * d;
  const Dense ho = dense(d, features), se = dense(d, features), ag = dense(features, d);
  const LayerWeights weights{ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  const auto run = [&](at::Tensor x, const Modulation& m, const at::Tensor& g) {
    add_mixer(x, m, weights, order, g);
    const at::Tensor past = at::ones({x.size(0), 2, features}, stream);
    add_mixer(x, m, weights, order, g, {2, past, at::empty_like(past), at::full({1}, 9, stream)});
    add_selection(x, m, at::ones({x.size(0), features}, stream), weights, g);
    add_feed_forward(x, m, up, down, g);
    return x;
  };
  const int before = at::get_num_threads();
  const at::Tensor together = run(x.clone(), modulation, gate);
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(run(x.clone(), modulation, gate), together)) << threads << " threads";
    for (std::int64_t b = 0; b < B; ++b) {
      const auto one = [&](const at::Tensor& t) { return t.narrow(0, b, 1); };
      const at::Tensor alone =
          run(one(x).clone(), {one(modulation.scale), one(modulation.shift), 1e-6}, one(gate));
      EXPECT_TRUE(at::equal(alone, one(together))) << "sequence " << b << ", " << threads << " threads";
    }
  }
  at::set_num_threads(before);
}

// Few rows of many features: threads share the features out, and where the cuts lie changes no bit.
TEST_P(Halves, SlicesOfFeaturesChangeNoBit) {
  const std::int64_t out = 700;
  const Dense wide_dense = dense(d, out), back = dense(out, d);
  const auto run = [&](const at::Tensor& x, const Modulation& m, const at::Tensor& g) {
    at::Tensor y = at::empty({x.size(0), x.size(1), out}, stream), z = x.clone();
    modulated_linear(x, m, wide_dense, y);
    add_linear(z, y, back, g);
    at::Tensor rows = at::empty({x.size(0) * x.size(1), out}, stream);
    silu_linear_rows(z.view({-1, d}), wide_dense, rows);
    return rows.view({x.size(0), x.size(1), out});
  };
  const int before = at::get_num_threads();
  const at::Tensor together = run(x, modulation, gate);
  for (const int threads : {1, 2, 3, 7}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(run(x, modulation, gate), together)) << threads << " threads";
    const auto one = [&](const at::Tensor& t) { return t.narrow(0, B - 1, 1); };
    const at::Tensor alone = run(one(x), {one(modulation.scale), one(modulation.shift), 1e-6}, one(gate));
    EXPECT_TRUE(at::equal(alone, one(together))) << threads << " threads";
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Halves,
    testing::Combine(testing::Values(Case{2, 3, 8, 20}, Case{3, 67, 36, 100}, Case{1, 1, 4, 4},
                                     Case{2, 300, 48, 210}, Case{5, 16, 64, 192}),
                     testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf)));

// Gates and rows may lie apart; a network's stream may not be of another dtype than fp32 beside bf16 weights.
TEST(HalvesErrors, NameTheArgument) {
  at::Tensor x = at::randn({2, 3, 8});
  const Dense up{at::randn({16, 8}), at::randn({16})}, down{at::randn({8, 16}), at::randn({8})};
  const Modulation good{at::randn({2, 8}), at::randn({2, 8})};
  const auto message = [](auto call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message([&] {
              add_feed_forward(x, {at::randn({3, 8}), good.shift}, up, down, good.scale);
            }).find("scale"),
            std::string::npos);
  EXPECT_NE(message([&] { add_feed_forward(x, good, up, up, good.scale); }).find("down"), std::string::npos);
  EXPECT_NE(message([&] {
              add_feed_forward(x, good, up, down, at::randn({2, 9}));
            }).find("gate"),
            std::string::npos);
  const Dense other{down.weight.to(at::kBFloat16), down.bias.to(at::kBFloat16)};
  EXPECT_NE(message([&] { add_feed_forward(x, good, up, other, good.scale); }).find("down: expected Float"),
            std::string::npos);
  const LayerWeights mixer{at::randn({16, 8}), {}, at::randn({16, 8}), {}, at::randn({8, 16}), {}};
  for (const Path way : {Path::automatic, Path::composed}) {
    const PathGuard guard(way);
    LayerWeights wrong = mixer;
    wrong.ag_weight = at::randn({8, 15});
    EXPECT_NE(message([&] {
                add_selection(x, good, at::randn({2, 16}), wrong, good.scale);
              }).find("ag_weight"),
              std::string::npos);
  }
  EXPECT_NE(message([&] {
              add_selection(x, good, at::randn({2, 15}), mixer, good.scale);
            }).find("H: expected Float of shape (2, 16), got (2, 15)"),
            std::string::npos);
  const auto of_past = [&](PastSums past) {
    return message([&] { add_mixer(x, good, mixer, 2, good.scale, past); });
  };
  const at::Tensor sums = at::randn({1, 1, 16}), seen = at::ones({2});
  EXPECT_EQ(of_past({0, sums, sums.clone(), seen}), "no error");
  EXPECT_NE(of_past({0, sums, sums.clone(), at::ones({3})}).find("tokens_seen: expected Float of shape (n)"),
            std::string::npos);
  EXPECT_NE(
      of_past({2, sums, sums.clone(), seen}).find("past: expected Float of shape (1, 2, 16), got (1, 1, 16)"),
      std::string::npos);
  EXPECT_NE(of_past({0, sums, {}, seen}).find("left: expected room"), std::string::npos);
  at::Tensor flat = x.view({6, 8});
  const Modulation each{at::randn({6, 8}), at::randn({6, 8})};
  EXPECT_NE(
      message([&] { add_feed_forward(flat, each, up, down, each.scale); }).find("x: expected (B, N, d)"),
      std::string::npos);
  at::Tensor half = x.to(at::kHalf);
  EXPECT_NE(message([&] { add_feed_forward(half, good, up, down, good.scale); }).find("x: expected Float"),
            std::string::npos);
}

}  // namespace
}  // namespace pom::ops
