// Work in threads of their own: each thing once, with one thread inside, and errors that come out.
#include "pom/eval/one_thread.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

class OneThreadTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(4); }
  void TearDown() override { at::set_num_threads(before_); }
  const int before_ = at::get_num_threads();
};

TEST_F(OneThreadTest, EachIsDoneOnceAndAlone) {
  std::vector<std::atomic<int>> done(50);
  std::atomic<int> shared = 0;
  each_in_one_thread(50, 50, [&](std::int64_t i) {
    ++done[static_cast<std::size_t>(i)];
    if (at::get_num_threads() != 1) ++shared;
  });
  for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  EXPECT_EQ(shared, 0);
  EXPECT_EQ(at::get_num_threads(), 4);
}

TEST_F(OneThreadTest, NoMoreThanAskedForAreAtWork) {
  std::atomic<int> at_work = 0, most = 0;
  each_in_one_thread(20, 2, [&](std::int64_t) {
    const int now = ++at_work;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --at_work;
  });
  EXPECT_LE(most, 2);
}

TEST_F(OneThreadTest, WithinItselfItStaysAlone) {
  std::atomic<int> others = 0;
  each_in_one_thread(4, 4, [&](std::int64_t) {
    const std::thread::id mine = std::this_thread::get_id();
    each_in_one_thread(8, 8, [&](std::int64_t) { others += std::this_thread::get_id() != mine; });
  });
  EXPECT_EQ(others, 0);
}

TEST_F(OneThreadTest, ErrorsComeOut) {
  const auto work = [](std::int64_t i) { check(i != 3, "number ", i); };
  EXPECT_THROW(each_in_one_thread(10, 10, work), Error);
  EXPECT_EQ(at::get_num_threads(), 4);
  EXPECT_THROW(in_one_thread([] { fail("it"); }), Error);
}

}  // namespace
}  // namespace pom::eval
