// Modulated norms and gates of training networks, against ATen in fp64: values, gradients of first and second
// order, dtypes, odd shapes, autocast, and bits that no thread changes.
#include "pom/ops/training.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "pom/base/error.h"
#include "pom/ops/mixer.h"

namespace pom::ops {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kEps = 1e-6, kBase = 1.0;

// x, y, gate, scale, shift
struct Inputs {
  std::int64_t B, N, d;
  Tensors make(at::ScalarType stream, at::ScalarType branch) const {
    at::manual_seed(7);
    const at::ScalarType sums = stream == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor rows = at::randn({B, 3 * d + 5}, at::kDouble) * 0.5;
    const auto part = [&](std::int64_t i) { return rows.narrow(1, i * d + i, d).to(sums); };
    return {(at::randn({B, N, d}, at::kDouble) * 2 + 1).to(stream),
            at::randn({B, N, d}, at::kDouble).to(branch), part(0), part(1), part(2)};
  }
};

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  const at::Tensor normal = at::layer_norm(x, {x.size(-1)}, {}, {}, kEps);
  return normal * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1);
}
at::Tensor plain_add(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate) {
  return x + y * (kBase + gate.unsqueeze(1));
}
Tensors plain(const Tensors& in) {
  const at::Tensor sum = plain_add(in[0], in[1], in[2]);
  return {sum, plain_norm(sum, in[3], in[4])};
}
Tensors together(const Tensors& in) {
  const auto [sum, out] = gated_add_norm(in[0], in[1], in[2], kBase, in[3], in[4], kEps);
  return {sum, out};
}
Tensors apart(const Tensors& in) {
  const at::Tensor sum = gated_add(in[0], in[1], in[2], kBase);
  return {sum, modulated_norm(sum, in[3], in[4], kEps)};
}

Tensors leaves(const Tensors& in, bool wide = false) {
  Tensors result;
  for (const at::Tensor& t : in)
    result.push_back(
        (wide ? t.to(at::kDouble) : t).detach().clone(at::MemoryFormat::Contiguous).requires_grad_());
  return result;
}

// The same weights for every dtype, so that gradients can be compared.
at::Tensor some_sum(const Tensors& outs) {
  at::Tensor total = at::zeros({}, at::kDouble);
  for (const at::Tensor& out : outs)
    total =
        total + (out.to(at::kDouble) * at::arange(out.numel(), at::kDouble).sin().view(out.sizes())).sum();
  return total;
}
Tensors gradients(const Tensors& outs, const Tensors& in) {
  Tensors result = torch::autograd::grad({some_sum(outs)}, in, {}, /*retain_graph=*/std::nullopt,
                                         /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < in.size(); ++i)
    if (!result[i].defined()) result[i] = at::zeros_like(in[i]);
  return result;
}

double distance(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).abs() / (1 + expected.abs().max())).max().item<double>();
}
double rounding(at::ScalarType a, at::ScalarType b) {
  if (a == at::kBFloat16 || b == at::kBFloat16) return 3e-2;
  return a == at::kDouble ? 1e-12 : 3e-6;
}

class Training
    : public testing::TestWithParam<std::tuple<Inputs, std::pair<at::ScalarType, at::ScalarType>>> {};

TEST_P(Training, ValuesAndGradients) {
  const auto [shape, types] = GetParam();
  const auto [stream, branch] = types;
  const Tensors made = shape.make(stream, branch), in = leaves(made), wide = leaves(made, true);
  const PathGuard forced(Path::fused);
  const Tensors expected = plain(wide), slopes = gradients(expected, wide);
  const double limit = rounding(stream, branch);
  const Tensors outs = stream == branch ? together(in) : Tensors{gated_add(in[0], in[1], in[2], kBase)};
  EXPECT_EQ(outs[0].scalar_type(), stream);
  for (std::size_t i = 0; i < outs.size(); ++i) EXPECT_LT(distance(outs[i], expected[i]), limit) << i;
  const Tensors found = gradients(apart(in), in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), in[i].scalar_type());
    EXPECT_LT(distance(found[i], slopes[i]), limit) << "input " << i;
  }
}

// One pass or two: the same bits (but for the rounding between the two to bf16), and threads change none.
TEST_P(Training, OnePassAndThreadsChangeNoBit) {
  const auto [shape, types] = GetParam();
  if (types.first != types.second) GTEST_SKIP() << "one pass is for branches in one dtype";
  const Tensors made = shape.make(types.first, types.second), in = leaves(made);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  Tensors first = types.first == at::kBFloat16 ? together(in) : apart(in);
  const Tensors slopes = gradients(first, in);
  first.insert(first.end(), slopes.begin(), slopes.end());
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    Tensors all = together(in);
    const Tensors found = gradients(all, in);
    all.insert(all.end(), found.begin(), found.end());
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(at::equal(all[i], first[i])) << "tensor " << i << ", " << threads << " threads";
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Training,
    testing::Combine(testing::Values(Inputs{2, 3, 8}, Inputs{3, 67, 37}, Inputs{1, 1, 1}, Inputs{2, 64, 5},
                                     Inputs{2, 200, 192}, Inputs{5, 16, 48}),
                     testing::Values(std::pair{at::kFloat, at::kFloat}, std::pair{at::kDouble, at::kDouble},
                                     std::pair{at::kFloat, at::kBFloat16},
                                     std::pair{at::kBFloat16, at::kBFloat16},
                                     std::pair{at::kBFloat16, at::kFloat})));

Tensors second(Tensors (*function)(const Tensors&), const Tensors& in) {
  const Tensors slopes = torch::autograd::grad({some_sum(function(in))}, in, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true);
  Tensors squares;
  for (const at::Tensor& g : slopes) squares.push_back(g * g);
  return gradients(squares, in);
}

