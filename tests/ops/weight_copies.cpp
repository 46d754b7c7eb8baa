// Copies of weights: their forms, that none is older than its weight whoever changed it, and the linear layer
// that reads them. On a GPU as on the CPU.
#include "pom/ops/weight_copies.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "pom/ops/block/lowered_linear.h"
#include "pom/ops/mixer.h"

namespace pom::ops {
namespace {

constexpr std::int64_t kD = 64, kOrder = 2, kWidth = 24;

class Autocast {
 public:
  Autocast(c10::DeviceType device, at::ScalarType dtype) : device_(device) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }

 private:
  c10::DeviceType device_;
};

// Two matrices and a vector in one piece, as a trainer has them.
class Copies : public testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    at::manual_seed(3);
    const c10::NoGradGuard no_grad;
    flat = at::randn({4096 + 1024 + 48}).to(GetParam());
    first = leaf(flat.narrow(0, 0, kOrder * kD * kWidth).view({kOrder * kD, kWidth}));
    second = leaf(flat.narrow(0, 4096, 35 * 10).view({35, 10}));
    vector = leaf(flat.narrow(0, 4096 + 1024, 24));
    const at::Tensor all[] = {second, first, vector};
    copies = std::make_unique<WeightCopies>(flat, all);
  }
  // With a version of its own, as parameters have that were given other memory.
  static at::Tensor leaf(const at::Tensor& part) {
    at::Tensor parameter = at::empty_like(part);
    parameter.set_data(part);
    return parameter.requires_grad_();
  }
  static at::Tensor plain(const at::Tensor& w) {
    return WeightCopies::find(w, at::kBFloat16, CopyForm::plain);
  }
  static at::Tensor transposed(const at::Tensor& w) {
    return WeightCopies::find(w, at::kBFloat16, CopyForm::transposed);
  }
  static at::Tensor context(const at::Tensor& w, std::int64_t order) {
    return WeightCopies::find(w, at::kBFloat16, CopyForm::context, order);
  }
  // Without asking again, which would make it new.
  static bool is_copy(const at::Tensor& copy, const at::Tensor& w) {
    return at::equal(copy, w.detach().to(at::kBFloat16));
  }

  at::Tensor flat, first, second, vector;
  std::unique_ptr<WeightCopies> copies;
};

TEST_P(Copies, AreTheWeightsInTheirForms) {
  EXPECT_TRUE(is_copy(plain(first), first));
  EXPECT_TRUE(is_copy(transposed(second), second.t()));
  const at::Tensor rows = context(first, kOrder).to(at::kFloat);
  const at::Tensor lowered = first.detach().to(at::kBFloat16).to(at::kFloat);
  // Of every 64 rows 32 of the first factor, then those of the second for the same features.
  for (std::int64_t unit = 0; unit < kD / 32; ++unit)
    for (std::int64_t factor = 0; factor < kOrder; ++factor)
      EXPECT_TRUE(at::equal(rows.narrow(0, unit * 64 + factor * 32, 32),
                            lowered.narrow(0, factor * kD + unit * 32, 32)))
          << unit << ", " << factor;
  EXPECT_FALSE(context(first, 1).defined()) << "a weight has one order";
  EXPECT_EQ(copies->bytes(), 2 * (2 * first.numel() + second.numel()));
}

TEST_P(Copies, AreThoseThatSomebodyAskedFor) {
  EXPECT_TRUE(copies->copied().empty());
  plain(second);
  const std::vector<cuda::CopiedMatrix> there = copies->copied();
  ASSERT_EQ(there.size(), 1u);
  EXPECT_EQ(there[0].begin, 4096);
  EXPECT_TRUE(there[0].plain.defined());
  EXPECT_FALSE(there[0].transposed.defined());
  EXPECT_FALSE(there[0].context.defined());
}

TEST_P(Copies, OfNothingElse) {
  EXPECT_FALSE(plain(vector).defined());
  EXPECT_FALSE(plain(first.detach().clone()).defined());
  EXPECT_FALSE(WeightCopies::find(first, at::kHalf, CopyForm::plain).defined());
  EXPECT_FALSE(plain({}).defined());
  copies.reset();
  EXPECT_FALSE(plain(first).defined());
  const at::Tensor elsewhere[] = {at::zeros({4, 4}).to(GetParam())};
  EXPECT_THROW(WeightCopies(flat, elsewhere), std::exception);
}

TEST_P(Copies, NoneIsOlderThanItsWeight) {
  const c10::NoGradGuard no_grad;
  plain(first), plain(second);
  const auto both_new = [&](const char* what) {
    EXPECT_TRUE(is_copy(plain(first), first)) << what;
    EXPECT_TRUE(is_copy(plain(second), second)) << what;
  };
  first.mul_(2);
  both_new("a parameter by hand");
  flat.add_(1);
  both_new("all at once");
  flat.narrow(0, 4096, 10).fill_(7);
  both_new("a part of the memory");
  flat.as_strided({2, 8}, {48, 1}, 0).zero_();
  both_new("what lies at distances");
  const at::Tensor other = first.detach() * 3;
  flat.narrow(0, 0, first.numel()).copy_(other.flatten());
  both_new("copied from elsewhere");
}

