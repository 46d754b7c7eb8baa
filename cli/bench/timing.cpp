#include "cli/bench/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>

#include <c10/util/Exception.h>

#include "cli/bench/cuda.h"

namespace pom::cli {
namespace {

using Clock = std::chrono::steady_clock;

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
}

// A contender that is ready, and how many of its calls are timed at once.
struct Ready {
  Call call;
  std::int64_t calls = 1;
  double estimate = 0;  // seconds of a call
};

class Race {
 public:
  Race(const std::vector<Contender>& contenders, const TimingOptions& options)
      : options_(options), ready_(contenders.size()), timings_(contenders.size()) {
    for (std::size_t i = 0; i < contenders.size(); ++i) enter(i, contenders[i]);
  }

  std::vector<Timing> run() {
    const std::int64_t rounds = rounds_that_fit();
    for (std::int64_t round = 0; round < rounds; ++round)
      for (std::size_t place = 0; place < ready_.size(); ++place)
        lap((static_cast<std::size_t>(round) + place) % ready_.size());  // each round starts with another
    return std::move(timings_);
  }

 private:
  void enter(std::size_t i, const Contender& contender) {
    timings_[i].note = contender.note;
    if (!contender.note.empty()) return;
    guarded(i, [&] {
      check_stop();
      Prepared prepared = contender.prepare();
      ready_[i].call = std::move(prepared.call);
      warm_up(i);
      if (prepared.bytes) timings_[i].bytes = *prepared.bytes;
      timings_[i].graph = prepared.graph;
    });
  }

  // The first calls choose algorithms, fill caches and become graphs; the next one is looked at.
  void warm_up(std::size_t i) {
    constexpr double short_enough = 1;
    const double first = time(ready_[i].call, 1);
    for (int more = first < short_enough ? 2 : 1; more > 0; --more) {
      check_stop();
      time(ready_[i].call, 1);
    }
    check_stop();
    const std::int64_t before = start_peak(options_.device);
    ready_[i].estimate = time(ready_[i].call, 1);
    timings_[i].bytes = std::max<std::int64_t>(0, peak_bytes(options_.device) - before);
    const double long_enough = options_.device.is_cuda() ? 0.02 : 0.002;
    ready_[i].calls =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(long_enough / ready_[i].estimate), 1, 1000);
  }

  std::int64_t rounds_that_fit() const {
    double round = 1e-6;
    for (const Ready& ready : ready_)
      if (ready.call) round += ready.estimate * static_cast<double>(ready.calls);
    return std::clamp(static_cast<std::int64_t>(options_.budget / round), options_.least, options_.most);
  }

  void lap(std::size_t i) {
    if (!ready_[i].call) return;
    check_stop();
    guarded(i, [&] { timings_[i].seconds.push_back(time(ready_[i].call, ready_[i].calls)); });
  }

  double time(const Call& call, std::int64_t calls) const {
    synchronize(options_.device);
    const Clock::time_point start = Clock::now();
    for (std::int64_t c = 0; c < calls; ++c) call();
    synchronize(options_.device);
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(calls);
  }

  // Whoever does not fit or fails leaves the race, and what it held is given back to the others.
  template <class Work>
  void guarded(std::size_t i, Work&& work) {
    const auto leave = [&](const std::string& note, bool failed) {
      ready_[i].call = nullptr;
      timings_[i] = {.note = note, .failed = failed};
      give_back_memory(options_.device);
    };
    try {
      work();
    } catch (const std::bad_alloc&) {
      leave("out of memory", false);
    } catch (const c10::Error& error) {
      leave_because(leave, error.what_without_backtrace());
    } catch (const std::exception& error) {
      leave_because(leave, error.what());
    }
  }

  // Condition by the text: a type gets lost on the way through a backward pass.
  template <class Leave>
  static void leave_because(const Leave& leave, const std::string& text) {
    const bool memory = text.find("out of memory") != std::string::npos ||
                        text.find("can't allocate memory") != std::string::npos;  // the processor's allocator
    if (memory)
      leave("out of memory", false);
    else
      leave("failed: " + text.substr(0, text.find('\n')), true);
  }

  void check_stop() const {
    if (options_.stop && options_.stop->load(std::memory_order_relaxed)) throw BenchStopped();
  }

  const TimingOptions& options_;
  std::vector<Ready> ready_;
  std::vector<Timing> timings_;
};

}  // namespace

double Timing::median() const {
  return percentile(seconds, 0.5);
}

double Timing::spread() const {
  return (percentile(seconds, 0.9) - percentile(seconds, 0.1)) / 2 / median();
}

std::vector<Timing> interleave(const std::vector<Contender>& contenders, const TimingOptions& options) {
  std::vector<Timing> timings = Race(contenders, options).run();
  give_back_memory(options.device);
  return timings;
}

}  // namespace pom::cli
