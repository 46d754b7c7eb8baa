// Every seed here is fixed, so a test that passes once passes always; the bounds on statistics are five
// standard errors (or a probability of 0.001) all the same, so that they mean something when the generator
// changes.
#include "pom/base/noise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numbers>
#include <random>
#include <unordered_set>
#include <vector>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "pom/base/error.h"
#include "pom/base/noise_math.h"

namespace pom {
namespace {

using noise_math::Words;

std::vector<float> normals(int64_t count, const NoiseKey& key, int64_t first = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  fill_normal(values.data(), count, key, first);
  return values;
}

std::vector<float> uniforms(int64_t count, const NoiseKey& key, int64_t first = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  fill_uniform(values.data(), count, key, first);
  return values;
}

std::vector<uint32_t> words_of(const std::vector<float>& values) {  // bits, so that equal means equal
  std::vector<uint32_t> words(values.size());
  std::transform(values.begin(), values.end(), words.begin(),
                 [](float x) { return std::bit_cast<uint32_t>(x); });
  return words;
}

uint64_t fingerprint(const std::vector<float>& values) {  // FNV-1a over the words
  uint64_t hash = 0xCBF29CE484222325u;
  for (float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3u;
  return hash;
}

double units_in_last_place(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, exponent - 24);
}

// ---- known answers

TEST(Philox, AnswersAsRandom123Does) {  // the three philox4x32 10 lines of its kat_vectors
  const auto expect = [](Words counter, noise_math::PhiloxKey key, Words answer) {
    const Words got = noise_math::philox(counter, key);
    EXPECT_EQ(got.a, answer.a);
    EXPECT_EQ(got.b, answer.b);
    EXPECT_EQ(got.c, answer.c);
    EXPECT_EQ(got.d, answer.d);
  };
  expect({0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Noise, AddressGoesIntoPhiloxAsDocumented) {
  const NoiseKey key{0x299f31d0a4093822, 0x03707344, 0x13198a2e};
  const uint64_t block = 0x05a308d3243f6a88;  // fits the 61 bits of position / 4
  const Words bits =
      noise_math::philox({0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  const int64_t position = static_cast<int64_t>(4 * block);
  EXPECT_EQ(bits_at(key, position), bits.a);
  EXPECT_EQ(bits_at(key, position + 1), bits.b);
  EXPECT_EQ(bits_at(key, position + 2), bits.c);
  EXPECT_EQ(bits_at(key, position + 3), bits.d);
  const Words uniform =
      noise_math::philox({0x243f6a88, 0x45a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  EXPECT_EQ(uniform_at(key, position + 2), ((uniform.c >> 9) * 2.0 + 1) / 16777216);
  const Words normal =
      noise_math::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  EXPECT_EQ(normal_at(key, position + 3), noise_math::normals_from(normal.c, normal.d).b);
}

// The values every build on every machine must give: a change here changes every picture ever made.
TEST(Noise, GoldenValues) {
  const NoiseKey keys[] = {{0, 0, 0}, {42, noise_for::sampler, 7}, {~uint64_t{0}, ~0u, ~0u}};
  const int64_t positions[] = {0, 1, 2, 3, 1000003, (int64_t{1} << 34) + 1};
  const uint32_t golden[3][6] = {{0x3f5e3963, 0xbec84f36, 0xbf0beaf0, 0x3f62a85c, 0x3f846e3b, 0xc0028c9f},
                                 {0xbe089b10, 0xbefb50ab, 0x3eca565f, 0xbf31864f, 0xbf463368, 0xbf4a6265},
                                 {0x3ff96f28, 0x3f8330a5, 0x3f336d1c, 0x3f593342, 0x40027244, 0xbedadd5a}};
  const uint32_t golden_uniform[3][6] = {
      {0x3f50a3f9, 0x3e767ca4, 0x3f5b8a7f, 0x3e25152c, 0x3dd4af28, 0x3dd839a8},
      {0x3f71cf01, 0x3e00b514, 0x3f18f4f7, 0x3e2eaef4, 0x3f6e5667, 0x3e037244},
      {0x3f46c2f7, 0x3eb26406, 0x3df6d598, 0x3f7ef481, 0x3f7a70bf, 0x3eccff92}};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 6; ++j) {
      EXPECT_EQ(std::bit_cast<uint32_t>(normal_at(keys[i], positions[j])), golden[i][j]) << i << ", " << j;
      EXPECT_EQ(std::bit_cast<uint32_t>(uniform_at(keys[i], positions[j])), golden_uniform[i][j])
          << i << ", " << j;
    }
}

TEST(Noise, GoldenFingerprints) {  // of a million values each
  EXPECT_EQ(fingerprint(normals(1'000'000, {0, 0, 0})), 0xbbe9faacef02a4f8u);
  EXPECT_EQ(fingerprint(normals(1'000'000, {42, 1, 7}, 1'234'567)), 0xef6bcce8f62cf592u);
  EXPECT_EQ(fingerprint(uniforms(1'000'000, {42, 1, 7}, 1'234'567)), 0x38e1bcd6ab03c292u);
}

// ---- the transform

// The radius in double precision, from the same 40 bits.
double exact_radius(uint32_t high, uint32_t low) {
  const double rest = (static_cast<int32_t>(high) + (low + 0.5) / 256) / 4294967296.0;  // u or u − 1
  return std::sqrt(-2 * (static_cast<int32_t>(high) < 0 ? std::log1p(rest) : std::log(rest)));
}

TEST(Noise, RadiusIsAccurateEverywhere) {
  double worst = 0;
  const auto look = [&](uint32_t high, uint32_t low) {
    worst = std::max(worst, units_in_last_place(noise_math::radius_from(high, low), exact_radius(high, low)));
  };
  for (uint64_t high = 0; high < uint64_t{1} << 32; high += 4099)
    look(static_cast<uint32_t>(high), high % 256);
  for (uint32_t i = 0; i < 20000; ++i)  // both ends, and where the cases of the logarithm meet
    for (uint32_t middle : {0u, 0u - 20000, 0x80000000u - 10000, 0xB504F333u - 10000, 0x5A827999u - 10000})
      look(middle + i, (i * 7) % 256);
  for (int bit = 0; bit < 32; ++bit)
    for (uint32_t low = 0; low < 256; ++low) {
      look(1u << bit, low);
      look((1u << bit) - 1, low);
    }
  EXPECT_LE(worst, 2.5);
}

TEST(Noise, NormalsAreAccurate) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (int i = 0; i < 400'000; ++i) {
    const uint64_t bits = random();
    const uint32_t first = static_cast<uint32_t>(bits) >> (i % 4 ? 0 : i / 4 % 32), second = bits >> 32;
    const double radius = exact_radius(first, second & 0xFF);
    const double angle = std::numbers::pi / 4 * (((second >> 8) & 0x1FFFFF) + 0.5) / (1 << 21);
    double a = radius * std::cos(angle), b = radius * std::sin(angle);
    if (second >> 29 & 1) std::swap(a, b);
    if (second >> 31 & 1) a = -a;
    if (second >> 30 & 1) b = -b;
    const noise_math::Pair got = noise_math::normals_from(first, second);
    worst = std::max({worst, units_in_last_place(got.a, a), units_in_last_place(got.b, b)});
  }
  EXPECT_LE(worst, 5);
}

TEST(Noise, ExtremesAreAsDocumented) {
  EXPECT_NEAR(noise_math::radius_from(0, 0), std::sqrt(82 * std::numbers::ln2), 1e-6);  // u = 2^-41
  EXPECT_LT(noise_math::radius_from(0, 0), 7.5392f);
  EXPECT_GT(noise_math::radius_from(~0u, 255), 0);
  EXPECT_NEAR(noise_math::radius_from(~0u, 255), std::sqrt(2 * std::ldexp(1.0, -41)), 1e-12);
  const noise_math::Pair least = noise_math::normals_from(~0u, 0x000000FF);
  EXPECT_GT(std::abs(least.b), 1e-13);
  EXPECT_EQ(noise_math::uniform_from(0), 0x1p-24f);
  EXPECT_EQ(noise_math::uniform_from(~0u), 1 - 0x1p-24f);
}

TEST(Noise, SignsAndOctantsAreBalanced) {  // flipping one bit of the word mirrors the pair, exactly
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint32_t first = i * 2654435761u, second = (i * 40503u * 65537u) & 0x1FFFFFFFu;
    const noise_math::Pair p = noise_math::normals_from(first, second);
    const noise_math::Pair a = noise_math::normals_from(first, second | 0x80000000u);
    const noise_math::Pair b = noise_math::normals_from(first, second | 0x40000000u);
    const noise_math::Pair swapped = noise_math::normals_from(first, second | 0x20000000u);
    ASSERT_TRUE(a.a == -p.a && a.b == p.b && b.a == p.a && b.b == -p.b);
    ASSERT_TRUE(swapped.a == p.b && swapped.b == p.a);
  }
}

// ---- distribution

TEST(Noise, MomentsToTheFourth) {
  const int64_t count = 1 << 23;
  for (uint64_t seed : {0u, 1u, 2u}) {
    double sums[4] = {};
    for (float value : normals(count, {seed, noise_for::test, 0})) {
      double power = 1;
      for (double& sum : sums) sum += power *= value;
    }
    const double error = 5 / std::sqrt(static_cast<double>(count));  // times the deviation of z, z², z³, z⁴
    EXPECT_NEAR(sums[0] / count, 0, error);
    EXPECT_NEAR(sums[1] / count, 1, error * std::sqrt(2));
    EXPECT_NEAR(sums[2] / count, 0, error * std::sqrt(15));
    EXPECT_NEAR(sums[3] / count, 3, error * std::sqrt(96));
  }
}

double kolmogorov_smirnov(std::vector<float> values, double (*distribution)(double)) {
  std::sort(values.begin(), values.end());
  const double count = static_cast<double>(values.size());
  double distance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = distribution(values[i]), rank = static_cast<double>(i);
    distance = std::max({distance, expected - rank / count, (rank + 1) / count - expected});
  }
  return distance * std::sqrt(count);
}

TEST(Noise, KolmogorovSmirnov) {
  const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
  const auto uniform = [](double x) { return x; };
  for (uint64_t seed : {3u, 4u, 5u}) {
    EXPECT_LT(kolmogorov_smirnov(normals(1 << 20, {seed, noise_for::test, 0}), normal), 1.95);
    EXPECT_LT(kolmogorov_smirnov(uniforms(1 << 20, {seed, noise_for::test, 0}), uniform), 1.95);
  }
}

TEST(Noise, Tails) {
  const int64_t count = 1 << 24;
  const std::vector<float> values = normals(count, {6, noise_for::test, 0});
  for (double bound : {1.0, 2.0, 3.0, 4.0, 4.5, 5.0})
    for (double sign : {-1.0, 1.0}) {
      const auto beyond =
          std::count_if(values.begin(), values.end(), [&](float z) { return sign * z > bound; });
      const double expected = static_cast<double>(count) * 0.5 * std::erfc(bound / std::numbers::sqrt2);
      EXPECT_NEAR(static_cast<double>(beyond), expected, 5 * std::sqrt(expected)) << sign * bound;
    }
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 4.8f);  // all under 4.8: one chance in 6·10^5
}

TEST(Noise, UniformIsWithinZeroAndOneAndEven) {
  const int64_t count = 1 << 22;
  std::vector<int64_t> bins(256);
  for (float u : uniforms(count, {8, noise_for::test, 0})) {
    ASSERT_TRUE(u > 0 && u < 1);
    ++bins[static_cast<size_t>(u * 256)];
  }
  double chi = 0;
  for (int64_t bin : bins) chi += std::pow(static_cast<double>(bin) - count / 256.0, 2) / (count / 256.0);
  EXPECT_NEAR(chi, 255, 5 * std::sqrt(2 * 255));
}

// ---- independence

// Correlation of x with y and of their squares: Box-Muller done wrong shows in the squares alone.
void expect_independent(const std::vector<float>& x, const std::vector<float>& y, const char* what) {
  double product = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    product += static_cast<double>(x[i]) * y[i];
    squares += (static_cast<double>(x[i]) * x[i] - 1) * (static_cast<double>(y[i]) * y[i] - 1) / 2;
  }
  const double count = static_cast<double>(x.size());
  EXPECT_NEAR(product / count, 0, 5 / std::sqrt(count)) << what;
  EXPECT_NEAR(squares / count, 0, 5 / std::sqrt(count)) << what;
}

TEST(Noise, NeighboursAreIndependent) {
  const int64_t count = 1 << 20;
  for (const NoiseKey key : {NoiseKey{0, 0, 0}, NoiseKey{1234567, noise_for::sampler, 99}}) {
    const std::vector<float> x = normals(count, key);
    const uint64_t far = uint64_t{1} << 32;
    expect_independent(x, normals(count, {key.seed + 1, key.purpose, key.step}), "next seed");
    expect_independent(x, normals(count, {key.seed + far, key.purpose, key.step}), "seed's upper half");
    expect_independent(x, normals(count, {key.seed, key.purpose + 1, key.step}), "next purpose");
    expect_independent(x, normals(count, {key.seed, key.purpose, key.step + 1}), "next step");
    expect_independent(x, normals(count, {key.seed + 1, key.purpose, key.step - 1}), "seed + 1, step - 1");
    expect_independent(x, normals(count, {key.seed, key.purpose + 1, key.step - 1}), "purpose + 1, step - 1");
    for (int64_t lag : {1, 2, 3, 4, 5, 8, 16, 64, 1024})
      expect_independent(x, normals(count, key, lag), "positions apart");
    expect_independent(x, normals(count, key, int64_t{4} << 32), "block's upper half");
  }
}

TEST(Noise, KindsOfDrawAreIndependent) {
  const int64_t count = 1 << 20;
  const NoiseKey key{11, noise_for::test, 0};
  std::vector<float> scaled = uniforms(count, key);
  for (float& u : scaled) u = (u - 0.5f) * std::sqrt(12.0f);
  expect_independent(normals(count, key), scaled, "normal and uniform of one key");
  int64_t same = 0;
  for (int64_t i = 0; i < 1000; ++i)
    same += bits_at(key, i) >> 9 == static_cast<uint32_t>(uniform_at(key, i) * 8388608);
  EXPECT_LE(same, 1);
}

TEST(Noise, NeighbouringAddressesShareNoBlock) {
  std::unordered_set<uint64_t> seen;
  int64_t addresses = 0;
  for (uint64_t seed = 0; seed < 16; ++seed)
    for (uint32_t purpose = 0; purpose < 8; ++purpose)
      for (uint32_t step = 0; step < 16; ++step)
        for (int64_t block = 0; block < 64; ++block, ++addresses) {
          const NoiseKey key{seed, purpose, step};
          seen.insert(uint64_t{bits_at(key, 4 * block)} << 32 | bits_at(key, 4 * block + 1));
        }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), addresses);  // 64 bits each: a chance repeat is one in 10^9
}

