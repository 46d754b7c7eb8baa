// All blocks of a network in one kernel, against the halves composed in fp64: within twice the error of the
// halves by themselves in the same dtype, the same bits in every run. Skipped without a GPU
// that has the kernel.
#include "tests/emulated_sizes.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/ops/block/block_stack.h"

namespace pom::ops {
namespace {

struct Case {
  std::int64_t B, N, d, hidden, order, blocks;
};

class GpuStack : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    const std::string reason = fp8_refusal(c10::Device(c10::kCUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(11);
    const auto [shape, type] = GetParam();
    c = shape, fp8 = type == at::kFloat8_e4m3fn, dtype = fp8 ? at::kBFloat16 : type;
    start = (at::randn({c.B, c.N, c.d}) * 2 + 1).cuda();
    x = start.clone();
    rows = (at::randn({c.B, 6 * c.blocks * c.d}) * 0.3).cuda();
    scales = at::zeros({c.blocks}, x.options());
    for (int i = 0; i < c.blocks; ++i) blocks.push_back(block(i));
  }
  Dense dense(std::int64_t in, std::int64_t out) const {
    return {(at::randn({out, in}) / std::sqrt(static_cast<double>(in))).to(dtype).cuda(),
            (at::randn({out}) * 0.3).to(dtype).cuda()};
  }
  StackedBlock block(int i) const {
    const std::int64_t kD = 2 * c.order * c.d;
    const Dense ho = dense(c.d, kD), se = dense(c.d, kD), ag = dense(kD, c.d);
    const auto part = [&](std::int64_t p) { return rows.narrow(1, (6 * i + p) * c.d, c.d); };
    return {{ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias},
            dense(c.d, c.hidden),
            dense(c.hidden, c.d),
            {part(0), part(1), 1e-6},
            {part(2), part(3), 1e-6},
            part(4),
            part(5),
            fp8 ? scales.narrow(0, i, 1) : at::Tensor()};
  }

  // Half by half.
  at::Tensor apart(Fp8::Stage stage = Fp8::Stage::off) const {
    at::Tensor stream = start.clone();
    for (const StackedBlock& b : blocks) {
      add_mixer(stream, b.mixing, b.mixer, c.order, b.mixing_gate, {stage, b.hidden_scale});
      add_feed_forward(stream, b.feeding, b.up, b.down, b.feeding_gate, {stage, b.hidden_scale});
    }
    return stream;
  }
  at::Tensor truth() const {
    const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
    at::Tensor stream = wide(start);
    for (const StackedBlock& b : blocks) {
      const LayerWeights w{wide(b.mixer.ho_weight), wide(b.mixer.ho_bias),   wide(b.mixer.se_weight),
                           wide(b.mixer.se_bias),   wide(b.mixer.ag_weight), wide(b.mixer.ag_bias)};
      add_mixer(stream, {wide(b.mixing.scale), wide(b.mixing.shift), 1e-6}, w, c.order, wide(b.mixing_gate));
      add_feed_forward(stream, {wide(b.feeding.scale), wide(b.feeding.shift), 1e-6},
                       {wide(b.up.weight), wide(b.up.bias)}, {wide(b.down.weight), wide(b.down.bias)},
                       wide(b.feeding_gate));
    }
    return stream;
  }
  at::Tensor run(BlockStack& stack) {
    x.copy_(start);
    stack.run();
    return x.clone();
  }

  Case c;
  bool fp8 = false;
  at::ScalarType dtype = at::kBFloat16;
  at::Tensor start, x, rows, scales;
  std::vector<StackedBlock> blocks;
};

TEST_P(GpuStack, NearTheTruthAndAlwaysTheSame) {
  if (fp8) apart(Fp8::Stage::measuring), scales.mul_(2);
  const auto stack = BlockStack::make(x, blocks, c.order, fp8);
  ASSERT_NE(stack, nullptr);
  const at::Tensor exact = truth(), ours = run(*stack);
  const at::Tensor plain = apart(fp8 ? Fp8::Stage::on : Fp8::Stage::off);
  const auto error = [&](const at::Tensor& t) { return (t.to(at::kDouble) - exact).norm().item<double>(); };
  EXPECT_LE(error(ours), 2 * error(plain));
  EXPECT_GT(error(ours), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(run(*stack), ours));
}

// The last two have half a band of rows, and means by a pass of their own.
INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuStack,
    testing::Combine(testing::Values(Case{2, 128, 64, 256, 2, 3},
                                     Case{4, 256, smaller(384, 128), smaller(1536, 512), 2, 2},
                                     Case{2, 512, smaller(1152, 192), smaller(4608, 768), 2, 2},
                                     Case{1, 1024, smaller(1152, 64), smaller(2304, 128), 3, 2},
                                     Case{3, 640, 128, 144, 4, 3}, Case{3, 128, 192, 384, 2, 4},
                                     Case{1, 2176, smaller(192, 64), smaller(768, 256), 2, smaller(3, 2)}),
                     testing::Values(at::kBFloat16, at::kFloat8_e4m3fn)));

TEST(GpuStacks, AreForWhatHasAKernel) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const auto options = at::TensorOptions(at::kCUDA);
  const auto stack = [&](std::int64_t tokens, at::ScalarType type) {
    const at::Tensor x = at::zeros({1, tokens, 64}, options), rows = at::zeros({1, 64}, options);
    const auto zeros = [&](std::int64_t out, std::int64_t in) {
      return at::zeros({out, in}, options.dtype(type));
    };
    const StackedBlock b{{zeros(256, 64), {}, zeros(256, 64), {}, zeros(64, 256), {}},
                         {zeros(256, 64), {}},
                         {zeros(64, 256), {}},
                         {rows, rows, 1e-6},
                         {rows, rows, 1e-6},
                         rows,
                         rows,
                         {}};
    return BlockStack::make(x, std::span(&b, 1), 2, false);
  };
  EXPECT_EQ(stack(100, at::kBFloat16), nullptr);
  EXPECT_EQ(stack(128, at::kFloat), nullptr);
  EXPECT_EQ(stack(128, at::kHalf), nullptr);
  EXPECT_EQ(stack(1 << 14, at::kBFloat16), nullptr);
}

}  // namespace
}  // namespace pom::ops
