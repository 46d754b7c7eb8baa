// Threads that prepare items 0, 1, 2, … of a list and hand them out in this order, some ahead of who takes
// them and no more.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace pom::data {

// OrderedWork<Image> work(first, last, 4, 16, [](std::int64_t i) { return decode(i); });
// for (auto i = first; i < last; ++i) use(work.next());
//
// What `make` throws, next() throws in its turn. Destruction waits for the items that are being made.
template <class Item>
class OrderedWork {
 public:
  OrderedWork(std::int64_t first, std::int64_t last, std::int64_t workers, std::int64_t ahead,
              std::function<Item(std::int64_t)> make)
      : make_(std::move(make)),
        claimed_(first),
        taken_(first),
        last_(last),
        ahead_(std::max(ahead, workers)) {
    for (std::int64_t i = 0; i < std::min(workers, last - first); ++i)
      threads_.emplace_back([this](const std::stop_token& stop) { work_on(stop); });
  }

  Item next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return !places_.empty() && places_.front()->done; });
    const std::unique_ptr<Place> place = std::move(places_.front());
    places_.pop_front();
    ++taken_;
    room_.notify_all();
    if (place->error) std::rethrow_exception(place->error);
    return std::move(*place->item);
  }

 private:
  struct Place {
    std::optional<Item> item = {};
    std::exception_ptr error = {};
    bool done = false;
  };

  void work_on(const std::stop_token& stop) {
    for (;;) {
      std::unique_lock lock(mutex_);
      const bool more =
          room_.wait(lock, stop, [this] { return claimed_ == last_ || claimed_ < taken_ + ahead_; });
      if (!more || stop.stop_requested() || claimed_ == last_) return;
      const std::int64_t index = claimed_++;
      Place* place = places_.emplace_back(std::make_unique<Place>()).get();
      lock.unlock();
      fill(*place, index);
      lock.lock();
      place->done = true;
      ready_.notify_all();
    }
  }

  void fill(Place& place, std::int64_t index) {
    try {
      place.item = make_(index);
    } catch (...) {
      place.error = std::current_exception();
    }
  }

  std::function<Item(std::int64_t)> make_;
  std::mutex mutex_;
  std::condition_variable_any room_, ready_;
  std::deque<std::unique_ptr<Place>> places_;  // of the items that were claimed and not yet taken
  std::int64_t claimed_, taken_, last_, ahead_;
  std::vector<std::jthread> threads_;  // last, so that they end before what they use
};

}  // namespace pom::data
