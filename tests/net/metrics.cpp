// Tests of metrics and their text.
#include "pom/net/metrics.h"

#include <gtest/gtest.h>
#include <limits>
#include <thread>

#include "pom/base/error.h"

namespace pom::net {
namespace {

TEST(Metrics, TheWholeText) {
  Metrics metrics;
  metrics.counter("pom_requests_total", "Requests.", {{"status", "200"}, {"route", "/a"}}).add();
  metrics.counter("pom_requests_total", "Requests.", {{"route", "/a"}, {"status", "200"}}).add(2);
  metrics.counter("pom_requests_total", "Requests.", {{"route", "/b"}, {"status", "404"}});
  metrics.gauge("pom_jobs", "Jobs.").set(2.5);
  metrics.measured("pom_build_info", "Build.", [] { return 1.0; });
  Histogram& seconds = metrics.histogram("pom_seconds", "Seconds.", {0.1, 1, 10}, {{"route", "/a"}});
  for (const double each : {0.05, 0.1, 0.5, 100.0}) seconds.observe(each);
  EXPECT_EQ(metrics.text(),
            "# HELP pom_build_info Build.\n"
            "# TYPE pom_build_info gauge\n"
            "pom_build_info 1\n"
            "# HELP pom_jobs Jobs.\n"
            "# TYPE pom_jobs gauge\n"
            "pom_jobs 2.5\n"
            "# HELP pom_requests_total Requests.\n"
            "# TYPE pom_requests_total counter\n"
            "pom_requests_total{route=\"/a\",status=\"200\"} 3\n"
            "pom_requests_total{route=\"/b\",status=\"404\"} 0\n"
            "# HELP pom_seconds Seconds.\n"
            "# TYPE pom_seconds histogram\n"
            "pom_seconds_bucket{route=\"/a\",le=\"0.1\"} 2\n"
            "pom_seconds_bucket{route=\"/a\",le=\"1\"} 3\n"
            "pom_seconds_bucket{route=\"/a\",le=\"10\"} 3\n"
            "pom_seconds_bucket{route=\"/a\",le=\"+Inf\"} 4\n"
            "pom_seconds_sum{route=\"/a\"} 100.65\n"
            "pom_seconds_count{route=\"/a\"} 4\n");
}

TEST(Metrics, Escapes) {
  Metrics metrics;
  metrics.gauge("a", "back\\slash \"quotes\"\nline", {{"l", "back\\slash \"quotes\"\nline"}}).set(1);
  EXPECT_EQ(metrics.text(),
            "# HELP a back\\\\slash \"quotes\"\\nline\n"
            "# TYPE a gauge\n"
            "a{l=\"back\\\\slash \\\"quotes\\\"\\nline\"} 1\n");
}

TEST(Metrics, NumbersThatAreNone) {
  Metrics metrics;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  metrics.gauge("a", "").set(infinity);
  metrics.gauge("b", "").set(-infinity);
  metrics.gauge("c", "").set(std::numeric_limits<double>::quiet_NaN());
  metrics.gauge("d", "").set(1e300);
  const std::string text = metrics.text();
  for (const char* line : {"a +Inf\n", "b -Inf\n", "c NaN\n", "d 1e+300\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

TEST(Metrics, CountersGrow) {
  Metrics metrics;
  Counter& counter = metrics.counter("a", "");
  counter.add(2);
  counter.add(-1);
  counter.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(counter.value(), 2);
  EXPECT_EQ(&metrics.counter("a", ""), &counter);
}

TEST(Metrics, GaugesGoBothWays) {
  Metrics metrics;
  metrics.gauge("a", "").add(3);
  metrics.gauge("a", "").add(-1);
  EXPECT_EQ(metrics.gauge("a", "").value(), 2);
}

TEST(Metrics, WrongUse) {
  Metrics metrics;
  metrics.counter("a", "");
  EXPECT_THROW(metrics.gauge("a", ""), Error);
  EXPECT_THROW(metrics.histogram("a", "", {1}), Error);
  for (const char* name : {"", "1a", "a-b", "a b", "ä", "a:b"})
    EXPECT_THROW(metrics.counter(name, ""), Error) << name;
  for (const char* label : {"", "1a", "a-b", "le", "__a"})
    EXPECT_THROW(metrics.counter("b", "", {{label, ""}}), Error) << label;
  EXPECT_THROW(metrics.histogram("h", "", {2, 1}), Error);
  EXPECT_THROW(metrics.histogram("h", "", {1, 1}), Error);
  EXPECT_THROW(metrics.histogram("h", "", {std::numeric_limits<double>::infinity()}), Error);
  metrics.histogram("h", "", {1, 2});
  EXPECT_THROW(metrics.histogram("h", "", {1, 3}), Error);
  EXPECT_EQ(metrics.text().find("b{"), std::string::npos);
}

TEST(Metrics, FromManyThreads) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        metrics.counter("total", "", {{"thread", std::to_string((t + i) % 3)}}).add();
        metrics.histogram("seconds", "", {1, 2}).observe(i % 3);
        EXPECT_TRUE(i % 500 != 0 || !metrics.text().empty());
      }
    });
  for (std::thread& each : threads) each.join();
  double total = 0;
  for (const char* thread : {"0", "1", "2"})
    total += metrics.counter("total", "", {{"thread", thread}}).value();
  EXPECT_EQ(total, 8000);
  EXPECT_NE(metrics.text().find("seconds_count 8000\n"), std::string::npos);
}

TEST(ResidentMemory, IsThere) {
  EXPECT_GT(resident_memory_bytes(), 1e5);
}

}  // namespace
}  // namespace pom::net
