// The parts of a training block on a GPU, against ATen in fp64: values and gradients within twice the error
// of the composed operations in the same dtype, equal bits from run to run. The feed-forward with the fused
// products, where there is a GPU that has them; all of it is skipped where there is none.
#include "tests/emulated_sizes.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "pom/ops/block/inference.h"
#include "pom/ops/block/training.h"
#include "pom/ops/block/training_branch.h"
#include "pom/ops/mixer.h"

namespace pom::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::int64_t B, N, in, hidden, out;
};

class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype) {
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, dtype);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
};

Tensors leaves(const Tensors& made, at::ScalarType dtype) {
  Tensors result;
  for (const at::Tensor& t : made) result.push_back(t.to(dtype).detach().clone().requires_grad_());
  return result;
}
at::Tensor run(const Tensors& in) {
  return feed_forward(in[0], in[1], in[2], in[3], in[4]);
}
// The output and all gradients.
Tensors results(const Tensors& in, const at::Tensor& out) {
  const at::Tensor wave = at::arange(out.numel(), out.options().dtype(at::kDouble)).sin().view(out.sizes());
  Tensors all = torch::autograd::grad({(out.to(at::kDouble) * wave).sum()}, in);
  all.push_back(out.detach());
  return all;
}
bool through_products(const at::Tensor& out) {
  return out.grad_fn() && out.grad_fn()->name().find("FeedForwardFunction") != std::string::npos;
}

class GpuFeedForward : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    const std::string reason = fp8_refusal(c10::Device(c10::kCUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
    at::manual_seed(7);
    const auto [s, type] = GetParam();
    dtype = type;
    const auto scaled = [&](at::IntArrayRef shape, double size) {
      return (at::randn(shape) * size).to(dtype).cuda();
    };
    made = {scaled({s.B, s.N, s.in}, 1), scaled({s.hidden, s.in}, 1 / std::sqrt(static_cast<double>(s.in))),
            scaled({s.hidden}, 0.3), scaled({s.out, s.hidden}, 1 / std::sqrt(static_cast<double>(s.hidden))),
            scaled({s.out}, 0.3)};
  }
  Tensors made;
  at::ScalarType dtype;
};

TEST_P(GpuFeedForward, ValuesAndGradients) {
  const Tensors wide = leaves(made, at::kDouble), in = leaves(made, dtype), same = leaves(made, dtype);
  const Tensors truth = results(wide, run(wide));
  const at::Tensor out = run(in);
  EXPECT_TRUE(through_products(out));
  const Tensors ours = results(in, out), again = results(in, run(in));
  Tensors plain;
  {
    const PathGuard guard(Path::composed);
    const at::Tensor usual = run(same);
    EXPECT_FALSE(through_products(usual));
    plain = results(same, usual);
  }
  const double ulp = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const auto error = [&](const Tensors& t) {
      return (t[i].to(at::kDouble) - truth[i]).abs().max().item<double>();
    };
    EXPECT_EQ(ours[i].scalar_type(), dtype);
    EXPECT_LE(error(ours), 2 * error(plain) + 4 * ulp * truth[i].abs().max().item<double>()) << i;
    EXPECT_TRUE(at::equal(ours[i], again[i])) << i;
  }
  const at::NoGradGuard none;
  EXPECT_TRUE(at::equal(run(in), ours.back()));
}

// The backward product needs 2 * out rows, hidden widths of 32; the others go by cuBLAS.
INSTANTIATE_TEST_SUITE_P(Shapes, GpuFeedForward,
                         testing::Combine(testing::Values(Case{2, 203, 64, 128, 64}, Case{1, 1, 8, 8, 8},
                                                          Case{3, 130, 40, 96, 24}, Case{2, 300, 48, 208, 48},
                                                          Case{1, 20, 64, 128, 64},
                                                          Case{1, smaller(3000, 600), smaller(384, 192),
                                                               smaller(1536, 384), smaller(384, 192)},
                                                          Case{4, 64, 64, 128, 5}),
                                          testing::Values(at::kBFloat16, at::kHalf)));

