// Times things side by side: contenders are called in turn in one process, so that what the machine does
// meanwhile happens to all of them.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

namespace pom::cli {

// Ctrl-C between two calls.
struct BenchStopped {};

using Call = std::function<void()>;

// What is timed. A graph holds its memory all the time, so that a call does not show what it takes: who makes
// one says it.
struct Prepared {
  template <std::invocable F>
  Prepared(F f) : call(std::move(f)) {}
  Call call;
  std::optional<std::int64_t> bytes = {};
  std::optional<bool> graph = {};  // a CUDA graph, or kernels one by one, where there is a choice
};

// It is made just before, so that what does not fit leaves the others alone. With a note in place of a way to
// prepare it, it is not timed, and the note says why.
struct Contender {
  std::function<Prepared()> prepare;
  std::string note = {};
};

struct Timing {
  std::vector<double> seconds = {};  // of a call, one for each round
  std::int64_t bytes = 0;            // that a call takes at its largest beside what was there, on a GPU
  std::string note = {};             // why there are no times
  bool failed = false;               // for another reason than time or memory
  std::optional<bool> graph = {};    // of Prepared

  bool measured() const { return !seconds.empty(); }
  double median() const;
  // Half of what lies between the 10th and the 90th percentile, relative to the median.
  double spread() const;
};

struct TimingOptions {
  c10::Device device = c10::kCPU;
  double budget = 2;                   // seconds for all of them, about
  std::int64_t least = 3, most = 200;  // rounds
  const std::atomic<bool>* stop = nullptr;
};

// One timing for each contender. On a GPU a round has as many calls as make it long enough to be timed from
// outside. Out of memory is a note; so is any other error, and then the timing says that it failed.
std::vector<Timing> interleave(const std::vector<Contender>& contenders, const TimingOptions& options);

}  // namespace pom::cli