// ---- filling

TEST(Noise, FillsEqualSingleValues) {
  const NoiseKey key{9, noise_for::train_noise, 1000};
  for (int64_t first : {int64_t{0}, int64_t{3}, (int64_t{1} << 34) - 37, (int64_t{1} << 62) + 1}) {
    const std::vector<float> z = normals(301, key, first), u = uniforms(301, key, first);
    for (int64_t i = 0; i < 301; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(z[i]), std::bit_cast<uint32_t>(normal_at(key, first + i)))
          << first << "+" << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(u[i]), std::bit_cast<uint32_t>(uniform_at(key, first + i)))
          << first << "+" << i;
    }
  }
}

TEST(Noise, AnySplitGivesTheSame) {
  const NoiseKey key{10, noise_for::latent, 0};
  const int64_t count = 10'007;
  const std::vector<uint32_t> whole = words_of(normals(count, key, 5));
  std::mt19937 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<float> parts(static_cast<size_t>(count));
    for (int64_t at = 0; at < count;) {
      const int64_t length = std::min<int64_t>(random() % (trial < 10 ? 150 : 9), count - at);
      fill_normal(parts.data() + at, length, key, 5 + at);
      at += length;
    }
    ASSERT_EQ(words_of(parts), whole) << trial;
  }
}