// fp32 weights under autocast: gradients in fp32, near those of fp32.
TEST(GpuFeedForwardAutocast, LowersAndComesBack) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const std::string reason = fp8_refusal(c10::Device(c10::kCUDA, 0));
  if (!reason.empty()) GTEST_SKIP() << reason;
  at::manual_seed(7);
  const Tensors made{at::randn({2, 150, 64}).cuda(), (at::randn({128, 64}) / 8).cuda(),
                     at::randn({128}).cuda(), (at::randn({64, 128}) / 11).cuda(), at::randn({64}).cuda()};
  const Tensors wide = leaves(made, at::kDouble), truth = results(wide, run(wide));
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Tensors in = leaves(made, at::kFloat);
    const at::Tensor out = [&] {
      const Autocast autocast(dtype);
      return run(in);
    }();
    EXPECT_EQ(out.scalar_type(), dtype);
    EXPECT_TRUE(through_products(out));
    const Tensors found = results(in, out);
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), at::kFloat);
      EXPECT_LT((found[i].to(at::kDouble) - truth[i]).norm().item<double>(),
                0.03 * truth[i].norm().item<double>())
          << i;
    }
  }
}

TEST(GpuFeedForwardGradients, OfSecondOrder) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(7);
  const Tensors made{at::randn({2, 40, 16}).cuda(), (at::randn({32, 16}) / 4).cuda(), at::randn({32}).cuda(),
                     (at::randn({16, 32}) / 6).cuda(), at::randn({16}).cuda()};
  const auto second = [&](at::ScalarType dtype) {
    const Tensors in = leaves(made, dtype);
    const at::Tensor slope =
        torch::autograd::grad({run(in).sum()}, {in[0]}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return torch::autograd::grad({slope.to(at::kDouble).square().sum()}, {in[0]})[0].to(at::kDouble);
  };
  const at::Tensor truth = second(at::kDouble);
  EXPECT_LT((second(at::kBFloat16) - truth).norm().item<double>(), 0.05 * truth.norm().item<double>());
}

// ---- norms and gates ----

struct Rows {
  std::int64_t B, N, d;
};
struct Dtypes {
  at::ScalarType stream, branch;
};

class GpuNorms : public testing::TestWithParam<std::tuple<Rows, Dtypes>> {};

// The sum, its norm, and the gradients of x, y, gate, scale and shift.
Tensors norm_results(const Tensors& in, at::ScalarType branch, bool together) {
  std::optional<Autocast> autocast;
  if (branch != in[0].scalar_type() && in[0].scalar_type() != at::kDouble) autocast.emplace(branch);
  at::Tensor sum, out;
  if (together) {
    std::tie(sum, out) = gated_add_norm(in[0], in[1], in[2], 1.0, in[3], in[4], 1e-6);
  } else {
    sum = gated_add(in[0], in[1], in[2], 1.0);
    out = modulated_norm(sum, in[3], in[4], 1e-6);
  }
  autocast.reset();
  const auto total = [](const at::Tensor& t) {
    const at::Tensor wave = at::arange(t.numel(), t.options().dtype(at::kDouble)).sin().view(t.sizes());
    return (t.to(at::kDouble) * wave).sum();
  };
  Tensors all = torch::autograd::grad({total(out) + 0.5 * total(sum)}, in);
  all.push_back(sum.detach()), all.push_back(out.detach());
  return all;
}

TEST_P(GpuNorms, ValuesAndGradients) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(7);
  const auto [s, types] = GetParam();
  const Tensors made{(at::randn({s.B, s.N, s.d}) * 2 + 1).to(types.stream).cuda(),
                     at::randn({s.B, s.N, s.d}).to(types.branch).cuda(), (at::randn({s.B, s.d}) / 2).cuda(),
                     (at::randn({s.B, s.d}) / 2).cuda(), (at::randn({s.B, s.d}) / 2).cuda()};
  const auto fresh = [&](bool wide) {
    Tensors result;
    for (const at::Tensor& t : made)
      result.push_back((wide ? t.to(at::kDouble) : t).detach().clone().requires_grad_());
    return result;
  };
  const auto results = [&](Path path, bool together) {
    const PathGuard guard(path);
    return norm_results(fresh(false), types.branch, together);
  };
  const Tensors truth = norm_results(fresh(true), at::kDouble, false), plain = results(Path::composed, false);
  const bool lower = types.stream != at::kFloat || types.branch != at::kFloat;
  const double ulp = !lower ? 0x1p-23 : types.branch == at::kHalf ? 0x1p-10 : 0x1p-7;
  for (const bool together : {false, true}) {
    const Tensors ours = results(Path::fused, together), again = results(Path::fused, together);
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const auto error = [&](const Tensors& t) {
        return (t[i].to(at::kDouble) - truth[i]).abs().max().item<double>();
      };
      EXPECT_EQ(ours[i].scalar_type(), plain[i].scalar_type()) << i;
      EXPECT_LE(error(ours), 2 * error(plain) + 4 * ulp * truth[i].abs().max().item<double>())
          << i << (together ? " together" : " apart");
      EXPECT_TRUE(at::equal(ours[i], again[i])) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuNorms,
    testing::Combine(testing::Values(Rows{2, 1, 4}, Rows{3, 67, 37}, Rows{2, 130, 384}, Rows{1, 257, 1152},
                                     Rows{2, 9, 1000}, Rows{5, 300, 64}, Rows{2, 5, 4096}, Rows{1, 3, 3840},
                                     Rows{3, 70, 1500}, Rows{2, 33, 2048}, Rows{2, smaller(3001, 601), 1152},
                                     Rows{1, smaller(2500, 500), 776}, Rows{2, 1, 1152}, Rows{400, 3, 392}),
                     testing::Values(Dtypes{at::kFloat, at::kFloat}, Dtypes{at::kFloat, at::kBFloat16},
                                     Dtypes{at::kFloat, at::kHalf}, Dtypes{at::kBFloat16, at::kBFloat16})));

