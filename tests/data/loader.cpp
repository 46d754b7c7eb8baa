// Tests of the loader: the order is a function of the place, whatever threads do; it goes on where it was
// left, passes over what is broken, and tells what a worker threw.
#include "pom/data/loader.h"

#include "tests/data/support.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include <ATen/ops/full.h>

#include "pom/data/permutation.h"
#include "pom/data/shapes.h"

namespace pom::data {
namespace {

// Example i is a picture of one pixel, i and the visit; some are broken, one throws something else.
class Numbers final : public Dataset {
 public:
  explicit Numbers(std::int64_t size, std::set<std::int64_t> broken = {}) : size_(size), broken_(broken) {}

  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return names_; }
  std::vector<std::int64_t> shape() const override { return {2, 1, 1}; }
  Example get(std::int64_t index, std::int64_t visit) const override {
    ++reads;
    if (delay.count() > 0) std::this_thread::sleep_for(delay * (index % 3));
    if (index == poisoned) throw std::logic_error("poisoned");
    if (broken_.contains(index)) fail("numbers: ", index, " is broken");
    const at::Tensor picture = at::full({2, 1, 1}, index % 256, at::kByte);
    picture.data_ptr<std::uint8_t>()[1] = static_cast<std::uint8_t>(visit);
    return {picture, index};
  }
  std::string name_of(std::int64_t index) const override { return "number " + std::to_string(index); }

  std::int64_t poisoned = -1;
  std::chrono::microseconds delay{0};
  mutable std::atomic<int> reads = 0;

 private:
  std::int64_t size_;
  std::set<std::int64_t> broken_;
  std::vector<std::string> names_ = {"all"};
};

std::vector<std::int64_t> take(Loader& loader, int batches) {
  std::vector<std::int64_t> labels;
  for (int i = 0; i < batches; ++i) {
    const Batch batch = loader.next();
    const auto* data = batch.labels.data_ptr<std::int64_t>();
    labels.insert(labels.end(), data, data + batch.labels.numel());
  }
  return labels;
}

TEST(Permutation, IsOne) {
  for (const std::int64_t size : {1, 2, 3, 7, 64, 65, 1000, 4096, 10007}) {
    const Permutation order({5, noise_for::data_order, 3}, size);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) seen.at(static_cast<std::size_t>(order.at(i))) = true;
    EXPECT_EQ(std::ranges::count(seen, true), size);
  }
}

TEST(Permutation, EveryOrderOfThreeOccurs) {
  std::map<std::vector<std::int64_t>, int> counts;
  for (std::uint32_t key = 0; key < 6000; ++key) {
    const Permutation order({1, noise_for::data_order, key}, 3);
    ++counts[{order.at(0), order.at(1), order.at(2)}];
  }
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Permutation, PlacesAreSpreadEvenly) {
  std::vector<int> counts(10);
  for (std::uint32_t key = 0; key < 10000; ++key)
    ++counts.at(static_cast<std::size_t>(Permutation({2, noise_for::data_order, key}, 1000).at(0) / 100));
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Permutation, LargeSizes) {
  const Permutation order({1, noise_for::data_order, 0}, std::int64_t{1} << 62);
  EXPECT_LT(order.at(5), std::int64_t{1} << 62);
  EXPECT_NE(order.at(5), order.at(6));
  EXPECT_NE(error_of([&] { Permutation({}, 0); }).find("got 0"), std::string::npos);
}

TEST(Loader, EpochsArePermutations) {
  Loader loader(std::make_shared<Numbers>(100), {.batch = 20, .workers = 3, .seed = 1});
  std::vector<std::vector<std::int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(loader.epoch(), epoch);
    epochs.push_back(take(loader, 5));
    std::vector<std::int64_t> sorted = epochs.back(), all(100);
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(sorted, all);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(loader.place(), 300);
}

TEST(Loader, OrderIsAFunctionOfThePlace) {
  Loader loader(std::make_shared<Numbers>(30), {.batch = 7, .workers = 2, .seed = 4});
  const std::vector<std::int64_t> labels = take(loader, 10);
  for (std::int64_t place = 0; place < 70; ++place) {
    const Visit visit = example_at(place, 30, 4);
    EXPECT_EQ(labels[static_cast<std::size_t>(place)], visit.index);
    EXPECT_EQ(visit.epoch, place / 30);
  }
}

TEST(Loader, BatchesRunOnOverTheEndOfAnEpoch) {
  Loader loader(std::make_shared<Numbers>(5), {.batch = 4, .workers = 1});
  loader.next();
  const Batch batch = loader.next();
  EXPECT_EQ(batch.first, 4);
  const std::vector<std::uint8_t> bytes = bytes_of(batch.pictures);
  const auto* labels = batch.labels.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(bytes[2 * i], labels[i]);
    EXPECT_EQ(bytes[2 * i + 1], i == 0 ? 0 : 1);  // the visit
  }
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(Loader, WorkersChangeNothing) {
  const auto numbers = std::make_shared<Numbers>(40, std::set<std::int64_t>{3, 4, 39});
  numbers->delay = std::chrono::microseconds(200);
  std::vector<std::vector<std::int64_t>> orders;
  std::vector<std::vector<std::string>> told;
  for (const std::int64_t workers : {1, 2, 5, 16}) {
    told.emplace_back();
    Loader loader(numbers, {.batch = 9,
                            .workers = workers,
                            .prefetch = workers,
                            .seed = 8,
                            .on_broken = [&](const std::string& name, const std::string&) {
                              told.back().push_back(name);
                            }});
    orders.push_back(take(loader, 12));
  }
  for (std::size_t i = 1; i < orders.size(); ++i) {
    EXPECT_EQ(orders[i], orders[0]);
    EXPECT_EQ(told[i], told[0]);
  }
  EXPECT_EQ(told[0].size(), 3u);
}

