// Clips on a GPU through the fused halves and a graph of one block: against the module in fp64 within twice
// the error of composed operations in the same dtype; equal bits from block to block of two runs; streams,
// whole clips, windows, prompts that change, states that go on; attention likewise. In fp8 against fp64 and
// bf16, with the same scales for a stream, a whole clip and a state. Skipped without such a GPU.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/denoiser.h"
#include "pom/models/vdipom.h"
#include "pom/ops/block/inference.h"

namespace pom::models {
namespace {

struct Case {
  std::int64_t window, own_every, rows, columns;
  bool attention = false;
};

constexpr std::int64_t kBlocks = 5, kBatch = 2, kWords = 9;

class GpuClips : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    const std::string reason = ops::fp8_refusal(c10::Device(c10::kCUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(11);
    const auto [shape, type] = GetParam();
    dtype = type;
    config.kind = "vdipom", config.dim = 64, config.depth = 4, config.channels = 4, config.text_width = 32;
    config.window = shape.window, config.own_every = shape.own_every;
    if (shape.attention) config.mixer = "attention", config.heads = 4;
    network = VDiPoM(config);
    {
      const at::NoGradGuard no_gradients;
      for (at::Tensor& p : network->parameters()) p.normal_(0, p.dim() > 1 ? 0.1 : 0.3);
    }
    height = shape.rows * config.patch, width = shape.columns * config.patch;
    x = at::randn({kBatch, config.channels, kBlocks * config.patch_time, height, width});
    text = at::randn({kBatch, kBlocks, kWords, config.text_width});
    text.narrow(1, 1, 1).copy_(text.narrow(1, 0, 1));  // the prompt changes after the second block
    mask = at::rand({kBatch, kBlocks, kWords}).gt(0.3);
    mask.narrow(1, 1, 1).copy_(mask.narrow(1, 0, 1));
    mask.select(2, 0).fill_(true);
  }

  std::unique_ptr<Denoiser> ready() const {
    Weights moved;
    for (const auto& [name, tensor] : network->weights()) moved[name] = tensor.cuda();
    auto made = Denoiser::make(config, std::move(moved), dtype);
    // Two evaluations of which one is guided: graphs of B rows and of 2B.
    made->plan({kBatch, height, width, {{0.7, true}, {0.4, false}}});
    return made;
  }
  at::Tensor block(std::int64_t b) const {
    return x.narrow(2, b * config.patch_time, config.patch_time).cuda();
  }
  void tell(Denoiser& denoiser, std::int64_t b) const {
    denoiser.tell({.text = text.select(1, b).cuda(), .mask = mask.select(1, b).cuda()});
  }
  // Both evaluations of every block, (B or 2B, C, T, H, W) each.
  std::vector<at::Tensor> streamed(Denoiser& denoiser, std::int64_t from = 0) const {
    std::vector<std::vector<at::Tensor>> parts(2);
    for (std::int64_t b = from; b < kBlocks; ++b) {
      tell(denoiser, b);
      for (std::int64_t i = 0; i < 2; ++i)
        parts[static_cast<std::size_t>(i)].push_back(denoiser(block(b), i).clone());
      denoiser.advance();
    }
    return {at::cat(parts[0], 2), at::cat(parts[1], 2)};
  }
  // What the module says in fp64, of one half.
  at::Tensor truth(double t, bool told) {
    const at::NoGradGuard no_gradients;
    network->to(at::kDouble);
    const at::Tensor seen = told ? mask : at::zeros_like(mask);
    const at::Tensor out =
        network->forward(x.to(at::kDouble), at::full({kBatch}, t, at::kDouble), text.to(at::kDouble), seen);
    network->to(at::kFloat);
    return out;
  }
  static double error(const at::Tensor& got, const at::Tensor& expected) {
    return (got.cpu().to(at::kDouble) - expected).abs().max().item<double>();
  }
  // Both ways are the same class: what is wrong in both is seen by a bound of its own.
  void expect_near(const std::vector<at::Tensor>& fused, const std::vector<at::Tensor>& composed) {
    const at::Tensor both = at::cat({truth(0.7, true), truth(0.7, false)}), alone = truth(0.4, true);
    const double ulp = dtype == at::kHalf ? 0x1p-10 : dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-20;
    for (const auto& [i, expected] : {std::pair{0U, both}, {1U, alone}}) {
      const double size = expected.abs().max().item<double>();
      EXPECT_LE(error(composed[i], expected), 16 * ulp * size) << "evaluation " << i;
      EXPECT_LE(error(fused[i], expected), 2 * error(composed[i], expected) + 4 * ulp * size)
          << "evaluation " << i;
    }
  }

  NetworkConfig config;
  VDiPoM network{nullptr};
  at::ScalarType dtype = at::kBFloat16;
  std::int64_t height = 0, width = 0;
  at::Tensor x, text, mask;
};

TEST_P(GpuClips, AStreamIsTheModulesClip) {
  const std::vector<at::Tensor> first = streamed(*ready()), again = streamed(*ready());
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(first[i], again[i])) << i;
  const ops::PathGuard guard(ops::Path::composed);
  expect_near(first, streamed(*ready()));
}

TEST_P(GpuClips, BlocksTogetherAreTheStream) {
  const auto whole = [&] {
    const auto denoiser = ready();
    denoiser->tell({.text = text.cuda(), .mask = mask.cuda()});
    return std::vector<at::Tensor>{(*denoiser)(x.cuda(), 0).clone(), (*denoiser)(x.cuda(), 1).clone()};
  };
  const std::vector<at::Tensor> fused = whole();
  const ops::PathGuard guard(ops::Path::composed);
  expect_near(fused, whole());
}

// Graphs outlive plans and prompts; and a state goes on where it was, with the same bits.
TEST_P(GpuClips, GoesOnFromAState) {
  const auto denoiser = ready();
  const std::vector<at::Tensor> expected = streamed(*denoiser);
  denoiser->plan({kBatch, height, width, {{0.7, true}, {0.4, false}}});
  for (std::int64_t b = 0; b < 2; ++b) {
    tell(*denoiser, b);
    for (std::int64_t i = 0; i < 2; ++i) (*denoiser)(block(b), i);
    denoiser->advance();
  }
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : denoiser->state()) state[name] = tensor.clone();
  for (const bool fresh : {false, true}) {
    const auto other = ready();
    Denoiser& next = fresh ? *other : *denoiser;
    next.set_state(state);
    const std::vector<at::Tensor> rest = streamed(next, 2);
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(rest[i], expected[i].narrow(2, 2 * config.patch_time, rest[i].size(2)))) << i;
  }
}