class GpuNormGradients : public testing::TestWithParam<std::int64_t> {};

// A gradient for one of the two results alone.
TEST_P(GpuNormGradients, OfOneOfTheTwo) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  at::manual_seed(7);
  const std::int64_t d = GetParam();
  const Tensors made{at::randn({2, 33, d}).cuda(), at::randn({2, 33, d}).cuda(), at::randn({2, d}).cuda(),
                     at::randn({2, d}).cuda(), at::randn({2, d}).cuda()};
  for (const bool of_sum : {true, false}) {
    const auto slopes = [&](at::ScalarType dtype) {
      const Tensors in = leaves(made, dtype);
      const auto [sum, out] = gated_add_norm(in[0], in[1], in[2], 1.0, in[3], in[4], 1e-6);
      return torch::autograd::grad({(of_sum ? sum : out).square().sum()}, {in[0], in[1], in[2]});
    };
    const Tensors truth = slopes(at::kDouble), ours = slopes(at::kFloat);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LT((ours[i].to(at::kDouble) - truth[i]).norm().item<double>(),
                1e-5 * truth[i].norm().item<double>() + 1e-4)
          << i << (of_sum ? " of the sum" : " of the norm");
  }
}

// Rows that do not begin where the copy engine can.
TEST_P(GpuNormGradients, OfTensorsThatBeginAnywhere) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const std::int64_t d = GetParam();
  const auto slopes = [&](bool shifted) {
    at::manual_seed(7);
    Tensors in;
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{2, 33, d}, {2, 33, d}, {2, d}, {2, d}, {2, d}}) {
      const at::Tensor drawn = at::randn(shape).cuda(), longer = at::empty({drawn.numel() + 1}).cuda();
      at::Tensor place = longer.narrow(0, shifted ? 1 : 0, drawn.numel()).view(shape);
      place.copy_(drawn);
      in.push_back(place.detach().requires_grad_());
    }
    const auto [sum, out] = gated_add_norm(in[0], in[1], in[2], 1.0, in[3], in[4], 1e-6);
    return torch::autograd::grad({sum.square().sum() + out.square().sum()}, in);
  };
  const Tensors there = slopes(false), elsewhere = slopes(true);
  for (std::size_t i = 0; i < there.size(); ++i)
    EXPECT_LT((there[i] - elsewhere[i]).norm().item<double>(), 1e-5 * there[i].norm().item<double>()) << i;
}

INSTANTIATE_TEST_SUITE_P(Widths, GpuNormGradients, testing::Values(48, 1152));

// ---- branches: a stream that waits for its sum, a norm, products ----

struct BranchCase {
  std::int64_t B, N, d, features;
  std::int64_t order;                  // of the mixer; 0: a feed-forward
  bool waiting;                        // whether the stream has something to add
  bool bias;                           // whether that comes without its bias
  std::int64_t texts = 0, words = 0;   // what the mixer reads instead of the stream
  std::int64_t block = 0, window = 0;  // or how it reads the stream
};

