#include "pom/base/progress.h"

#include <algorithm>
#include <cstdio>
#include <gtest/gtest.h>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace pom {
namespace {

// A sink that remembers and a clock that stands still until told.
struct Watcher {
  std::string text;
  int writes = 0;
  double now = 100;

  ProgressSink sink() {
    return [this](std::string_view part) {
      text += part;
      ++writes;
    };
  }
  ProgressOptions options(bool terminal, int width = 80) {
    ProgressOptions options;
    options.terminal = terminal;
    options.width = width;
    options.seconds = [this] { return now; };
    return options;
  }
  std::string take() { return std::exchange(text, ""); }
};

int columns(std::string_view line) {
  int count = 0;
  for (char c : line) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// What a terminal shows after `text`: "\r" goes back to the start, "\x1b[K" erases the rest of the line.
std::vector<std::string> screen(std::string_view text) {
  std::vector<std::string> lines(1);
  size_t column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& line = lines.back();
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (text.substr(i, 3) == "\x1b[K") {
      line.resize(column);
      i += 2;
    } else {
      if (column < line.size()) {
        line[column] = text[i];
      } else {
        line += text[i];
      }
      ++column;
    }
  }
  return lines;
}

// Of a job whose length is known only after its first step.
TEST(Progress, CountsFromWhenTheJobBegan) {
  Watcher watcher;
  ProgressOptions options = watcher.options(false);
  options.began = 98;
  Progress progress("sampling", 1, watcher.sink(), options);
  progress.set(1);
  progress.finish();
  EXPECT_EQ(watcher.take(), "sampling: 1/1 in 2.0 s, 2.0 s/step\n");
}

TEST(Progress, PlainLinesComeSeldom) {
  Watcher watcher;
  Progress progress("sampling", 1000, watcher.sink(), watcher.options(false));
  for (int i = 0; i < 320; ++i) {  // 40 s, eight a second
    watcher.now += 0.125;
    progress.advance();
  }
  EXPECT_EQ(watcher.writes, 8);
  EXPECT_EQ(watcher.text.find('\r'), std::string::npos);
  EXPECT_EQ(watcher.text.find('\x1b'), std::string::npos);
  EXPECT_EQ(watcher.text.substr(0, watcher.text.find('\n')).substr(0, 30), "sampling: 4 %, 40/1000, 8.0 st");
}

TEST(Progress, PlainLinesWaitForAPercentUpToAMinute) {
  Watcher watcher;
  Progress progress("training", 1'000'000, watcher.sink(), watcher.options(false));
  for (int i = 0; i < 300; ++i) {  // 300 s, one a second: far less than a percent
    watcher.now += 1;
    progress.advance();
  }
  EXPECT_EQ(watcher.writes, 5);
}

TEST(Progress, SaysRateAndTimeLeft) {
  Watcher watcher;
  Progress progress("sampling", 100, watcher.sink(), watcher.options(false));
  progress.note("loss 0.5");
  watcher.now += 10;
  progress.advance(20);
  EXPECT_EQ(watcher.take(), "sampling: 20 %, 20/100, 2.0 step/s, 0:40 left, loss 0.5\n");
}

TEST(Progress, SlowRatesAreSecondsPerUnit) {
  Watcher watcher;
  ProgressOptions options = watcher.options(false);
  options.unit = "picture";
  Progress progress("sampling", 10, watcher.sink(), options);
  watcher.now += 20;
  progress.advance(2);
  EXPECT_EQ(watcher.take(), "sampling: 20 %, 2/10, 10.0 s/picture, 1:20 left\n");
}

TEST(Progress, UnknownTotalCounts) {
  Watcher watcher;
  Progress progress("reading", 0, watcher.sink(), watcher.options(false));
  watcher.now += 6;
  progress.advance(12);
  EXPECT_EQ(watcher.take(), "reading: 12 step, 2.0 step/s, 0:06\n");
}

TEST(Progress, TheRateFollowsTheRecentPast) {
  Watcher watcher;
  Progress progress("training", 1'000'000, watcher.sink(), watcher.options(true, 200));
  for (int i = 0; i < 60; ++i) {  // a slow start, one a second
    watcher.now += 1;
    progress.advance();
  }
  for (int i = 0; i < 100; ++i) {  // then a hundred a second
    watcher.now += 1;
    progress.advance(100);
  }
  EXPECT_NE(screen(watcher.text).back().find(" 100.0 step/s"), std::string::npos)
      << screen(watcher.text).back();
}

TEST(Progress, ResumedWorkIsCountedButNotInTheRate) {
  Watcher watcher;
  ProgressOptions options = watcher.options(false);
  options.first = 500;
  {
    Progress progress("training", 1000, watcher.sink(), options);
    watcher.now += 10;
    progress.advance(100);
    EXPECT_EQ(watcher.take(), "training: 60 %, 600/1000, 10.0 step/s, 0:40 left\n");
    progress.advance(400);
  }
  EXPECT_EQ(watcher.take(), "training: 1000/1000 in 10.0 s, 50.0 step/s\n");
}

TEST(Progress, RedrawsOneLineOnATerminal) {
  Watcher watcher;
  {
    Progress progress("sampling", 50, watcher.sink(), watcher.options(true));
    for (int i = 0; i < 50; ++i) {
      watcher.now += 0.5;
      progress.advance();
      const auto lines = screen(watcher.text);
      ASSERT_EQ(lines.size(), 1u);
      ASSERT_LT(columns(lines[0]), 80) << lines[0];
      ASSERT_EQ(lines[0].find("sampling: "), 0u);
    }
    EXPECT_NE(watcher.text.find("| 25/50, 2.0 step/s, 0:13 left"), std::string::npos) << watcher.text;
    EXPECT_NE(watcher.text.find("sampling: 50 %|█"), std::string::npos);
  }
  const auto lines = screen(watcher.text);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "sampling: 50/50 in 25.0 s, 2.0 step/s");
  EXPECT_EQ(lines[1], "");
}

