// Scores against numbers that other implementations gave for the same features.
#include "pom/eval/feature_scores.h"

#include "tests/eval/golden_numbers.h"
#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/eval/moments.h"
#include "pom/eval/numpy_random.h"

namespace pom::eval {
namespace {

using golden::vectors_a, golden::vectors_b;

void expect_close(double got, double expected, double relative) {
  EXPECT_NEAR(got, expected, relative * std::abs(expected));
}

TEST(GoldenNumbers, AreThoseOfEveryone) {
  EXPECT_EQ(golden::key_of("fc.bias"), 0x145e200af8fe4b85);
  EXPECT_EQ(golden::bits_of(golden::key_of("fc.bias"), 0), 0x7a475b25a1f155d4);
  const at::Tensor images = golden::bytes("images", {6});
  EXPECT_TRUE(at::equal(images, at::tensor({47, 8, 27, 63, 219, 218}, at::kByte)));
  const at::Tensor first = vectors_a(200, 16)[0];
  EXPECT_NEAR(first[0].item<double>(), 0.00986456, 1e-8);
  EXPECT_NEAR(first[3].item<double>(), 0.14326751, 1e-8);
}

TEST(FrechetOfSamples, IsThatOfOthers) {
  expect_close(frechet_of_samples(vectors_a(200, 16), vectors_b(200, 16)), 0.5472399747, 1e-9);
  expect_close(frechet_of_samples(vectors_a(64, 32), vectors_b(64, 32)), 2.1788745590, 1e-9);
  expect_close(frechet_of_samples(vectors_a(300, 256), vectors_b(300, 256)), 6.6532313844, 1e-9);
}

// Fewer samples than features: the exact value, which square roots of matrices miss in the seventh digit.
TEST(FrechetOfSamples, IsExactOfFewSamples) {
  expect_close(frechet_of_samples(vectors_a(40, 64), vectors_b(40, 64)), 6.6882670739, 1e-10);
  expect_close(frechet_of_samples(vectors_a(100, 256), vectors_b(100, 256)), 12.4150918336, 1e-10);
  EXPECT_NEAR(frechet_of_samples(vectors_a(40, 64), vectors_a(40, 64)), 0, 1e-12);
  const double by_matrices =
      frechet_distance(fit_gaussian(vectors_a(40, 64)), fit_gaussian(vectors_b(40, 64)));
  expect_close(by_matrices, 6.6882670739, 1e-6);
}

TEST(KernelDistance, IsThatOfOthers) {
  const at::Tensor a = vectors_a(200, 16), b = vectors_b(200, 16);
  expect_close(kernel_distance_of_all(a, b), 0.022431779244, 1e-9);
  expect_close(kernel_distance_of_all(a, b, /*cross_diagonal=*/false), 0.022221766568, 1e-9);
  const ScoreSpread all = kernel_distance(a, b, {.subsets = 3, .size = 200});
  expect_close(all.mean, 0.022431779244, 1e-9);  // whatever their order
  EXPECT_NEAR(all.deviation, 0, 1e-12);
}

TEST(Neighbours, AreThoseOfOthers) {
  const at::Tensor a = vectors_a(200, 16), b = vectors_b(200, 16);
  const auto expect = [](const Neighbours& n, double p, double r, double d, double c) {
    EXPECT_NEAR(n.precision, p, 1e-12);
    EXPECT_NEAR(n.recall, r, 1e-12);
    EXPECT_NEAR(n.density, d, 1e-6);
    EXPECT_NEAR(n.coverage, c, 1e-12);
  };
  expect(neighbours(a, b, {.k = 1}), 0.23, 0.845, 0.325, 0.235);
  expect(neighbours(a, b, {.k = 3}), 0.515, 0.96, 0.373333, 0.6);
  expect(neighbours(a, b, {.k = 5}), 0.65, 0.985, 0.356, 0.785);
  expect(neighbours(a.narrow(0, 0, 100), b, {.k = 3}), 0.485, 0.97, 0.353333, 0.82);
  expect(neighbours(a, b, {.k = 5, .strict = true}), 0.65, 0.985, 0.356, 0.785);
}

TEST(Neighbours, OnTheSurface) {
  const at::Tensor real = at::tensor({0., 1., 2., 3.}).unsqueeze(1),
                   made = at::tensor({0.5, 4., 6., 9.}).unsqueeze(1);
  EXPECT_EQ(neighbours(real, made, {.k = 1}).precision, 0.5);
  EXPECT_EQ(neighbours(real, made, {.k = 1, .strict = true}).precision, 0.25);
  EXPECT_EQ(neighbours(real, made, {.k = 1}).recall, 1);
}

TEST(InceptionScore, IsThatOfOthers) {
  const at::Tensor logits = golden::symmetric("logits", {1000, 10}) * 4;
  const ScoreSpread ten = inception_score(logits, {.splits = 10});
  expect_close(ten.mean, 2.634642558, 1e-9);
  expect_close(ten.deviation, 0.075375627, 1e-7);
  expect_close(inception_score(logits, {.splits = 1}).mean, 2.656816391, 1e-9);
  const at::Tensor order = std::get<1>(logits.argmax(1).sort(/*stable=*/true, 0, false));
  expect_close(inception_score(logits.index_select(0, order), {.splits = 10}).mean, 1.680900023, 1e-9);
  expect_close(inception_score(logits, {.splits = 0, .run = 100}).mean, 2.634642558, 1e-9);
  EXPECT_NE(inception_score(logits, {.splits = 10, .shuffled = 2020}).mean, ten.mean);
}

// numpy.random.RandomState(2020).permutation(10), and what follows it.
TEST(NumpyRandom, DrawsWhatNumpyDraws) {
  NumpyRandom random(2020);
  EXPECT_EQ(random.permutation(10), (std::vector<std::int64_t>{2, 4, 9, 1, 5, 7, 6, 3, 8, 0}));
  EXPECT_EQ(random.choice(10, 3), (std::vector<std::int64_t>{5, 7, 6}));
  EXPECT_THROW(random.choice(3, 4), Error);
}

TEST(Moments, HaveTheBitsOfAnyOrder) {
  const at::Tensor x = vectors_a(700, 16);
  Moments forward, backward;
  forward.add(0, x);
  backward.add(512, x.narrow(0, 512, 188));
  backward.add(256, x.narrow(0, 256, 256));
  backward.add(0, x.narrow(0, 0, 256));
  EXPECT_EQ(forward.count(), 700);
  const Gaussian a = forward.gaussian(), b = backward.gaussian(), plain = fit_gaussian(x);
  EXPECT_TRUE(at::equal(a.mean, b.mean) && at::equal(a.covariance, b.covariance));
  EXPECT_TRUE(at::allclose(a.covariance, plain.covariance, 1e-12, 1e-14));
  EXPECT_NEAR(frechet_distance(a, plain), 0, 1e-12);
}

TEST(Moments, MissNothing) {
  Moments moments;
  moments.add(256, vectors_a(256, 4));
  EXPECT_THROW(moments.gaussian(), Error);  // nothing of the first block
  EXPECT_THROW(moments.add(256, vectors_a(256, 4)), Error);
  EXPECT_THROW(moments.add(10, vectors_a(256, 4)), Error);
  Moments uneven;
  uneven.add(0, vectors_a(100, 4));
  EXPECT_THROW(uneven.add(256, vectors_a(256, 4)), Error);
}

TEST(FeatureScores, SayWhatIsWrong) {
  const at::Tensor a = vectors_a(20, 4), b = vectors_b(20, 4);
  EXPECT_THROW(kernel_distance(a, b, {.size = 21}), Error);
  EXPECT_THROW(frechet_of_samples(a, vectors_b(20, 5)), Error);
  EXPECT_THROW(neighbours(a.narrow(0, 0, 3), b, {.k = 3}), Error);
  EXPECT_THROW(inception_score(at::full({3, 2}, NAN), {.splits = 1}), Error);
}

}  // namespace
}  // namespace pom::eval