// Of text i the first i % words + 1 words count, of the second none.
MixerContext branch_context(const BranchCase& c, const at::Tensor& told) {
  if (c.texts == 0) return {.tokens = {}, .mask = {{}, c.block, c.window}};
  const at::Tensor i = at::arange(c.texts).unsqueeze(1);
  const at::Tensor counted = at::arange(c.words).le(i.remainder(c.words)).logical_and(i.ne(1));
  return {told, Mask::keys(counted.cuda())};
}

// x, y, bias, gate, scale, shift, the gate after the branch, and the weights.
Tensors branch_inputs(const BranchCase& c, at::ScalarType stream, at::ScalarType branch) {
  at::manual_seed(7);
  const auto drawn = [](at::IntArrayRef shape, double size) { return (at::randn(shape) * size).cuda(); };
  const double in = 1 / std::sqrt(static_cast<double>(c.d)),
               out = 1 / std::sqrt(static_cast<double>(c.features));
  const at::ScalarType weight = stream == at::kBFloat16 ? stream : at::kFloat;
  Tensors all{(drawn({c.B, c.N, c.d}, 2) + 1).to(stream), drawn({c.B, c.N, c.d}, 1).to(branch),
              drawn({c.d}, 0.5).to(weight)};
  for (int i = 0; i < 4; ++i) all.push_back(drawn({c.B, c.d}, 0.5));
  for (int i = 0; i < (c.order > 0 ? 2 : 1); ++i)
    all.push_back(drawn({c.features, c.d}, in).to(weight)),
        all.push_back(drawn({c.features}, 0.3).to(weight));
  all.push_back(drawn({c.d, c.features}, out).to(weight)), all.push_back(drawn({c.d}, 0.3).to(weight));
  if (c.texts > 0) all.push_back(drawn({c.texts, c.words, c.d}, 1).to(branch));
  return all;
}

struct BranchRun {
  at::Tensor sum, total;  // of the stream, and with the branch added
  std::string function;
};

BranchRun run_branch(const BranchCase& c, const Tensors& in, at::ScalarType branch) {
  std::optional<Autocast> autocast;
  if (branch != in[0].scalar_type() && in[0].scalar_type() != at::kDouble) autocast.emplace(branch);
  ResidualStream stream{.x = in[0]};
  if (c.waiting) stream = {in[0], in[1], c.bias ? in[2] : at::Tensor(), in[3], 1.0};
  const Modulation m{in[4], in[5], 1e-6};
  ResidualStream out = c.order > 0 ? mixer_branch(stream, m, {in[7], in[8], in[9], in[10], in[11], in[12]},
                                                  c.order, branch_context(c, in.back()))
                                   : feed_forward_branch(stream, m, in[7], in[8], in[9], in[10]);
  const std::string function = out.y.grad_fn() ? out.y.grad_fn()->name() : "";
  out.gate = in[6], out.base = 1.0;
  return {out.x, taken(out), function};
}

// Both results, and all gradients.
Tensors branch_results(const BranchCase& c, const Tensors& in, at::ScalarType branch, std::string* function) {
  const BranchRun r = run_branch(c, in, branch);
  if (function) *function = r.function;
  const auto total = [](const at::Tensor& t) {
    const at::Tensor wave = at::arange(t.numel(), t.options().dtype(at::kDouble)).sin().view(t.sizes());
    return (t.to(at::kDouble) * wave).sum();
  };
  Tensors all = torch::autograd::grad({total(r.total) + 0.5 * total(r.sum)}, in, {},
                                      /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                      /*allow_unused=*/true);
  all.push_back(r.sum.detach()), all.push_back(r.total.detach());
  return all;
}

