// The halves of blocks on a GPU with the fused products, against ATen in fp64: within twice the error of the
// composed operations in the same dtype, in fp8 within what e4m3 rounds. Skipped without such a GPU.
#include "tests/ops/block/seen_blocks.h"
#include <functional>
#include <gtest/gtest.h>
#include <vector>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/ops/block/inference.h"
#include "pom/ops/composed.h"
#include "pom/ops/cuda/graphs.h"

namespace pom::ops {
namespace {

struct Case {
  std::int64_t B, N, d, hidden;
};

class GpuHalves : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    const std::string reason = fp8_refusal(c10::Device(c10::kCUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(7);
    const auto [shape, type] = GetParam();
    B = shape.B, N = shape.N, d = shape.d, hidden = shape.hidden, dtype = type;
    x = (at::randn({B, N, d}) * 2 + 1).cuda();
    const at::Tensor rows = (at::randn({B, 3 * d + 5}) * 0.5).cuda();
    modulation = {rows.narrow(1, 0, d), rows.narrow(1, d, d), 1e-6};
    gate = rows.narrow(1, 2 * d + 3, d);
    up = dense(d, hidden), down = dense(hidden, d);
  }
  Dense dense(std::int64_t in, std::int64_t out) const {
    return {(at::randn({out, in}) / std::sqrt(static_cast<double>(in))).to(dtype).cuda(),
            (at::randn({out}) * 0.3).to(dtype).cuda()};
  }
  LayerWeights mixer(std::int64_t order) const {
    const Dense ho = dense(d, 2 * order * d), se = dense(d, 2 * order * d), ag = dense(2 * order * d, d);
    return {ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
  }
  static at::Tensor wide(const at::Tensor& t) { return t.to(at::kDouble); }
  static LayerWeights wide(const LayerWeights& w) {
    return {wide(w.ho_weight), wide(w.ho_bias),   wide(w.se_weight),
            wide(w.se_bias),   wide(w.ag_weight), wide(w.ag_bias)};
  }
  at::Tensor modulated() const {
    const at::Tensor normal = at::layer_norm(wide(x), {d}, {}, {}, 1e-6);
    return normal * (1 + wide(modulation.scale).unsqueeze(1)) + wide(modulation.shift).unsqueeze(1);
  }
  static at::Tensor linear(const at::Tensor& in, const Dense& w) {
    return at::linear(in, wide(w.weight), wide(w.bias));
  }
  at::Tensor gated(const at::Tensor& y) const { return wide(x) + wide(gate).unsqueeze(1) * y; }

  // half(stream) on copies of x: by the kernels and composed.
  template <class Half>
  void expect_near(const at::Tensor& truth, const Half& half) const {
    const auto run = [&](Path path) {
      const PathGuard guard(path);
      at::Tensor stream = x.clone();
      return at::Tensor(half(stream));
    };
    const at::Tensor ours = run(Path::fused), again = run(Path::fused), plain = run(Path::composed);
    const auto error = [&](const at::Tensor& t) { return (wide(t) - truth).abs().max().item<double>(); };
    const double ulp = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    EXPECT_LE(error(ours), 2 * error(plain) + 4 * ulp * truth.abs().max().item<double>());
    EXPECT_TRUE(at::equal(ours, again));
  }
  // What was added to x, by norms.
  void expect_fp8(const at::Tensor& got, const at::Tensor& truth, const at::Tensor& before) const {
    const at::Tensor added = truth - before;
    const double error = (wide(got) - truth).norm().item<double>() / added.norm().item<double>();
    EXPECT_LT(error, 0.12);
    EXPECT_GT(error, 0.002);  // or it was not fp8
  }
  bool fp8_widths() const { return dtype == at::kBFloat16 && d % 16 == 0 && hidden % 16 == 0; }

  std::int64_t B, N, d, hidden;
  at::ScalarType dtype;
  at::Tensor x, gate;
  Modulation modulation;
  Dense up, down;
};

TEST_P(GpuHalves, Mixer) {
  for (const std::int64_t order : {1, 2, 3, 4, 6, 8}) {
    const LayerWeights weights = mixer(order);
    const at::Tensor m = modulated();
    const at::Tensor truth = gated(composed::mixer_layer(m, m, wide(weights), order, {}, {}));
    expect_near(truth, [&](at::Tensor& stream) {
      add_mixer(stream, modulation, weights, order, gate);
      return stream;
    });
    if (!fp8_widths()) continue;
    at::Tensor stream = x.clone();
    add_mixer(stream, modulation, weights, order, gate, {Fp8::Stage::on, {}});
    expect_fp8(stream, truth, wide(x));
  }
}

// Blocks that see those before them, and queries whose context has been read; with rows of one modulation, as
// clips have them.
TEST_P(GpuHalves, MixersOfBlocks) {
  const auto first = [&](const at::Tensor& rows) { return rows.narrow(0, 0, 1).expand_as(rows); };
  modulation = {first(modulation.scale), first(modulation.shift), modulation.eps}, gate = first(gate);
  const std::int64_t n = B % 2 == 0 ? 2 : B, R = B / n;
  for (const std::int64_t order : {1, 2, 3})
    for (const std::int64_t window : {0, 1, 3}) {
      const LayerWeights weights = mixer(order);
      const std::int64_t features = 2 * order * d, kept = std::max<std::int64_t>(window, 1);
      const at::Tensor sums =
          composed::mixer_summary(modulated(), wide(weights), order, {}).view({R, n, features});
      const at::Tensor past = at::randn({R, kept, features}, x.options()) * 5;
      const at::Tensor seen = at::rand({n}, x.options()) * 20 + static_cast<double>(N);
      const auto [H, left] = seen_blocks(sums, past, seen, window);
      const at::Tensor truth = gated(composed::mixer_select(modulated(), H, wide(weights)));
      std::vector<double> errors;  // of what is left for the next blocks
      expect_near(truth, [&](at::Tensor& stream) {
        at::Tensor now = at::empty_like(past);
        add_mixer(stream, modulation, weights, order, gate, {window, past, now, seen});
        errors.push_back(((wide(now) - left).abs() / (1 + left.abs())).max().item<double>());
        return stream;
      });
      ASSERT_EQ(errors.size(), 3U);  // by the kernels, again, and composed
      EXPECT_LE(errors[0], 2 * errors[2] + (dtype == at::kHalf ? 0x1p-10 : 0x1p-7))
          << "order " << order << ", window " << window;
      EXPECT_LT(errors[0], dtype == at::kHalf ? 0x1p-6 : 0x1p-3);
      if (!fp8_widths()) continue;
      const auto in_fp8 = [&](Fp8::Stage stage, at::Tensor& now) {
        at::Tensor stream = x.clone();
        add_mixer(stream, modulation, weights, order, gate, {window, past, now, seen}, {stage});
        return stream;
      };
      at::Tensor now = at::empty_like(past), apart = at::empty({R, kept + 1, features}, x.options());
      const at::Tensor fused = in_fp8(Fp8::Stage::on, now);
      expect_fp8(fused, truth, wide(x));
      EXPECT_LT((wide(now) - left).norm().item<double>(), 0.1 * left.norm().item<double>());
      // Where no kernel folds them, because what is left does not lie in one piece, the scales are the same.
      apart = apart.narrow(1, 1, kept);
      const at::Tensor composed_means = in_fp8(Fp8::Stage::on, apart);
      expect_fp8(composed_means, truth, wide(x));
      EXPECT_LT((wide(apart) - wide(now)).abs().max().item<double>(), 1e-3 * left.abs().max().item<double>());
      // What measures runs in bf16.
      at::Tensor stream = x.clone(), left_bf16 = at::empty_like(past);
      add_mixer(stream, modulation, weights, order, gate, {window, past, left_bf16, seen});
      EXPECT_TRUE(at::equal(in_fp8(Fp8::Stage::measuring, now), stream));
    }
}

// A block of a clip in fp8 is what it is alone, whatever is beside it: it has a scale of its own.
TEST_P(GpuHalves, BlocksInFp8HaveTheirOwnScales) {
  if (!fp8_widths()) return;
  const LayerWeights weights = mixer(2);
  const std::int64_t features = 4 * d;
  const auto first = [&](const at::Tensor& rows) { return rows.narrow(0, 0, 1).expand({2, d}); };
  const Modulation m{first(modulation.scale), first(modulation.shift), modulation.eps};
  const at::Tensor g = first(gate);
  const at::Tensor block = x.narrow(0, 0, 1), large = at::randn_like(block);
  const auto after = [&](double size, std::int64_t window) {  // of what the block sees, or does not
    at::Tensor stream = at::cat({block, large}).contiguous();
    const at::Tensor past = at::ones({1, std::max<std::int64_t>(window, 1), features}, x.options());
    at::Tensor left = at::empty_like(past);
    const at::Tensor seen = at::full({2}, static_cast<double>(N), x.options());
    // The second block's means are `size` times as large.
    const at::Tensor divided = at::stack({seen[0], seen[1] / size});
    add_mixer(stream, m, weights, 2, g, {window, past, left, divided}, {Fp8::Stage::on});
    return stream.narrow(0, 0, 1).clone();
  };
  for (const std::int64_t window : {0, 2}) EXPECT_TRUE(at::equal(after(1, window), after(1000, window)));
}

TEST_P(GpuHalves, Selection) {
  const LayerWeights weights = mixer(2);
  const at::Tensor H = at::randn({B, 4 * d}, x.options());
  for (const bool one : {false, true}) {
    if (one) {
      const auto first = [&](const at::Tensor& rows) { return rows.narrow(0, 0, 1).expand_as(rows); };
      modulation = {first(modulation.scale), first(modulation.shift), modulation.eps}, gate = first(gate);
    }
    const at::Tensor truth = gated(composed::mixer_select(modulated(), wide(H), wide(weights)));
    expect_near(truth, [&](at::Tensor& stream) {
      add_selection(stream, modulation, H, weights, gate);
      return stream;
    });
    if (!fp8_widths()) continue;
    at::Tensor made = x.clone(), given = x.clone();
    add_selection(made, modulation, H, weights, gate, {Fp8::Stage::on});
    expect_fp8(made, truth, wide(x));
    add_selection(given, modulation, H, weights, gate, {.stage = Fp8::Stage::on, .means = means_scales(H)});
    EXPECT_TRUE(at::equal(given, made));
    EXPECT_THROW(add_selection(given, modulation, H, weights, gate,
                               {.stage = Fp8::Stage::on, .means = means_scales(H).to(at::kDouble)}),
                 Error);
  }
}

TEST_P(GpuHalves, FeedForward) {
  const at::Tensor between = at::gelu(linear(modulated(), up));
  const at::Tensor truth = gated(linear(between, down));
  expect_near(truth, [&](at::Tensor& stream) {
    add_feed_forward(stream, modulation, up, down, gate);
    return stream;
  });
  if (!fp8_widths()) return;
  const at::Tensor scales = at::zeros({1}, x.options());
  at::Tensor stream = x.clone();
  add_feed_forward(stream, modulation, up, down, gate, {Fp8::Stage::measuring, scales});
  const double greatest = between.abs().max().item<double>();
  EXPECT_NEAR(scales[0].item<double>() * 448, greatest, 0.02 * greatest);
  scales.mul_(4);
  stream = x.clone();
  add_feed_forward(stream, modulation, up, down, gate, {Fp8::Stage::on, scales});
  expect_fp8(stream, truth, wide(x));
}

TEST_P(GpuHalves, Linears) {
  for (const at::ScalarType type : {dtype, at::kFloat})
    expect_near(linear(modulated(), up), [&](at::Tensor& stream) {
      at::Tensor y = at::empty({B, N, hidden}, x.options().dtype(type));
      modulated_linear(stream, modulation, up, y);
      return y;
    });
  for (const at::ScalarType type : {dtype, at::kFloat}) {
    const at::Tensor y = at::randn({B, N, hidden}).cuda().to(dtype).to(type);
    const at::Tensor truth = gated(linear(wide(y), down));
    expect_near(truth, [&](at::Tensor& stream) {
      add_linear(stream, y, down, gate);
      return stream;
    });
    if (!fp8_widths()) continue;
    at::Tensor stream = x.clone();
    add_linear(stream, y, down, gate, {Fp8::Stage::on, {}});
    expect_fp8(stream, truth, wide(x));
  }
}

// Where K is split a graph has counters of its own, which each of its runs finds as they should be: beside
// another graph, and beside the same done without one.
TEST_P(GpuHalves, InGraphs) {
  const auto first = cuda::graphs_on(x.device()), second = cuda::graphs_on(x.device());
  at::Tensor stream = at::empty_like(x);
  const auto evaluate = [&] {
    stream.copy_(x);
    add_feed_forward(stream, modulation, up, down, gate);
    add_feed_forward(stream, modulation, up, down, gate);
  };
  evaluate();
  const at::Tensor expected = stream.clone();
  for (int turn = 0; turn < 4; ++turn)
    for (const auto& run :
         {std::function<void()>([&] { first->run(0, evaluate); }),
          std::function<void()>([&] { second->run(turn / 2, evaluate); }), std::function<void()>(evaluate)}) {
      stream.zero_();
      run();
      EXPECT_TRUE(at::equal(stream, expected)) << "turn " << turn;
    }
  first->drop(), second->drop();
}

TEST_P(GpuHalves, NoFp8WhereThereIsNoKernel) {
  const LayerWeights weights = mixer(5);
  at::Tensor stream = x.clone();
  EXPECT_THROW(add_mixer(stream, modulation, weights, 5, gate, {Fp8::Stage::on, {}}), Error);
  const at::Tensor past = at::zeros({B, 1, 10 * d}, x.options()), H = at::ones({B, 10 * d}, x.options());
  const PastSums before{0, past, at::empty_like(past), at::ones({1}, x.options())};
  EXPECT_THROW(add_mixer(stream, modulation, weights, 5, gate, before, {Fp8::Stage::on}), Error);
  if (!fp8_widths()) {
    EXPECT_THROW(add_selection(stream, modulation, H, weights, gate, {Fp8::Stage::on}), Error);
  }
  const PathGuard composed(Path::composed);
  EXPECT_THROW(add_feed_forward(stream, modulation, up, down, gate, {Fp8::Stage::on, {}}), Error);
  EXPECT_THROW(add_mixer(stream, modulation, weights, 5, gate, before, {Fp8::Stage::on}), Error);
  EXPECT_THROW(add_selection(stream, modulation, H, weights, gate, {Fp8::Stage::on}), Error);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuHalves,
                         testing::Combine(testing::Values(Case{1, 1, 64, 192}, Case{3, 7, 64, 128},
                                                          Case{2, 257, 192, 576}, Case{5, 130, 72, 200},
                                                          Case{2, 150, 128, 1536}),  // K in splits
                                          testing::Values(at::kBFloat16, at::kHalf)));

}  // namespace
}  // namespace pom::ops
