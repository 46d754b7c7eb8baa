#include "pom/serve/worker.h"

#include <utility>

namespace pom::serve {

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::add(std::function<void()> work) {
  {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void Worker::add_urgent(std::function<void()> work) {
  {
    const std::scoped_lock lock(mutex_);
    urgent_.push_back(std::move(work));
  }
  changed_.notify_all();
}

std::function<void()> Worker::next_urgent() {
  const std::scoped_lock lock(mutex_);
  if (urgent_.empty() || end_) return {};
  std::function<void()> work = std::move(urgent_.front());
  urgent_.pop_front();
  return work;
}

namespace {

// What a piece of work throws, it has to tell by itself; nobody else hears of it.
void done(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
  }
}

}  // namespace

void Worker::let_urgent_pass() {
  const Clock::time_point begin = Clock::now();
  if (begin < urgent_from_) return;
  const std::function<void()> work = next_urgent();
  if (!work) return;
  done(work);
  const Clock::time_point end = Clock::now();
  urgent_from_ = end + (end - begin) * 3 / 7;  // the rest has three tenths of the time
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return end_ || !work_.empty() || !urgent_.empty(); });
    if (end_) return;
    const bool others = urgent_.empty() || (!work_.empty() && Clock::now() < urgent_from_);
    std::deque<std::function<void()>>& from = others ? work_ : urgent_;
    std::function<void()> work = std::move(from.front());
    from.pop_front();
    lock.unlock();
    done(work);
    work = {};  // what it held goes before the lock is taken
    lock.lock();
  }
}

Pool::Pool(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Pool::~Pool() {
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::add(std::function<void()> work) {
  {
    const std::scoped_lock lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void Pool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return end_ || !work_.empty(); });
    if (work_.empty()) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    done(work);
    work = {};
    lock.lock();
  }
}

}  // namespace pom::serve