TEST(Progress, TheBarGrowsWithTheShare) {
  Watcher watcher;
  Progress progress("x", 4, watcher.sink(), watcher.options(true));
  const auto blocks = [&] {
    const std::string line = screen(watcher.take()).back();
    int count = 0;
    for (size_t at = line.find("█"); at != std::string::npos; at = line.find("█", at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(blocks(), 0);
  for (int expected : {10, 20, 30, 40}) {
    watcher.now += 1;
    progress.advance();
    EXPECT_EQ(blocks(), expected);
  }
}

TEST(Progress, DoesNotRedrawTooOften) {
  Watcher watcher;
  Progress progress("sampling", 100000, watcher.sink(), watcher.options(true));
  for (int i = 0; i < 10000; ++i) {  // one second
    watcher.now += 1e-4;
    progress.advance();
  }
  EXPECT_LE(watcher.writes, 11);
  EXPECT_GE(watcher.writes, 9);
}

TEST(Progress, NarrowTerminalsGetNoBarAndNoWrap) {
  for (int width : {1, 2, 10, 20, 40}) {
    Watcher watcher;
    Progress progress("größere Beschreibung", 50, watcher.sink(), watcher.options(true, width));
    watcher.now += 1;
    progress.advance();
    progress.finish();
    for (const std::string& line : screen(watcher.text))
      EXPECT_LE(columns(line), std::max(width - 1, 1)) << line;
  }
}

TEST(Progress, SaysLinesAboveTheBar) {
  Watcher watcher;
  Progress progress("training", 10, watcher.sink(), watcher.options(true));
  progress.say(
      "saved step 3, a line much longer than the bar that it replaces, so that nothing of either is left "
      "over");
  const auto lines = screen(watcher.text);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].find("saved step 3"), 0u);
  EXPECT_EQ(lines[1].find("training: 0 %"), 0u);

  Watcher plain;
  Progress quiet("training", 10, plain.sink(), plain.options(false));
  quiet.say("saved");
  EXPECT_EQ(plain.take(), "saved\n");
}

TEST(Progress, AnExceptionEndsTheLineAndSaysWhere) {
  for (bool terminal : {false, true}) {
    Watcher watcher;
    try {
      Progress progress("sampling", 50, watcher.sink(), watcher.options(terminal));
      watcher.now += 2;
      progress.advance(10);
      throw std::runtime_error("x");
    } catch (const std::runtime_error&) {
    }
    ASSERT_FALSE(watcher.text.empty());
    EXPECT_EQ(watcher.text.back(), '\n');
    const auto lines = screen(watcher.text);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0], "sampling: stopped at 10/50 in 2.0 s, 5.0 step/s");
  }
}

TEST(Progress, WorkDoneWhileAnExceptionUnwindsIsNotStopped) {
  Watcher watcher;
  struct Cleanup {
    Watcher& watcher;
    ~Cleanup() {
      Progress progress("cleaning", 1, watcher.sink(), watcher.options(false));
      progress.advance();
    }
  };
  try {
    Cleanup cleanup{watcher};
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(watcher.text, "cleaning: 1/1 in 0.0 s\n");
}

TEST(Progress, FinishesOnce) {
  Watcher watcher;
  {
    Progress progress("sampling", 50, watcher.sink(), watcher.options(false));
    progress.set(7);
    progress.finish();
    progress.finish();
    watcher.now += 1000;
    progress.advance();
    EXPECT_EQ(progress.done(), 8);
  }
  EXPECT_EQ(watcher.text, "sampling: 7/50 in 0.0 s\n");
}

TEST(Progress, NoSinkMeansSilence) {
  Progress progress("sampling", 50, {});
  progress.advance(3);
  progress.say("x");
  EXPECT_EQ(progress.done(), 3);
}

TEST(Progress, ASinkThatThrowsDoesNotEndTheProgram) {
  ProgressSink broken = [](std::string_view) { throw std::runtime_error("disk full"); };
  EXPECT_NO_THROW({ Progress progress("sampling", 50, broken); });
}

TEST(Progress, CountsFromManyThreads) {
  std::ostringstream stream;
  {
    Progress progress("loading", 8000, progress_sink(stream), {.terminal = true});
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        for (int j = 0; j < 1000; ++j) {
          progress.advance();
          if (j % 100 == 0) progress.note("thread");
          if (j == 500) progress.say("half");
        }
      });
    threads.clear();
    EXPECT_EQ(progress.done(), 8000);
  }
  const auto lines = screen(stream.str());
  ASSERT_EQ(lines.size(), 10u);  // eight times half, the last line, and the empty one after it
  for (int i = 0; i < 8; ++i) EXPECT_EQ(lines[static_cast<size_t>(i)], "half");
  EXPECT_EQ(lines[8].find("loading: 8000/8000 in "), 0u);
}

TEST(Progress, Durations) {
  EXPECT_EQ(duration_text(0), "0:00");
  EXPECT_EQ(duration_text(59.6), "1:00");
  EXPECT_EQ(duration_text(725), "12:05");
  EXPECT_EQ(duration_text(3600 * 3 + 121), "3:02:01");
  EXPECT_EQ(duration_text(86400 * 4 + 3600 * 3), "4 d 03 h");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(1e300 * 1e300), "?");
}

TEST(Progress, AFileIsNoTerminal) {
  FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_FALSE(is_terminal(fileno(file)));
  EXPECT_EQ(terminal_width(fileno(file), 77), 77);
  std::fclose(file);
}

}  // namespace
}  // namespace pom
