// Numbers about a running program, in Prometheus' text format (version 0.0.4). Counting is an atomic
// addition; finding a number by its labels takes a lock for less than a microsecond.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pom::net {

class Counter {
 public:
  void add(double amount = 1);  // what is negative or no number is passed over: counters grow
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // upper ones, ascending; infinity comes by itself
  void observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  std::vector<std::uint64_t> counts()
      const;  // at most the first bound, between it and the second, ...; above all
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  static constexpr std::string_view content_type = "text/plain; version=0.0.4; charset=utf-8";

  // The one of this name and these labels, made at first need; it lives as long as the Metrics. A name that
  // is not of letters, digits and _, or that was of another kind before, is a pom::Error. Labels are for
  // values of which there are few: route patterns, never paths.
  Counter& counter(const std::string& name, const std::string& help, Labels labels = {});
  Gauge& gauge(const std::string& name, const std::string& help, Labels labels = {});
  Histogram& histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                       Labels labels = {});
  // A gauge whose value is asked for when it is shown; called under a lock: it must not use these Metrics.
  void measured(const std::string& name, const std::string& help, std::function<double()> value);

  std::string text() const;

 private:
  enum class Kind { counter, gauge, histogram };
  struct Series {
    Labels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
    std::function<double()> function;
  };
  struct Family {
    Kind kind;
    std::string help;
    std::map<std::string, Series> series;  // by their labels as text
  };
  Series& series(const std::string& name, const std::string& help, Kind kind, Labels labels);
  static void append(std::string& text, const std::string& name, const Series& series);

  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;
};

// Of this process, by the system; 0 where it does not say.
double resident_memory_bytes();

}  // namespace pom::net
