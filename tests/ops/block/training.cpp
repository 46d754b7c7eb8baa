// Modulated norms and gates of training networks, against ATen in fp64: values, gradients of first and second
// order, dtypes, odd shapes, autocast, and bits that no thread changes.
#include "pom/ops/block/training.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "pom/base/error.h"
#include "pom/ops/block/training_branch.h"
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
  const bool mixed = types.first != types.second;  // one pass is for branches that autocast lowers or none
  const Tensors made = shape.make(types.first, types.second), in = leaves(made);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  Tensors first = types.first == at::kBFloat16 && !mixed ? together(in) : apart(in);
  const Tensors slopes = gradients(first, in);
  first.insert(first.end(), slopes.begin(), slopes.end());
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    Tensors all = mixed ? apart(in) : together(in);
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
  const at::NoGradGuard guard;
  for (const at::Tensor& out : together(wanted)) EXPECT_FALSE(out.requires_grad());
  EXPECT_FALSE(gated_add(wanted[0], wanted[1], wanted[2], kBase).requires_grad());
  EXPECT_FALSE(modulated_norm(wanted[0], wanted[3], wanted[4], kEps).requires_grad());
}

// x, up, up_bias, down, down_bias
struct FeedForwardCase {
  std::int64_t B, N, in, hidden, out;
  Tensors make(at::ScalarType dtype) const {
    at::manual_seed(5);
    const auto scaled = [&](at::IntArrayRef shape, double size) {
      return (at::randn(shape, at::kDouble) * size).to(dtype);
    };
    return {scaled({B, N, in}, 1), scaled({hidden, in}, 1 / std::sqrt(static_cast<double>(in))),
            scaled({hidden}, 0.3), scaled({out, hidden}, 1 / std::sqrt(static_cast<double>(hidden))),
            scaled({out}, 0.3)};
  }
};
at::Tensor plain_feed_forward(const Tensors& in) {
  return at::linear(at::gelu(at::linear(in[0], in[1], in[2])), in[3], in[4]);
}
Tensors fused_feed_forward(const Tensors& in) {
  return {feed_forward(in[0], in[1], in[2], in[3], in[4])};
}

class FeedForwards : public testing::TestWithParam<std::tuple<FeedForwardCase, at::ScalarType>> {};

// Within twice the error of the same in ATen and the same dtype; threads change no bit.
TEST_P(FeedForwards, ValuesGradientsAndThreads) {
  const auto [shape, dtype] = GetParam();
  const PathGuard forced(Path::fused);
  const Tensors made = shape.make(dtype), wide = leaves(made, true), in = leaves(made);
  const Tensors expected{plain_feed_forward(wide)}, slopes = gradients(expected, wide);
  const Tensors same = leaves(made), usual{plain_feed_forward(same)}, usual_slopes = gradients(usual, same);
  const double least = dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-6 : 1e-3;
  const Tensors outs = fused_feed_forward(in), found = gradients(outs, in);
  EXPECT_EQ(outs[0].scalar_type(), dtype);
  EXPECT_LT(distance(outs[0], expected[0]), 2 * distance(usual[0], expected[0]) + least);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), dtype);
    EXPECT_LT(distance(found[i], slopes[i]), 2 * distance(usual_slopes[i], slopes[i]) + least)
        << "input " << i;
  }
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const Tensors again = gradients(fused_feed_forward(in), in);
    for (std::size_t i = 0; i < in.size(); ++i)
      EXPECT_TRUE(at::equal(again[i], found[i])) << "input " << i << ", " << threads << " threads";
  }
  at::set_num_threads(before);
  const at::NoGradGuard none;
  EXPECT_TRUE(at::equal(fused_feed_forward(in)[0], outs[0]));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, FeedForwards,
    testing::Combine(testing::Values(FeedForwardCase{2, 3, 8, 20, 8}, FeedForwardCase{3, 67, 37, 100, 5},
                                     FeedForwardCase{1, 1, 1, 1, 1}, FeedForwardCase{2, 300, 48, 210, 48},
                                     FeedForwardCase{5, 257, 64, 192, 96}),
                     testing::Values(at::kFloat, at::kDouble, at::kBFloat16)));

