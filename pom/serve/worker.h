// Threads of the server beside the one that talks: one for each device, which runs models, and a few for what
// takes processor time and no device (PNG, files).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pom::serve {

// A device's thread. What is urgent goes first, and into the middle of what is under way, where that calls
// let_urgent_pass(): a block of a stream that is due need not wait for a batch of pictures.
class Worker {
 public:
  Worker();
  ~Worker();  // what has not begun is dropped; what is under way ends first
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void add(std::function<void()> work);
  void add_urgent(std::function<void()> work);
  void let_urgent_pass();  // in this thread, from work that is not urgent

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  std::function<void()> next_urgent();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_, urgent_;
  bool end_ = false;
  Clock::time_point urgent_from_;  // of its thread alone: others had to wait for what was urgent
  std::thread thread_;             // the last member: it uses the others
};

// A few threads for pieces of work that are independent of each other.
class Pool {
 public:
  explicit Pool(std::size_t threads = 2);
  ~Pool();  // what has been added is done first
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void add(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool end_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pom::serve
