// Tests of means, paired differences and rankings against numbers of scipy 1.17.1 (ttest_rel, ttest_1samp,
// kendalltau), and of Holm's correction against the rule worked out by hand.
#include "pom/eval/comparisons.h"

#include <cmath>
#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

const std::vector<double> a = {90.1, 88.7, 91.3, 89.9, 90.4}, b = {87.0, 87.9, 88.2, 86.1, 88.8};

TEST(Comparisons, MeanAndInterval) {
  const MeanInterval mean = t_interval(a);
  EXPECT_NEAR(mean.mean, 90.08, 1e-12);
  EXPECT_NEAR(mean.low, 88.91389305581693, 1e-10);
  EXPECT_NEAR(mean.high, 91.24610694418307, 1e-10);
  EXPECT_EQ(mean.count, 5);
  const MeanInterval one = t_interval(std::vector{3.0});
  EXPECT_EQ(one.mean, 3);
  EXPECT_TRUE(std::isinf(one.low) && std::isinf(one.high));
  EXPECT_THROW(t_interval({}), Error);
}

TEST(Comparisons, PairedDifference) {
  const PairedTest test = paired_t(a, b);
  EXPECT_NEAR(test.t, 4.487631258877181, 1e-10);
  EXPECT_NEAR(test.p, 0.010925649193035845, 1e-12);
  EXPECT_NEAR(test.difference.low, 0.9456529327649528, 1e-10);
  EXPECT_NEAR(test.difference.high, 4.01434706723505, 1e-10);
  EXPECT_NEAR(paired_t(b, a).p, test.p, 1e-15);
  EXPECT_TRUE(std::isnan(paired_t(a, a).p));
  EXPECT_TRUE(std::isnan(paired_t(std::vector{1.0}, std::vector{2.0}).p));
  const std::vector<double> one = {1, 2}, other = {2, 3};  // the same difference twice
  EXPECT_EQ(paired_t(one, other).p, 0);
  EXPECT_THROW(paired_t(a, std::vector{1.0}), Error);
}

// 0.01 · 4, 0.02 · 3, then no less than the one before, and no more than 1.
TEST(Comparisons, Holm) {
  const std::vector<double> adjusted = holm(std::vector{0.03, 0.01, 0.02, 0.9});
  EXPECT_NEAR(adjusted[1], 0.04, 1e-15);
  EXPECT_NEAR(adjusted[2], 0.06, 1e-15);
  EXPECT_NEAR(adjusted[0], 0.06, 1e-15);
  EXPECT_NEAR(adjusted[3], 0.9, 1e-15);
  EXPECT_EQ(holm(std::vector{0.6, 0.7})[1], 1);
  const std::vector<double> lacking = holm(std::vector{0.01, std::nan("")});
  EXPECT_NEAR(lacking[0], 0.02, 1e-15);  // a test that could not be made was still asked for
  EXPECT_TRUE(std::isnan(lacking[1]));
}

TEST(Comparisons, Equivalence) {
  const Equivalence within = tost_paired(a, b, 4);
  EXPECT_NEAR(within.p, 0.025674451608741492, 1e-12);
  EXPECT_NEAR(within.difference.low, 1.3018773501874328, 1e-10);
  EXPECT_NEAR(within.difference.high, 3.6581226498125687, 1e-10);
  EXPECT_GT(tost_paired(a, b, 3).p, 0.05);
  EXPECT_NEAR(tost_paired(b, a, 4).p, within.p, 1e-12);
  EXPECT_THROW(tost_paired(a, b, 0), Error);
  EXPECT_EQ(tost_paired(a, a, 1).p, 0);  // without any doubt
  EXPECT_TRUE(std::isnan(tost_paired(std::vector{1.0}, std::vector{1.0}, 1).p));
}

TEST(Comparisons, NotAbove) {
  EXPECT_NEAR(not_above(a, b, 4).p, 0.025674451608741492, 1e-12);
  EXPECT_LT(not_above(b, a, 0).p, 0.01);  // below it altogether
  EXPECT_GT(not_above(a, b, 0).p, 0.99);
}

TEST(Comparisons, Rankings) {
  EXPECT_NEAR(kendall_tau(std::vector<double>{1, 2, 3, 4, 5}, std::vector<double>{1, 3, 2, 5, 4}), 0.6,
              1e-14);
  EXPECT_NEAR(kendall_tau(std::vector<double>{1, 2, 2, 4, 5, 5}, std::vector<double>{2, 1, 3, 3, 5, 4}),
              0.7412493166611013, 1e-14);
  EXPECT_TRUE(std::isnan(kendall_tau(std::vector<double>{1, 1}, std::vector<double>{1, 2})));
}

}  // namespace
}  // namespace pom::eval