class GpuBranches : public testing::TestWithParam<std::tuple<BranchCase, Dtypes>> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    const std::string reason = fp8_refusal(c10::Device(c10::kCUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(GpuBranches, ValuesAndGradients) {
  const auto [c, types] = GetParam();
  const Tensors made = branch_inputs(c, types.stream, types.branch);
  const auto fresh = [&made](bool wide) {
    Tensors result;
    for (const at::Tensor& t : made)
      result.push_back((wide ? t.to(at::kDouble) : t).detach().clone().requires_grad_());
    return result;
  };
  std::string function, composed;
  const Tensors truth = branch_results(c, fresh(true), at::kDouble, nullptr);
  const Tensors ours = branch_results(c, fresh(false), types.branch, &function),
                again = branch_results(c, fresh(false), types.branch, nullptr);
  Tensors plain;
  {
    const PathGuard guard(Path::composed);
    plain = branch_results(c, fresh(false), types.branch, &composed);
  }
  EXPECT_NE(function.find("BranchFunction"), std::string::npos) << function;
  EXPECT_EQ(composed.find("BranchFunction"), std::string::npos) << composed;
  const double ulp = types.branch == at::kHalf ? 0x1p-10 : 0x1p-7;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    EXPECT_EQ(ours[i].defined(), truth[i].defined()) << i;
    if (!truth[i].defined()) continue;
    const auto error = [&](const Tensors& t) {
      return (t[i].to(at::kDouble) - truth[i]).norm().item<double>();
    };
    EXPECT_EQ(ours[i].scalar_type(), plain[i].scalar_type()) << i;
    EXPECT_LE(error(ours), 2 * error(plain) + ulp * truth[i].norm().item<double>()) << i;
    EXPECT_TRUE(at::equal(ours[i], again[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuBranches,
    testing::Combine(
        testing::Values(
            BranchCase{2, 203, 64, 128, 2, true, true}, BranchCase{2, 203, 64, 128, 2, false, false},
            BranchCase{3, 130, 40, 96, 3, true, false}, BranchCase{1, 257, 32, 64, 1, true, true},
            BranchCase{40, 5, 64, 256, 4, true, true},
            BranchCase{1, smaller(2500, 600), smaller(1152, 192), smaller(4608, 768), 2, true, true},
            BranchCase{3, 96, 64, 128, 2, true, true, 3, 7},
            BranchCase{2, 240, 40, 96, 3, false, false, 6, 12},
            BranchCase{4, 256, 160, 640, 2, true, true, 8, 48},
            BranchCase{2, 256, 64, 128, 2, true, true, 0, 0, 64},
            BranchCase{3, 320, 40, 96, 1, false, false, 0, 0, 32, 3},
            BranchCase{2, 203, 64, 128, 0, true, true}, BranchCase{2, 203, 64, 128, 0, false, false},
            BranchCase{3, 130, 40, 96, 0, true, false},
            BranchCase{4, smaller(1000, 250), smaller(384, 128), smaller(1536, 256), 0, true, true}),
        testing::Values(Dtypes{at::kFloat, at::kBFloat16}, Dtypes{at::kFloat, at::kHalf},
                        Dtypes{at::kBFloat16, at::kBFloat16})));

// Sizes without products of our own, and no graph: the operations one after another.
TEST(GpuBranchesElsewhere, AreComposed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const BranchCase few{1, 7, 64, 128, 2, true, true};  // fewer rows than pay
  Tensors in = branch_inputs(few, at::kFloat, at::kBFloat16);
  for (at::Tensor& t : in) t.requires_grad_();
  EXPECT_EQ(run_branch(few, in, at::kBFloat16).function.find("BranchFunction"), std::string::npos);
  const at::NoGradGuard none;
  const BranchCase many{2, 300, 64, 128, 2, true, false};
  EXPECT_EQ(run_branch(many, branch_inputs(many, at::kFloat, at::kBFloat16), at::kBFloat16).function, "");
}

TEST(GpuBranchGradients, OfSecondOrder) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const BranchCase& c :
       {BranchCase{2, 150, 32, 64, 2, true, true}, BranchCase{2, 150, 32, 64, 0, true, true},
        BranchCase{2, 150, 32, 64, 2, true, true, 6, 5},
        BranchCase{2, 128, 32, 64, 2, true, true, 0, 0, 32, 2}}) {
    const Tensors made = branch_inputs(c, at::kFloat, at::kBFloat16);
    const auto second = [&](bool wide) {
      Tensors in;
      for (const at::Tensor& t : made)
        in.push_back((wide ? t.to(at::kDouble) : t).detach().clone().requires_grad_());
      const BranchRun r = run_branch(c, in, wide ? at::kDouble : at::kBFloat16);
      const at::Tensor slope = torch::autograd::grad({r.total.to(at::kDouble).square().sum()}, {in[0]}, {},
                                                     /*retain_graph=*/true, /*create_graph=*/true)[0];
      return torch::autograd::grad({slope.to(at::kDouble).square().sum()}, {in[0]})[0].to(at::kDouble);
    };
    const at::Tensor truth = second(true);
    EXPECT_LT((second(false) - truth).norm().item<double>(), 0.05 * truth.norm().item<double>())
        << c.order << " " << c.texts << " " << c.block;
  }
}

}  // namespace
}  // namespace pom::ops
