// One update by hand, in fp64, and the CPU's pass against plain operations.
#include "pom/train/optimizer.h"

#include <cmath>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/models/dipom.h"
#include "pom/train/adamw_cpu.h"
#include "pom/train/muon.h"

namespace pom::train {
namespace {

const AdamWNumbers numbers{.lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .eps = 1e-8,
                           .weight_decay = 0.5,
                           .correction1 = 1 - 0.9,
                           .correction2 = 1 - 0.99,
                           .clip_scale = 0.25,
                           .ema_weight = 0.2};

TEST(AdamW, OneUpdateByHand) {
  double p[2] = {1, 1}, g[2] = {4, 4}, m[2] = {0, 0}, v[2] = {0, 0}, ema[2] = {3, 3};
  adamw_range<double>(numbers, 0, 2, 1, p, g, m, v, ema);
  // The gradient is 4·0.25 = 1, its first moment 0.1, its second 0.01: the corrected step is lr·1/(1 + eps).
  const double step = 0.1 / (1 + 1e-8);
  EXPECT_NEAR(p[0], 1 - 0.1 * 0.5 - step, 1e-15) << "decayed";
  EXPECT_NEAR(p[1], 1 - step, 1e-15) << "not decayed";
  EXPECT_NEAR(m[0], 0.1, 1e-15);
  EXPECT_NEAR(v[0], 0.01, 1e-15);
  EXPECT_NEAR(ema[1], 3 + 0.2 * (p[1] - 3), 1e-15);
}

TEST(AdamW, AnyRangesGiveTheSameBits) {
  constexpr std::int64_t n = 1000;
  const at::Tensor start = at::linspace(-1, 1, n), g = at::linspace(2, -3, n);
  const auto run = [&](const std::vector<std::int64_t>& cuts) {
    at::Tensor p = start.clone(), m = start * 0.1, v = start.abs(), ema = start.clone();
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      adamw_range<float>(numbers, cuts[i], cuts[i + 1], 300, p.data_ptr<float>(), g.const_data_ptr<float>(),
                         m.data_ptr<float>(), v.data_ptr<float>(), ema.data_ptr<float>());
    return at::cat({p, m, v, ema});
  };
  EXPECT_TRUE(at::equal(run({0, n}), run({0, 1, 7, 299, 301, 640, n})));
}

TEST(AdamW, WithoutAnAverageItStays) {
  AdamWNumbers still = numbers;
  still.ema_weight = 0;
  float p = 1, g = 1, m = 0, v = 0, ema = 5;
  adamw_range<float>(still, 0, 1, 0, &p, &g, &m, &v, &ema);
  EXPECT_EQ(ema, 5);
}

TEST(Muon, BringsSingularValuesNearOne) {
  at::manual_seed(3);
  for (const auto& [rows, columns] : {std::pair{24, 24}, {40, 12}, {7, 33}}) {
    const at::Tensor random = at::randn({3, rows, columns}, at::kDouble);
    const auto [u, s, v] = at::linalg_svd(random, /*full_matrices=*/false);
    const at::Tensor values = at::linspace(0.1, 1, s.size(1), at::kDouble);
    at::Tensor matrices = (u * values).matmul(v);
    matrices[1].mul_(1e-4);  // their size does not matter
    const at::Tensor made = std::get<1>(at::linalg_svd(orthogonal(matrices, at::kDouble)));
    EXPECT_GT(made.min().item<double>(), 0.65) << rows << " x " << columns;
    EXPECT_LT(made.max().item<double>(), 1.25) << rows << " x " << columns;
  }
}

TEST(Muon, KeepsTheDirectionsOfAMatrix) {
  at::manual_seed(4);
  const at::Tensor matrix = at::randn({1, 20, 8}, at::kDouble), made = orthogonal(matrix, at::kDouble);
  const auto [u, s, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
  const at::Tensor core = u.transpose(1, 2).matmul(made).matmul(v.transpose(1, 2)).squeeze(0);
  EXPECT_LT((core - core.diagonal().diag_embed()).abs().max().item<double>(), 1e-10);
}

// A step that is repeated (on a GPU as a graph) against the first step of an optimizer that goes on from the
// same state: rates change, every second step averages, and in the middle the gradients move.
class RepeatedSteps : public testing::TestWithParam<c10::DeviceType> {};

TEST_P(RepeatedSteps, AreTheSameBits) {
  const at::Device device(GetParam());
  if (device.is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  models::NetworkConfig network;
  network.dim = 32, network.depth = 3, network.classes = 4;
  OptimizerConfig config;
  config.kind = "muon", config.weight_decay = 0.1;
  models::DiPoM one(network, 1), other(network, 1);
  one->to(device), other->to(device);
  Parameters mine(one), theirs(other);
  const Shares my_shares(mine, {}, false, true), their_shares(theirs, {}, false, true);
  Optimizer lasting(mine, config, my_shares);
  at::Tensor moment1 = lasting.moment1.clone(), moment2 = lasting.moment2.clone(), ema = lasting.ema.clone();
  at::Tensor gradients = at::empty_like(mine.values());
  at::manual_seed(5);
  const c10::NoGradGuard no_grad;
  for (std::int64_t step = 1; step <= 8; ++step) {
    if (step == 5) gradients = at::empty_like(gradients);
    gradients.copy_(at::randn({gradients.numel()}));
    const at::Tensor norm = at::linalg_vector_norm(gradients);
    const double rate = 0.01 * static_cast<double>(step);
    lasting.step(gradients, norm, rate, step, step % 2 == 0, 0.9);
    Optimizer fresh(theirs, config, their_shares);
    fresh.moment1.copy_(moment1), fresh.moment2.copy_(moment2), fresh.ema.copy_(ema);
    fresh.step(gradients, norm, rate, step, step % 2 == 0, 0.9);
    moment1 = fresh.moment1, moment2 = fresh.moment2, ema = fresh.ema;
    EXPECT_TRUE(at::equal(mine.values(), theirs.values())) << step;
    EXPECT_TRUE(at::equal(lasting.moment1, moment1)) << step;
    EXPECT_TRUE(at::equal(lasting.ema, ema)) << step;
  }
  EXPECT_FALSE(at::equal(mine.values(), lasting.ema));
}

INSTANTIATE_TEST_SUITE_P(Devices, RepeatedSteps, testing::Values(at::kCPU, at::kCUDA));

TEST(Muon, ZerosStay) {
  const at::Tensor made = orthogonal(at::zeros({2, 5, 3}), at::kFloat);
  EXPECT_TRUE(at::equal(made, at::zeros({2, 5, 3})));
}

}  // namespace
}  // namespace pom::train
