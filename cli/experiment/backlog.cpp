#include "cli/experiment/backlog.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace pom::cli::experiment {

Backlog::~Backlog() {
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Backlog::throw_what_failed() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void Backlog::add(std::function<void()> piece) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pieces_.size() < most; });
  throw_what_failed();
  pieces_.push_back(std::move(piece));
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
}

void Backlog::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pieces_.empty(); });
  throw_what_failed();
}

void Backlog::work() {
  const at::NoGradGuard no_gradients;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return end_ || !pieces_.empty(); });
    if (end_) return;
    const std::function<void()>& piece = pieces_.front();  // stays in place while others are added
    lock.unlock();
    std::exception_ptr thrown;
    try {
      piece();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown) {
      failed_ = thrown;
      pieces_.clear();
    } else {
      pieces_.pop_front();
    }
    changed_.notify_all();
  }
}

}  // namespace pom::cli::experiment
