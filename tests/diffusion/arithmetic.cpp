// Weighted sums of pictures: values, clamping, in place, and bits that depend on nothing but the element.
#include "pom/diffusion/arithmetic.h"

#include <cmath>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"
#include "pom/diffusion/noise.h"

namespace {

using namespace pom;
using namespace pom::diffusion;

at::Tensor normals(std::int64_t count, std::uint64_t seed, at::ScalarType type = at::kFloat) {
  at::Tensor x = at::empty({1, count}, at::TensorOptions().dtype(type));
  fill_latents(x, std::vector<std::uint64_t>{seed});
  return x[0];
}

TEST(Combine, AddsInOrderInFp64AndRoundsOnce) {
  const at::Tensor a = normals(1001, 1), b = normals(1001, 2), c = normals(1001, 3), d = normals(1001, 4);
  const at::Tensor out = at::empty_like(a);
  combine(out, {{0.3, a}, {-1.7, b}, {1e-3, c}, {900, d}});
  for (std::int64_t i = 0; i < 1001; ++i) {
    double sum = 0.3 * a[i].item<float>();
    sum += -1.7 * b[i].item<float>();
    sum += 1e-3 * c[i].item<float>();
    sum += 900 * static_cast<double>(d[i].item<float>());
    ASSERT_EQ(out[i].item<float>(), static_cast<float>(sum)) << i;
  }
}

TEST(Combine, TakesOneToFourTermsInBothPrecisions) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf}) {
    const at::Tensor a = normals(37, 1, type), b = normals(37, 2, type), out = at::empty_like(a);
    combine(out, {{1, a}});
    EXPECT_TRUE(at::equal(out, a));
    combine(out, {{2, a}, {-1, a}});
    EXPECT_TRUE(at::equal(out, a));
    combine(out, {{1, a}, {0.5, b}, {0.5, b}});
    EXPECT_TRUE(at::allclose(out, a + b, 2e-3, 1e-3));
    EXPECT_THROW(combine(out, {}), Error);
    EXPECT_THROW(combine(out, {{1, a}, {1, a}, {1, a}, {1, a}, {1, a}}), Error);
  }
}

TEST(Combine, WorksInPlaceAndOnViews) {
  const at::Tensor a = normals(50, 1), b = normals(50, 2), expected = at::empty_like(a);
  combine(expected, {{0.25, a}, {3, b}});
  const at::Tensor first = a.clone(), second = b.clone();
  combine(first, {{0.25, first}, {3, b}});
  combine(second, {{0.25, a}, {3, second}});
  EXPECT_TRUE(at::equal(first, expected));
  EXPECT_TRUE(at::equal(second, expected));
  const at::Tensor wide = at::empty({50, 2}, at::kFloat);
  combine(wide.select(1, 1), {{0.25, a}, {3, b}});
  EXPECT_TRUE(at::allclose(wide.select(1, 1), expected));
}

TEST(Combine, ClampsAndKeepsNaN) {
  const at::Tensor a = at::empty({4}, at::kFloat);
  const float values[] = {-3, 0.5, 7, NAN};
  std::copy(values, values + 4, a.data_ptr<float>());
  combine(a, {{1, a}}, 1.5);
  EXPECT_EQ(a[0].item<float>(), -1.5f);
  EXPECT_EQ(a[1].item<float>(), 0.5f);
  EXPECT_EQ(a[2].item<float>(), 1.5f);
  EXPECT_TRUE(std::isnan(a[3].item<float>()));
}

// Every offset against a loop's vectors, and more elements than one thread takes.
TEST(Combine, GivesAnElementTheSameBitsEverywhere) {
  const int threads = at::get_num_threads();
  const std::int64_t count = 100'003;
  const at::Tensor a = normals(count, 1), b = normals(count, 2), whole = at::empty_like(a);
  at::set_num_threads(2);
  combine(whole, {{1.0 / 3, a}, {-2.0 / 7, b}});
  at::set_num_threads(1);
  for (const std::int64_t first : {1, 2, 3, 5, 7, 1000, 99'990}) {
    const at::Tensor part = at::empty({count - first}, at::kFloat);
    combine(part, {{1.0 / 3, a.slice(0, first)}, {-2.0 / 7, b.slice(0, first)}});
    EXPECT_TRUE(at::equal(part, whole.slice(0, first))) << first;
  }
  at::set_num_threads(threads);
}

TEST(Combine, RefusesOtherShapesAndTypes) {
  const at::Tensor a = normals(4, 1), out = at::empty_like(a);
  EXPECT_THROW(combine(out, {{1, normals(5, 1)}}), Error);
  EXPECT_THROW(combine(out, {{1, normals(4, 1, at::kDouble)}}), Error);
}

}  // namespace
