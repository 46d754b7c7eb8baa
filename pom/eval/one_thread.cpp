#include "pom/eval/one_thread.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

namespace pom::eval {
namespace {

// Torch's number of threads is set back however the work ends.
class ThreadsKept {
 public:
  ThreadsKept() : threads_(at::get_num_threads()) {}
  ThreadsKept(const ThreadsKept&) = delete;
  ThreadsKept& operator=(const ThreadsKept&) = delete;
  ~ThreadsKept() { at::set_num_threads(threads_); }
  int threads() const { return threads_; }

 private:
  int threads_;
};

}  // namespace

// Not a parallel region of OpenMP: there MKL takes one thread, and the algorithms of many.
void each_in_one_thread(std::int64_t count, std::int64_t at_once,
                        const std::function<void(std::int64_t)>& work) {
  const ThreadsKept kept;
  std::atomic<std::int64_t> next = 0;
  std::exception_ptr error;
  std::mutex guard;
  const auto go = [&] {
    const c10::NoGradGuard no_grad;
    at::set_num_threads(1);
    try {
      for (std::int64_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::scoped_lock lock(guard);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  const std::int64_t workers = std::min({std::int64_t{kept.threads()}, at_once, count});
  std::vector<std::jthread> others;  // those that start are joined if another does not
  for (std::int64_t i = 1; i < workers; ++i) others.emplace_back(go);
  go();
  others.clear();
  if (error) std::rethrow_exception(error);
}

void in_one_thread(const std::function<void()>& work) {
  each_in_one_thread(1, 1, [&](std::int64_t) { work(); });
}

}  // namespace pom::eval