// One denoiser whose graphs are dropped and made again: other sizes, batches, numbers of blocks, one half or
// both, a text for all blocks and one for each, another path; each as a new one has it, bit for bit.
TEST_P(GpuClips, GraphsFollowWhatChanges) {
  const auto kept = ready();
  struct Plan {
    std::int64_t batch, height, width;
    bool both;
    std::vector<std::int64_t> chunks;  // of blocks
    bool own_texts;
    ops::Path path = ops::Path::automatic;
  };
  const std::int64_t h = height, w = width;
  for (const Plan& plan : {Plan{2, h, w, true, {1, 1, 1}, false},
                           {2, h + 2, w, true, {1, 1, 1}, false},
                           {2, h + 2, w, true, {3}, false},
                           {2, h + 2, w, true, {3}, true},
                           {2, h + 2, w, false, {1, 2}, false},
                           {1, h, w + 2, true, {2, 1, 1}, false},
                           {1, h, w + 2, true, {1, 1}, false, ops::Path::composed},
                           {1, h, w + 2, true, {1, 1}, false}}) {
    const ops::PathGuard guard(plan.path);
    std::int64_t blocks = 0;
    for (const std::int64_t n : plan.chunks) blocks += n;
    const at::Tensor clip =
        at::randn({plan.batch, config.channels, blocks * config.patch_time, plan.height, plan.width}).cuda();
    const at::Tensor texts = at::randn({plan.batch, blocks, kWords, config.text_width}).cuda();
    const auto sampled = [&](Denoiser& denoiser) {
      denoiser.plan({plan.batch, plan.height, plan.width, {{0.6, plan.both}, {0.3, false}}});
      std::vector<at::Tensor> parts;
      for (const std::int64_t n : plan.chunks) {
        const std::int64_t b = denoiser.block();
        const at::Tensor told = plan.own_texts ? texts.narrow(1, b, n) : texts.select(1, b);
        denoiser.tell(
            {.text = told, .mask = at::ones(told.sizes().slice(0, told.dim() - 1), at::kBool).cuda()});
        const at::Tensor part = clip.narrow(2, b * config.patch_time, n * config.patch_time);
        for (std::int64_t i = 0; i < 2; ++i) parts.push_back(denoiser(part, i).clone().flatten());
        denoiser.advance();
      }
      return at::cat(parts);
    };
    const auto fresh = ready();
    EXPECT_TRUE(at::equal(sampled(*kept), sampled(*fresh)))
        << plan.batch << " of " << plan.height << "x" << plan.width << ", " << plan.chunks.size()
        << " chunks";
  }
}

const auto kCases = testing::Values(Case{0, 0, 8, 16}, Case{3, 0, 5, 7}, Case{2, 2, 4, 8}, Case{0, 0, 1, 3},
                                    Case{0, 0, 8, 16, true}, Case{3, 0, 5, 7, true}, Case{2, 2, 4, 8, true});
INSTANTIATE_TEST_SUITE_P(Shapes, GpuClips,
                         testing::Combine(kCases, testing::Values(at::kBFloat16, at::kHalf, at::kFloat)));

// ---- fp8 ----