TEST(Loader, PicturesOfAnEndlessDataSet) {
  const auto shapes = make_shapes({.size = {16, 16}}, 3);
  Loader loader(shapes, {.batch = 33, .workers = 4, .seed = 5, .start = 10});
  for (int n = 0; n < 3; ++n) {
    const Batch batch = loader.next();
    EXPECT_EQ(batch.first, 10 + 33 * n);
    EXPECT_EQ(batch.pictures.sizes(), (at::IntArrayRef{33, 3, 16, 16}));
    for (std::int64_t i = 0; i < 33; ++i) {
      const Example example = shapes->get(batch.first + i, 0);
      ASSERT_EQ(bytes_of(batch.pictures[i]), bytes_of(example.picture));
      ASSERT_EQ(batch.labels.data_ptr<std::int64_t>()[i], example.label);
    }
  }
  EXPECT_EQ(loader.epoch(), 0);
}

TEST(Loader, GoingOnEqualsNeverHavingStopped) {
  const auto numbers = std::make_shared<Numbers>(50, std::set<std::int64_t>{7, 8});
  Loader whole(numbers, {.batch = 6, .workers = 3, .seed = 2});
  const std::vector<std::int64_t> all = take(whole, 20);
  for (const int stop : {0, 1, 7, 13}) {
    Loader before(numbers, {.batch = 6, .workers = 2, .seed = 2});
    std::vector<std::int64_t> labels = take(before, stop);
    EXPECT_EQ(before.place(), 6 * stop);
    Loader after(numbers, {.batch = 6, .workers = 4, .seed = 2, .start = before.place()});
    const std::vector<std::int64_t> rest = take(after, 20 - stop);
    labels.insert(labels.end(), rest.begin(), rest.end());
    EXPECT_EQ(labels, all);
    EXPECT_EQ(after.place(), whole.place());
  }
}

TEST(Loader, BrokenExamplesAreReplacedAndToldOnce) {
  const auto numbers = std::make_shared<Numbers>(10, std::set<std::int64_t>{4, 5, 9});
  std::vector<std::string> names, reasons;
  Loader loader(numbers, {.batch = 10,
                          .workers = 2,
                          .seed = 6,
                          .on_broken = [&](const std::string& name, const std::string& why) {
                            names.push_back(name);
                            reasons.push_back(why);
                          }});
  std::vector<std::int64_t> labels = take(loader, 1);
  for (std::int64_t place = 0; place < 10; ++place) {
    const std::int64_t wanted = example_at(place, 10, 6).index;
    const std::int64_t expected = wanted == 4 || wanted == 5 ? 6 : wanted == 9 ? 0 : wanted;
    EXPECT_EQ(labels[static_cast<std::size_t>(place)], expected);
  }
  take(loader, 3);
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"number 4", "number 5", "number 9"}));
  EXPECT_NE(std::ranges::find(reasons, "numbers: 4 is broken"), reasons.end());
  EXPECT_EQ(loader.broken(), 3);
}

TEST(Loader, NothingReadableIsAnError) {
  Loader loader(std::make_shared<Numbers>(3, std::set<std::int64_t>{0, 1, 2}), {.batch = 2, .workers = 2});
  const std::string text = error_of([&] { loader.next(); });
  EXPECT_NE(text.find("expected examples that can be read"), std::string::npos) << text;
  EXPECT_NE(text.find("is broken"), std::string::npos) << text;
  EXPECT_FALSE(error_of([&] { loader.next(); }).empty());  // and again
}

TEST(Loader, WhatAWorkerThrewIsThrownInOrder) {
  const auto numbers = std::make_shared<Numbers>(40);
  numbers->poisoned = example_at(25, 40, 0).index;
  Loader loader(numbers, {.batch = 10, .workers = 4, .prefetch = 8});
  EXPECT_EQ(loader.next().first, 0);
  EXPECT_EQ(loader.next().first, 10);
  EXPECT_THROW(loader.next(), std::logic_error);
  EXPECT_EQ(loader.place(), 20);
}

TEST(Loader, PreparesNoMoreThanWasAllowed) {
  const auto numbers = std::make_shared<Numbers>(1000);
  Loader loader(numbers, {.batch = 10, .workers = 3, .prefetch = 4});
  loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(numbers->reads.load(), 50);
}

TEST(Loader, EndsInTheMiddleOfABatch) {
  const auto numbers = std::make_shared<Numbers>(30000);
  numbers->delay = std::chrono::milliseconds(1);
  for (int i = 0; i < 20; ++i) {
    const Loader loader(numbers, {.batch = 10000, .workers = 4});
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_LT(numbers->reads.load(), 10000);  // not one batch was waited for
}

TEST(Loader, MistakesAreNamed) {
  const auto numbers = std::make_shared<Numbers>(3);
  const auto refuses = [&](const LoaderOptions& options, const std::string& part) {
    const std::string text = error_of([&] { Loader(numbers, options); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  refuses({.batch = 0}, "loader: batch: expected at least 1, got 0");
  refuses({.workers = -1}, "loader: workers");
  refuses({.prefetch = 0}, "loader: prefetch");
  refuses({.start = -5}, "loader: start");
  EXPECT_NE(error_of([] { Loader(nullptr, {}); }).find("loader: dataset"), std::string::npos);
}

}  // namespace
}  // namespace pom::data
