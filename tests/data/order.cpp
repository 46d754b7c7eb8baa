// Tests of the order of shards: every example once in an epoch, few shards at a time, a function of the
// place.
#include "pom/data/order.h"

#include "tests/data/support.h"
#include <algorithm>
#include <numeric>
#include <set>

namespace pom::data {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers epoch_of(const Order& order, std::int64_t size, std::int64_t epoch) {
  Numbers indices;
  for (std::int64_t i = 0; i < size; ++i) {
    const Visit visit = order.at(epoch * size + i);
    EXPECT_EQ(visit.epoch, epoch);
    indices.push_back(visit.index);
  }
  return indices;
}

TEST(Order, EpochsArePermutations) {
  for (const Numbers& shards : {Numbers{10}, Numbers{3, 0, 5, 1, 0}, Numbers(40, 7), Numbers{1, 100, 1, 1}}) {
    const std::int64_t size = std::accumulate(shards.begin(), shards.end(), std::int64_t{0});
    for (const std::int64_t together : {1, 2, 16}) {
      const Order order(size, shards, 3, together);
      Numbers all(static_cast<std::size_t>(size)), first = epoch_of(order, size, 0),
                                                   second = epoch_of(order, size, 1);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_TRUE(size < 10 || first != second);
      std::ranges::sort(first);
      std::ranges::sort(second);
      EXPECT_EQ(first, all);
      EXPECT_EQ(second, all);
    }
  }
}

TEST(Order, FewShardsAtATime) {
  const Numbers shards(20, 50);
  const Order order(1000, shards, 1, 4);
  const Numbers indices = epoch_of(order, 1000, 2);
  std::set<std::int64_t> whole;
  for (std::size_t group = 0; group < 5; ++group) {
    std::set<std::int64_t> used;
    for (std::size_t i = 0; i < 200; ++i) used.insert(indices[200 * group + i] / 50);
    EXPECT_EQ(used.size(), 4u);
    whole.insert(used.begin(), used.end());
    // And they are mixed: the first tenth has examples of all four.
    std::set<std::int64_t> soon;
    for (std::size_t i = 0; i < 30; ++i) soon.insert(indices[200 * group + i] / 50);
    EXPECT_EQ(soon.size(), 4u);
  }
  EXPECT_EQ(whole.size(), 20u);
}

TEST(Order, GroupsAreMixedDifferently) {
  const Order order(400, Numbers(8, 50), 1, 4);
  const Numbers indices = epoch_of(order, 400, 0);
  std::int64_t same = 0;
  for (std::size_t i = 0; i < 200; ++i) same += indices[i] % 50 == indices[200 + i] % 50;
  EXPECT_LT(same, 20);
}

TEST(Order, AnyPlaceAlone) {
  const Numbers shards = {5, 9, 2, 7, 7, 1};
  const Order order(31, shards, 8, 2);
  for (const std::int64_t place : {300, 0, 95, 31, 62, 30}) {
    const Order fresh(31, shards, 8, 2);
    EXPECT_EQ(fresh.at(place).index, order.at(place).index);
    EXPECT_EQ(fresh.at(place).epoch, place / 31);
  }
}

TEST(Order, WithoutShardsItIsTheOldOne) {
  const Order order(30, {}, 4), endless(0, {}, 4);
  for (std::int64_t place = 0; place < 90; ++place) {
    EXPECT_EQ(order.at(place).index, example_at(place, 30, 4).index);
    EXPECT_EQ(endless.at(place).index, place);
  }
  // The numbers of a release: whoever goes on with a run relies on them.
  EXPECT_EQ(example_at(0, 1000, 7).index, Order(1000, {}, 7).at(0).index);
  EXPECT_NE(error_of([] {
              Order(5, {2, 2}, 0);
            }).find("expected 5 examples in all, got 4"),
            std::string::npos);
}

}  // namespace
}  // namespace pom::data