TEST_P(Copies, RefreshMakesThemAnewInTheirPlaces) {
  const c10::NoGradGuard no_grad;
  const at::Tensor a = plain(first), b = transposed(second), c = context(first, kOrder);
  const at::Tensor before = c.clone();
  flat.mul_(-1);
  EXPECT_FALSE(is_copy(a, first)) << "nobody has looked yet";
  WeightCopies::refresh_all();
  EXPECT_TRUE(is_copy(a, first));
  EXPECT_TRUE(is_copy(b, second.t()));
  EXPECT_TRUE(at::equal(c, -before));
  EXPECT_TRUE(a.is_same(plain(first))) << "graphs read them where they are";
  second.add_(1);
  copies->refresh();
  EXPECT_TRUE(is_copy(b, second.t())) << "of one that has changed alone";
}

TEST_P(Copies, WhoHasWrittenThemIsBelieved) {
  const c10::NoGradGuard no_grad;
  const at::Tensor a = plain(first);
  flat.zero_();
  a.fill_(5);  // what a kernel might have written
  copies->written();
  EXPECT_TRUE(at::equal(plain(first), at::full_like(a, 5)));
  flat.zero_();
  EXPECT_TRUE(at::equal(plain(first), at::zeros_like(a)));
}

TEST_P(Copies, LinearReadsThem) {
  const at::Tensor x = at::randn({2, 7, kWidth}).to(GetParam());
  const at::Tensor bias = at::randn({kOrder * kD}).to(GetParam());
  const at::Tensor wave = at::arange(2 * 7 * kOrder * kD, flat.options()).sin().view({2, 7, -1});
  struct Result {
    std::vector<at::Tensor> tensors;
    std::string function;
  };
  const auto run = [&](at::ScalarType dtype, const at::Tensor& weight) {
    const std::vector<at::Tensor> in{x.to(dtype).detach().clone().requires_grad_(),
                                     weight.scalar_type() == dtype ? weight : weight.detach().to(dtype),
                                     bias.to(dtype).detach().clone().requires_grad_()};
    if (!in[1].requires_grad()) in[1].requires_grad_();
    const at::Tensor out = lowered_linear(in[0], in[1], in[2]);
    Result r{torch::autograd::grad({(out.to(dtype) * wave.to(dtype)).sum()}, in), out.grad_fn()->name()};
    r.tensors.push_back(out.detach());
    return r;
  };
  const Result truth = run(at::kDouble, first);
  EXPECT_EQ(truth.function.find("LinearFunction"), std::string::npos);
  const Autocast autocast(GetParam(), at::kBFloat16);
  const Result ours = run(at::kFloat, first);
  EXPECT_NE(ours.function.find("LinearFunction"), std::string::npos) << ours.function;
  EXPECT_EQ(copies->bytes(), 2 * first.numel());
  const PathGuard composed(Path::composed);
  const Result usual = run(at::kFloat, first);
  EXPECT_EQ(usual.function.find("LinearFunction"), std::string::npos);
  for (std::size_t i = 0; i < truth.tensors.size(); ++i) {
    const auto error = [&](const Result& r) {
      return (r.tensors[i].to(at::kDouble) - truth.tensors[i]).abs().max().item<double>();
    };
    EXPECT_EQ(ours.tensors[i].scalar_type(), i < 3 ? at::kFloat : at::kBFloat16) << i;
    EXPECT_LE(error(ours), 2 * error(usual)) << i;
    EXPECT_GT(truth.tensors[i].abs().max().item<double>(), 0) << i;
  }
}

TEST_P(Copies, LinearHasSecondDerivatives) {
  const auto second_derivative = [&](bool copy) {
    const PathGuard guard(copy ? Path::automatic : Path::composed);
    const at::Tensor x = at::arange(3 * kWidth, flat.options()).cos().view({1, 3, kWidth}).requires_grad_();
    const at::Tensor out = lowered_linear(x, first, {});
    EXPECT_EQ(out.grad_fn()->name().find("LinearFunction") != std::string::npos, copy);
    const at::Tensor slope =
        torch::autograd::grad({out.to(at::kFloat).square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({slope.square().sum()}, {first})[0];
  };
  const Autocast autocast(GetParam(), at::kBFloat16);
  const at::Tensor ours = second_derivative(true), usual = second_derivative(false);
  EXPECT_LT((ours - usual).norm().item<double>(), 0.02 * usual.norm().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Devices, Copies, testing::Values(at::kCPU, at::kCUDA));

}  // namespace
}  // namespace pom::ops