TEST(TrainingGradients, OfSecondOrder) {
  const Tensors made = Inputs{2, 5, 6}.make(at::kDouble, at::kDouble);
  const Tensors in = leaves(made), wide = leaves(made);
  const Tensors expected = second(plain, wide);
  for (const auto function : {together, apart}) {
    const Tensors found = second(function, in);
    for (std::size_t i = 0; i < in.size(); ++i) EXPECT_LT(distance(found[i], expected[i]), 1e-11) << i;
  }
}

// Either result alone, and one tensor in two places.
TEST(TrainingGradients, OfPartsAndOfOneTensorTwice) {
  const Tensors made = Inputs{2, 70, 24}.make(at::kDouble, at::kDouble);
  for (const std::size_t one : {0, 1}) {
    const Tensors in = leaves(made), wide = leaves(made);
    const std::size_t inputs = one == 0 ? 3 : 5;
    const Tensors used{in.begin(), in.begin() + inputs}, used_wide{wide.begin(), wide.begin() + inputs};
    const Tensors found = gradients({together(in)[one]}, used);
    const Tensors expected = gradients({plain(wide)[one]}, used_wide);
    for (std::size_t i = 0; i < inputs; ++i) EXPECT_LT(distance(found[i], expected[i]), 1e-11) << i;
  }
  const Tensors in = leaves(made), wide = leaves(made);
  const at::Tensor found = gradients({gated_add(in[0], in[0], in[2], kBase)}, {in[0]})[0];
  EXPECT_LT(distance(found, gradients({plain_add(wide[0], wide[0], wide[2])}, {wide[0]})[0]), 1e-11);
}

TEST(TrainingGradients, NoneWhereNoneIsWanted) {
  const Tensors in = Inputs{2, 5, 6}.make(at::kFloat, at::kFloat);
  for (const at::Tensor& out : together(in)) EXPECT_FALSE(out.requires_grad());
  const Tensors wanted = leaves(in);
  const torch::NoGradGuard guard;
  for (const at::Tensor& out : together(wanted)) EXPECT_FALSE(out.requires_grad());
  EXPECT_FALSE(gated_add(wanted[0], wanted[1], wanted[2], kBase).requires_grad());
  EXPECT_FALSE(modulated_norm(wanted[0], wanted[3], wanted[4], kEps).requires_grad());
}

struct Autocast {
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() { at::autocast::set_autocast_enabled(at::kCPU, false); }
};

// The stream stays as it is, branches are lower; composed and fused agree on both.
TEST(TrainingAutocast, KeepsTheStream) {
  const Tensors made = Inputs{2, 70, 24}.make(at::kFloat, at::kBFloat16);
  const Tensors wide = leaves(made, true), expected = plain(wide), slopes = gradients(expected, wide);
  for (const Path path : {Path::fused, Path::composed}) {
    const PathGuard guard(path);
    const Tensors in = leaves(made);
    Tensors outs;
    {
      const Autocast autocast;
      outs = together(in);
    }
    EXPECT_EQ(outs[0].scalar_type(), at::kFloat);
    EXPECT_EQ(outs[1].scalar_type(), at::kBFloat16);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_LT(distance(outs[i], expected[i]), i ? 1e-2 : 1e-6);
    const Tensors found = gradients(outs, in);
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), in[i].scalar_type());
      EXPECT_LT(distance(found[i], slopes[i]), 3e-2) << i;
    }
  }
}

TEST(TrainingShapes, MayBeStridedOrEmpty) {
  const at::Tensor x = at::randn({2, 8, 5}, at::kDouble).transpose(1, 2);
  const at::Tensor rows = at::randn({2, 16}, at::kDouble);
  const at::Tensor scale = rows.narrow(1, 0, 8), shift = rows.narrow(1, 8, 8);
  const PathGuard forced(Path::fused);
  EXPECT_LT(distance(modulated_norm(x, scale, shift, kEps), plain_norm(x, scale, shift)), 1e-12);
  EXPECT_LT(distance(gated_add(x, x, scale, kBase), plain_add(x, x, scale)), 1e-12);
  for (const Inputs& shape : {Inputs{0, 3, 8}, Inputs{2, 0, 8}}) {
    const Tensors in = leaves(shape.make(at::kFloat, at::kFloat));
    const Tensors found = gradients(together(in), in);
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(found[i].sizes(), in[i].sizes());
      EXPECT_TRUE((found[i] == 0).all().item<bool>());
    }
  }
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

TEST(TrainingErrors, NameTheArgument) {
  const at::Tensor x = at::randn({2, 3, 8}), rows = at::randn({2, 8});
  const auto says = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(message_of([&] { modulated_norm(x[0], rows, rows, kEps); }), "modulated_norm: x: expected 3 dim");
  says(message_of([&] { modulated_norm(x, at::randn({3, 8}), rows, kEps); }), "scale: expected");
  says(message_of([&] { modulated_norm(x, rows, {}, kEps); }), "shift: expected");
  says(message_of([&] { gated_add(x, x.narrow(1, 0, 2), rows, kBase); }), "y: expected shape (2, 3, 8)");
  says(message_of([&] { gated_add(x, x, rows.unsqueeze(1), kBase); }), "gate: expected");
  says(message_of([&] { gated_add(x.to(at::kLong), x, rows, kBase); }), "x: expected float32");
  const PathGuard forced(Path::fused);
  says(message_of([&] { modulated_norm(x.to(at::kHalf), rows, rows, kEps); }), "path: fused was asked for");
}

}  // namespace
}  // namespace pom::ops