TEST(Noise, FillsStayWithinTheirBounds) {
  for (int64_t count = 0; count < 200; ++count) {
    std::vector<float> values(static_cast<size_t>(count) + 2, -100);
    fill_normal(values.data() + 1, count, {1, 2, 3}, count % 7);
    ASSERT_EQ(values.front(), -100);
    ASSERT_EQ(values.back(), -100);
    ASSERT_EQ(std::count(values.begin(), values.end(), -100.0f), 2);
  }
}

TEST(Noise, EveryInstructionSetGivesTheSame) {
  const auto fills = detail::noise_fills();
  ASSERT_GE(fills.size(), 1u);
  RecordProperty("instruction_sets", static_cast<int>(fills.size()));
  for (const NoiseKey key : {NoiseKey{0, 0, 0}, NoiseKey{77, 3, 12}, NoiseKey{~uint64_t{0}, ~0u, ~0u}})
    for (int64_t count : {1, 63, 64, 1000, 300'001}) {
      std::vector<float> expected(static_cast<size_t>(count)), got(expected);
      for (const auto& fill : fills) {
        fills[0].normal(expected.data(), count, key, 17);
        fill.normal(got.data(), count, key, 17);
        ASSERT_EQ(words_of(got), words_of(expected)) << fill.isa;
        fills[0].uniform(expected.data(), count, key, 17);
        fill.uniform(got.data(), count, key, 17);
        ASSERT_EQ(words_of(got), words_of(expected)) << fill.isa;
      }
    }
}

#if defined(__SSE2__)
TEST(Noise, FlushingSubnormalsChangesNothing) {  // torch.set_flush_denormal(true)
  const NoiseKey key{13, noise_for::latent, 0};
  const std::vector<uint32_t> expected = words_of(normals(1 << 18, key));
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ, DAZ
  const std::vector<uint32_t> got = words_of(normals(1 << 18, key));
  const float least = noise_math::normals_from(~0u, 0x000000FF).b;
  _mm_setcsr(before);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(least, noise_math::normals_from(~0u, 0x000000FF).b);
}
#endif

TEST(Noise, RefusesImpossibleRanges) {
  float value = 0;
  EXPECT_THROW(fill_normal(&value, -1, {}), Error);
  EXPECT_THROW(fill_uniform(&value, 1, {}, -1), Error);
  EXPECT_THROW(fill_normal(&value, 1, {}, std::numeric_limits<int64_t>::max()), Error);
  EXPECT_NO_THROW(fill_normal(nullptr, 0, {}, 5));
}

}  // namespace
}  // namespace pom