class GpuClipsInFp8 : public GpuClips {
 protected:
  std::vector<at::Tensor> whole(Denoiser& denoiser) const {
    denoiser.tell({.text = text.cuda(), .mask = mask.cuda()});
    return {denoiser(x.cuda(), 0).clone(), denoiser(x.cuda(), 1).clone()};
  }
  static double apart(const at::Tensor& got, const at::Tensor& expected) {  // relatively, by norms
    const at::Tensor truth = expected.cpu().to(at::kDouble);
    return (got.cpu().to(at::kDouble) - truth).norm().item<double>() / truth.norm().item<double>();
  }
  std::unique_ptr<Denoiser> in(at::ScalarType type) {
    dtype = type;
    return ready();
  }
  std::vector<at::Tensor> truths() {
    return {at::cat({truth(0.7, true), truth(0.7, false)}), truth(0.4, true)};
  }
};

// Every evaluation is in fp8, the first one too: further from the truth than bf16, and not far.
TEST_P(GpuClipsInFp8, IsNearTheModuleAndNotBf16) {
  const std::vector<at::Tensor> expected = truths();
  const std::vector<at::Tensor> narrow = streamed(*in(at::kFloat8_e4m3fn)),
                                wide = streamed(*in(at::kBFloat16));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_LT(apart(narrow[i], expected[i]), 0.25) << i;
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(2, b * config.patch_time, config.patch_time);
      };
      EXPECT_GT(apart(part(narrow[i]), part(expected[i])), 2 * apart(part(wide[i]), part(expected[i])))
          << i << ", block " << b;
    }
  }
}

// The scales are those of the first block in both: what differs are the last bits of sums, and now and then
// what they round to.
TEST_P(GpuClipsInFp8, AStreamIsTheWholeClip) {
  const std::vector<at::Tensor> expected = truths();
  const std::vector<at::Tensor> stream = streamed(*in(at::kFloat8_e4m3fn)),
                                clip = whole(*in(at::kFloat8_e4m3fn));
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_LT(apart(clip[i], stream[i]), 0.5 * apart(stream[i], expected[i])) << i;
}

TEST_P(GpuClipsInFp8, RunsAreEqualAndGoOnFromAState) {
  const auto denoiser = in(at::kFloat8_e4m3fn);
  const std::vector<at::Tensor> expected = streamed(*denoiser), again = streamed(*in(at::kFloat8_e4m3fn));
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(again[i], expected[i])) << i;
  denoiser->plan({kBatch, height, width, {{0.7, true}, {0.4, false}}});
  tell(*denoiser, 0);
  EXPECT_FALSE(denoiser->state().contains("hidden_scales"));
  for (std::int64_t b = 0; b < 2; ++b) {
    tell(*denoiser, b);
    for (std::int64_t i = 0; i < 2; ++i) (*denoiser)(block(b), i);
    denoiser->advance();
  }
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : denoiser->state()) state[name] = tensor.cpu();
  EXPECT_EQ(state.at("hidden_scales").sizes(), at::IntArrayRef({config.depth}));
  for (const bool fresh : {false, true}) {
    const auto other = in(at::kFloat8_e4m3fn);
    Denoiser& next = fresh ? *other : *denoiser;
    next.set_state(state);
    const std::vector<at::Tensor> rest = streamed(next, 2);
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(rest[i], expected[i].narrow(2, 2 * config.patch_time, rest[i].size(2)))) << i;
  }
}

// Streams in one batch share the scales, powers of two: each is nearly what it is alone.
TEST_P(GpuClipsInFp8, StreamsTogetherAreNearEachAlone) {
  const std::vector<at::Tensor> expected = truths(), together = streamed(*in(at::kFloat8_e4m3fn));
  for (std::int64_t s = 0; s < kBatch; ++s) {
    const auto alone = in(at::kFloat8_e4m3fn);
    alone->plan({1, height, width, {{0.7, true}, {0.4, false}}});
    for (std::int64_t b = 0; b < kBlocks; ++b) {
      alone->tell({.text = text.narrow(0, s, 1).select(1, b).cuda(),
                   .mask = mask.narrow(0, s, 1).select(1, b).cuda()});
      const auto now = [&](const at::Tensor& all) {
        return all.narrow(2, b * config.patch_time, config.patch_time);
      };
      for (std::int64_t i = 0; i < 2; ++i) {
        const at::Tensor made = (*alone)(now(x).narrow(0, s, 1).cuda(), i).narrow(0, 0, 1);
        const auto row = [&](const at::Tensor& all) { return now(all).narrow(0, s, 1); };
        const auto e = static_cast<std::size_t>(i);
        EXPECT_LT(apart(made, row(together[e])), apart(row(together[e]), row(expected[e])))
            << s << ", " << b << ", " << i;
      }
      alone->advance();
    }
  }
}

TEST_P(GpuClipsInFp8, NothingElseIsTaken) {
  const auto denoiser = in(at::kFloat8_e4m3fn);
  tell(*denoiser, 0);
  {
    const ops::PathGuard guard(ops::Path::composed);
    EXPECT_THROW((*denoiser)(block(0), 0), Error);
  }
  (*denoiser)(block(0), 0);
  if (config.attention()) return;
  config.order = 5;
  network = VDiPoM(config);
  const auto other = ready();
  tell(*other, 0);
  EXPECT_THROW((*other)(block(0), 0), Error);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuClipsInFp8,
                         testing::Combine(kCases, testing::Values(at::kFloat8_e4m3fn)));

}  // namespace
}  // namespace pom::models
