// Work that is done beside other work, one piece after the other, in the order in which it came.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace pom::cli::experiment {

class Backlog {
 public:
  Backlog() = default;
  // What has not begun is dropped.
  ~Backlog();
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  // Waits while there are many. Throws what a piece before it threw; later ones are dropped then.
  void add(std::function<void()> piece);
  // Waits until all is done; throws likewise.
  void finish();

 private:
  static constexpr std::size_t most = 8;  // pieces hold their samples

  void work();
  void throw_what_failed();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> pieces_;  // the first is at work
  std::exception_ptr failed_;
  bool end_ = false;
  std::thread thread_;  // from the first piece on
};

}  // namespace pom::cli::experiment