TEST(FeedForwardGradients, OfSecondOrderOfSomeAndOfNone) {
  const Tensors made = FeedForwardCase{2, 5, 6, 9, 4}.make(at::kDouble), in = leaves(made),
                wide = leaves(made);
  const Tensors expected = second([](const Tensors& t) { return Tensors{plain_feed_forward(t)}; }, wide);
  const Tensors found = second(fused_feed_forward, in);
  for (std::size_t i = 0; i < in.size(); ++i) EXPECT_LT(distance(found[i], expected[i]), 1e-11) << i;
  Tensors frozen = made;
  frozen[1] = made[1].clone().requires_grad_();
  const Tensors one = gradients(fused_feed_forward(frozen), {frozen[1]});
  EXPECT_LT(distance(one[0], gradients({plain_feed_forward(wide)}, {wide[1]})[0]), 1e-11);
  const Tensors empty = leaves(FeedForwardCase{2, 0, 6, 9, 4}.make(at::kFloat));
  for (const at::Tensor& g : gradients(fused_feed_forward(empty), empty))
    EXPECT_TRUE((g == 0).all().item<bool>());
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

TEST(TrainingAutocast, LowersFeedForwards) {
  const Tensors made = FeedForwardCase{2, 70, 24, 48, 24}.make(at::kFloat), wide = leaves(made, true);
  const at::Tensor expected = plain_feed_forward(wide);
  const Tensors slopes = gradients({expected}, wide);
  for (const Path path : {Path::fused, Path::composed}) {
    const PathGuard guard(path);
    const Tensors in = leaves(made);
    Tensors outs;
    {
      const Autocast autocast;
      outs = fused_feed_forward(in);
      at::autocast::clear_cache();
    }
    EXPECT_EQ(outs[0].scalar_type(), at::kBFloat16);
    EXPECT_LT(distance(outs[0], expected), 2e-2);
    const Tensors found = gradients(outs, in);
    for (std::size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), at::kFloat);
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

// ---- branches ----

// A stream that waits with its sum gives the bits of one that does not: values and gradients. A bias that
// waits with it is added first.
TEST(Branches, AreTheirOperationsOneAfterAnother) {
  constexpr std::int64_t d = 24, hidden = 48, order = 2;
  Tensors made = Inputs{3, 21, d}.make(at::kFloat, at::kFloat);
  const auto drawn = [](at::IntArrayRef shape) { return at::randn(shape) / 5; };
  for (const at::Tensor& t : {drawn({hidden, d}), drawn({hidden}), drawn({hidden, d}), drawn({hidden}),
                              drawn({d, hidden}), drawn({d})})
    made.push_back(t);
  const auto weights = [](const Tensors& in) {
    return LayerWeights{in[5], in[6], in[7], in[8], in[9], in[10]};
  };
  const auto slopes = [](const Tensors& in, const at::Tensor& x, const at::Tensor& y) {
    Tensors all{x, y};
    const Tensors found = gradients(all, in);
    all.insert(all.end(), found.begin(), found.end());
    return all;
  };
  const Tensors a = leaves(made), b = leaves(made);
  const ResidualStream waiting{a[0], a[1], {}, a[2], kBase};
  const ResidualStream mixed = mixer_branch(waiting, {a[3], a[4], kEps}, weights(a), order);
  const ResidualStream fed = feed_forward_branch({mixed.x, mixed.y, mixed.bias, a[2], kBase},
                                                 {a[3], a[4], kEps}, a[5], a[6], a[9], a[10]);
  const at::Tensor ours = taken({fed.x, fed.y, fed.bias, a[2], kBase});

  const auto [sum, normal] = gated_add_norm(b[0], b[1], b[2], kBase, b[3], b[4], kEps);
  const at::Tensor y = mixer_layer(normal, normal, weights(b), order);
  const auto [next, again] = gated_add_norm(sum, y, b[2], kBase, b[3], b[4], kEps);
  const at::Tensor theirs = gated_add(next, feed_forward(again, b[5], b[6], b[9], b[10]), b[2], kBase);
  const Tensors one = slopes(a, fed.x, ours), two = slopes(b, next, theirs);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << i;

  const at::Tensor bias = drawn({d});
  EXPECT_TRUE(at::equal(taken({a[0], a[1], bias, a[2], kBase}), gated_add(a[0], a[1] + bias, a[2], kBase)));
  EXPECT_TRUE(at::equal(taken({.x = a[0]}), a[0]));
}

// Other tokens, of which some count, for each sequence or for each of its parts; and blocks.
TEST(Branches, ReadWhatTheyAreTold) {
  constexpr std::int64_t B = 2, N = 12, d = 24, features = 48, order = 2, texts = 6, words = 5;
  const auto drawn = [](at::IntArrayRef shape) { return at::randn(shape) / 5; };
  const at::Tensor x = at::randn({B, N, d}), scale = drawn({B, d}), shift = drawn({B, d}),
                   told = at::randn({texts, words, d});
  const LayerWeights w{drawn({features, d}), drawn({features}),    drawn({features, d}),
                       drawn({features}),    drawn({d, features}), drawn({d})};
  const at::Tensor keys = at::arange(words).le(at::arange(texts).unsqueeze(1).remainder(words));
  const at::Tensor normal = modulated_norm(x, scale, shift, kEps);
  const ResidualStream heard =
      mixer_branch({.x = x}, {scale, shift, kEps}, w, order, {told, Mask::keys(keys)});
  for (std::int64_t t = 0; t < texts; ++t) {
    const std::int64_t part = N / (texts / B), clip = t / (texts / B), begin = t % (texts / B) * part;
    const at::Tensor alone = mixer_layer(normal.narrow(0, clip, 1).narrow(1, begin, part),
                                         told.narrow(0, t, 1).narrow(1, 0, t % words + 1), w, order);
    EXPECT_TRUE(at::allclose(heard.y.narrow(0, clip, 1).narrow(1, begin, part), alone, 1e-5, 1e-6)) << t;
  }
  const Mask blocks = Mask::block_causal(4, 2);
  const ResidualStream seen = mixer_branch({.x = x}, {scale, shift, kEps}, w, order, {.mask = blocks});
  EXPECT_TRUE(at::equal(seen.y, mixer_layer(normal, normal, w, order, blocks)));
  const auto says = [&](const at::Tensor& stream, const MixerContext& context, const char* part) {
    const std::string text = message_of([&] {
      mixer_branch({.x = stream}, {scale, shift, kEps}, w, order, context);
    });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  says(x, {told.narrow(0, 0, 5), {}}, "mixer_branch: context: expected one");
  says(x.narrow(0, 0, 0), {told, {}}, "of 0 sequences");
  says(x, {told.narrow(1, 0, 0), {}}, "context: expected at least one token");
  says(x, {told, Mask::keys(keys.narrow(0, 0, 1))}, "mask: expected");
  says(x, {told, Mask::keys(keys.narrow(1, 0, 1))}, "mask: expected");
  says(x, {told, blocks}, "mask: expected one of keys beside a context");
  says(x, {{}, {{}, 0, 3}}, "window: expected only with a causal mask");
  says(x[0], {told, {}}, "x: expected 3 dim");
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
  const at::Tensor up = at::randn({16, 8}), b = at::randn({16});
  says(message_of([&] { feed_forward(x, up, b, up, b); }), "feed_forward: down: expected a weight (out, 16)");
  says(message_of([&] { feed_forward(x, up, rows, up.t(), rows); }), "up_bias: expected (16)");
  says(message_of([&] { feed_forward(x, up.to(at::kDouble), b, up.t(), rows[0]); }), "up: expected Float");
  const PathGuard forced(Path::fused);
  says(message_of([&] { modulated_norm(x.to(at::kHalf), rows, rows, kEps); }), "path: fused was asked for");
}

}  // namespace
}  // namespace pom::ops
