// Muon's step of all matrices at once against muon_step() of each: composed on the CPU, with kernels on a
// GPU.
#include "pom/train/muon_batches.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/ops/cuda/device.h"

namespace pom::train {
namespace {

struct Shape {
  std::int64_t rows, columns;
};
// Several of one shape, standing and lying, of several tiles, odd ones, a square, a row.
const std::vector<Shape> shapes{{128, 72}, {40, 24},  {72, 128}, {24, 40},
                                {7, 33},   {128, 72}, {64, 64},  {1, 9}};
const MuonNumbers numbers{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .ema_weight = 0.25};

// Everything in places of its own: parameters with gaps, gradients and own parts in other orders.
struct Flat {
  explicit Flat(const at::TensorOptions& options) {
    std::int64_t p = 16, own = 0, g = 100'000;
    for (const Shape& s : shapes) {
      const std::int64_t count = s.rows * s.columns;
      g -= (count + 15) / 16 * 16;
      places.push_back({p, g, own, s.rows, s.columns});
      p += (count + 1023) / 1024 * 1024 + 16, own += (count + 15) / 16 * 16;
    }
    at::manual_seed(9);
    const auto made = [&](double scale) { return (at::randn({100'000}, at::kDouble) * scale).to(options); };
    values = made(1), gradients = made(0.01), moment = made(0.02), average = made(1);
    scale = at::full({}, 0.5, options);
  }
  std::vector<MuonPlace> places;
  at::Tensor values, gradients, moment, average, scale;
};

at::Tensor part(const at::Tensor& flat, std::int64_t begin, const MuonPlace& place) {
  return flat.narrow(0, begin, place.rows * place.columns).view({1, place.rows, place.columns});
}
void one_after_another(Flat& f) {
  for (const MuonPlace& each : f.places)
    muon_step(numbers, f.scale, part(f.values, each.p, each), part(f.gradients, each.g, each),
              part(f.moment, each.own, each), part(f.average, each.own, each));
}
double apart(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kCPU, at::kDouble) - b.to(at::kCPU, at::kDouble)).abs().max().item<double>();
}

TEST(MuonBatches, AreTheStepOfEachMatrix) {
  Flat usual(at::kDouble), ours(at::kDouble);
  one_after_another(usual);
  const MuonBatches batches(ours.places, /*one_by_one=*/false, at::kCPU, at::kDouble);
  batches.step(numbers, ours.scale, ours.values, ours.gradients, ours.moment, ours.average);
  EXPECT_LT(apart(ours.values, usual.values), 1e-9);
  EXPECT_LT(apart(ours.average, usual.average), 1e-9);
  EXPECT_TRUE(at::equal(ours.moment, usual.moment));
  EXPECT_TRUE(at::equal(ours.gradients, usual.gradients));
  EXPECT_GT(apart(ours.values, Flat(at::kDouble).values), 0.05) << "something happened";
}

TEST(MuonBatches, ShapesShareTheirGemms) {
  const std::vector<MuonPlace> places = Flat(at::kDouble).places;
  const MuonBatches together(places, false, at::kCPU, at::kDouble),
      alone(places, true, at::kCPU, at::kDouble);
  EXPECT_EQ(together.gemms(), 3u * 5 * 5) << "of five shapes, whichever way they stand";
  EXPECT_EQ(alone.gemms(), 3u * 5 * shapes.size());
}

TEST(MuonBatches, WithoutAnAverageItStays) {
  Flat f(at::kDouble), before(at::kDouble);
  MuonNumbers still = numbers;
  still.ema_weight = 0;
  MuonBatches(f.places, false, at::kCPU, at::kDouble)
      .step(still, f.scale, f.values, f.gradients, f.moment, {});
  EXPECT_TRUE(at::equal(f.average, before.average));
  EXPECT_FALSE(at::equal(f.values, before.values));
}

class Devices : public testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !at::hasCUDA()) GTEST_SKIP() << "no GPU here";
    options = at::TensorOptions(GetParam()).dtype(at::kFloat);
  }
  at::TensorOptions options;
};

// Ranks divide the matrices: what one has must not depend on which others it has.
TEST_P(Devices, OneByOneTheOthersDoNotMatter) {
  Flat all(options), some(options);
  MuonBatches(all.places, true, options.device(), at::kFloat)
      .step(numbers, all.scale, all.values, all.gradients, all.moment, all.average);
  const std::vector<MuonPlace> half{some.places[5], some.places[1], some.places[4]};
  MuonBatches(half, true, options.device(), at::kFloat)
      .step(numbers, some.scale, some.values, some.gradients, some.moment, some.average);
  for (const MuonPlace& each : half) {
    EXPECT_TRUE(at::equal(part(all.values, each.p, each), part(some.values, each.p, each)));
    EXPECT_TRUE(at::equal(part(all.moment, each.own, each), part(some.moment, each.own, each)));
    EXPECT_TRUE(at::equal(part(all.average, each.own, each), part(some.average, each.own, each)));
  }
}

// On a GPU the products are of bf16, which the iteration forgives: an update is as near to the exact one as
// that of muon_step() is.
TEST_P(Devices, AreAsExactAsOneAfterAnother) {
  Flat truth(at::kDouble), usual(options), ours(options), again(options);
  one_after_another(truth), one_after_another(usual);
  for (Flat* f : {&ours, &again}) {
    const MuonBatches batches(f->places, false, options.device(), at::kFloat);
    EXPECT_EQ(batches.kernels(), options.device().is_cuda() && ops::cuda::has_kernels());
    batches.step(numbers, f->scale, f->values, f->gradients, f->moment, f->average);
  }
  EXPECT_TRUE(at::equal(ours.values, again.values));
  for (const MuonPlace& each : ours.places) {
    const auto error = [&](const Flat& f) {
      return apart(part(f.values, each.p, each), part(truth.values, each.p, each));
    };
    EXPECT_LE(error(ours), 3 * error(usual) + 1e-6) << each.rows << " x " << each.columns;
  }
  EXPECT_LT(apart(ours.moment, truth.moment), 1e-7);
  // Between the matrices nothing is touched.
  EXPECT_TRUE(at::equal(ours.values.narrow(0, 0, 16), usual.values.narrow(0, 0, 16)));
  EXPECT_TRUE(at::equal(ours.values.narrow(0, 90'000, 10'000), usual.values.narrow(0, 90'000, 10'000)));
}

INSTANTIATE_TEST_SUITE_P(On, Devices, testing::Values(at::kCPU, at::kCUDA));

TEST(MuonBatchesOnAGpu, WriteTheCopies) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  Flat f(at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  std::vector<ops::cuda::CopiedMatrix> copies;
  for (const std::size_t i : {0, 2, 4}) {
    const MuonPlace& place = f.places[i];
    const auto made = [&](std::int64_t rows, std::int64_t columns) {
      return at::zeros({rows, columns}, f.values.options().dtype(at::kBFloat16));
    };
    copies.push_back({place.p,
                      place.rows,
                      place.columns,
                      made(place.rows, place.columns),
                      made(place.columns, place.rows),
                      {},
                      0});
  }
  const MuonBatches batches(f.places, false, at::kCUDA, at::kFloat, copies);
  EXPECT_TRUE(batches.writes_all());
  batches.step(numbers, f.scale, f.values, f.gradients, f.moment, f.average);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const MuonPlace& place = f.places[2 * i];
    const at::Tensor lowered = part(f.values, place.p, place)[0].to(at::kBFloat16);
    EXPECT_TRUE(at::equal(copies[i].plain, lowered));
    EXPECT_TRUE(at::equal(copies[i].transposed, lowered.t()));
  }
}

}  // namespace
}  // namespace pom::train
