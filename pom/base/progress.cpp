#include "pom/base/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <ostream>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "pom/base/error.h"

namespace pom {
namespace {

constexpr double kRedraw = 0.1;      // seconds between two drawings on a terminal
constexpr double kPlain = 5;         // seconds between two plain lines that also lie a percent apart,
constexpr double kPlainAnyway = 60;  // and between any two
constexpr double kMemory = 10;       // seconds over which the rate forgets

ProgressOptions with_clock(ProgressOptions options) {
  if (!options.seconds) options.seconds = steady_seconds;
  return options;
}

template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[96];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

bool starts_character(char c) {  // of UTF-8
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

int columns(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), starts_character));
}

void cut(std::string& text, int width) {
  for (size_t i = 0; i < text.size(); ++i)
    if (starts_character(text[i]) && width-- <= 0) return text.resize(i);
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressSink progress_sink(std::ostream& stream) {
  return [&stream](std::string_view text) {
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    stream.flush();
  };
}

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return isatty(fd) == 1 && (!term || std::string_view(term) != "dumb");
}

int terminal_width(int fd, int otherwise) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const int64_t s = std::llround(seconds);
  if (s < 3600) return format("%d:%02d", static_cast<int>(s / 60), static_cast<int>(s % 60));
  if (s < 2 * 86400)
    return format("%d:%02d:%02d", static_cast<int>(s / 3600), static_cast<int>(s / 60 % 60),
                  static_cast<int>(s % 60));
  return format("%d d %02d h", static_cast<int>(s / 86400), static_cast<int>(s / 3600 % 24));
}

Progress::Progress(std::string description, int64_t total, ProgressSink sink, ProgressOptions options)
    : description_(std::move(description)),
      total_(total),
      sink_(std::move(sink)),
      options_(with_clock(std::move(options))),
      exceptions_(std::uncaught_exceptions()),
      done_(options_.first),
      began_(options_.began ? *options_.began : options_.seconds()),
      drawn_(began_),
      drawn_done_(done_),
      measured_(began_),
      measured_done_(done_) {
  if (sink_ && options_.terminal) write_bar(began_);
}

Progress::~Progress() {
  try {
    const int64_t done = this->done();
    end(std::uncaught_exceptions() == exceptions_ && (total_ <= 0 || done >= total_));
  } catch (...) {  // a sink that cannot write must not end the program
  }
}

void Progress::advance(int64_t by) {
  const std::lock_guard lock(mutex_);
  done_ += by;
  update(options_.seconds());
}

void Progress::set(int64_t done) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  update(options_.seconds());
}

void Progress::note(std::string text) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(text);
}

void Progress::say(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (!sink_) return;
  const bool bar = options_.terminal && !ended_;
  sink_(detail::concat(bar ? "\r\x1b[K" : "", line, '\n'));
  if (bar) write_bar(options_.seconds());
}

void Progress::finish() {
  end(true);
}

int64_t Progress::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

// Writes a line where one is due. The mutex is held.
void Progress::update(double now) {
  if (!sink_ || ended_) return;
  const double since = now - drawn_;
  if (options_.terminal) {
    if (since >= kRedraw) write_bar(now);
    return;
  }
  const bool percent_on = total_ <= 0 || std::abs(done_ - drawn_done_) >= (total_ + 99) / 100;
  if (since < (percent_on ? kPlain : kPlainAnyway)) return;
  measure(now);
  drawn_ = now;
  drawn_done_ = done_;
  sink_(detail::concat(plain_line(now), '\n'));
}

// The rate of late: an average whose weights fall off with age. The first stretch counts fully.
void Progress::measure(double now) {
  const double span = now - measured_;
  if (span <= 0) return;
  const double current = std::max(0.0, static_cast<double>(done_ - measured_done_) / span);
  const double weight = measured_ == began_ ? 1 : 1 - std::exp(-span / kMemory);
  rate_ += weight * (current - rate_);
  measured_ = now;
  measured_done_ = done_;
}

void Progress::write_bar(double now) {
  if (done_ != measured_done_) measure(now);
  drawn_ = now;
  drawn_done_ = done_;
  sink_(detail::concat('\r', bar_line(now), "\x1b[K"));
}

// The last line: what was done in what time, or where the job stopped.
void Progress::end(bool completed) {
  const std::lock_guard lock(mutex_);
  if (!sink_ || ended_) return;
  ended_ = true;
  const double took = options_.seconds() - began_;
  const int64_t here = done_ - options_.first;
  std::string line = description_ + ": " + (completed ? "" : "stopped at ") + counts();
  line += " in " + (took < 60 ? format("%.1f s", took) : duration_text(took));
  if (here > 0 && took > 0) line += ", " + rate_text(static_cast<double>(here) / took);
  if (!note_.empty()) line += ", " + note_;
  if (options_.terminal) {
    cut(line, std::max(options_.width - 1, 1));
    line = detail::concat('\r', line, "\x1b[K");
  }
  sink_(detail::concat(line, '\n'));
}

std::string Progress::counts() const {
  const auto done = static_cast<long long>(done_), total = static_cast<long long>(total_);
  if (total_ > 0) return format("%lld/%lld", done, total);
  return format("%lld ", done) + options_.unit;
}

std::string Progress::rate_text(double rate) const {
  if (rate >= 1 || rate <= 0) return format(rate < 100 ? "%.1f " : "%.0f ", rate) + options_.unit + "/s";
  return format("%.1f s/", 1 / rate) + options_.unit;
}

// "sampling: 40 %, 20/50, 3.1 step/s, 0:10 left, loss 0.12"
std::string Progress::plain_line(double now) const {
  std::string line = description_ + ": ";
  if (total_ > 0)
    line +=
        format("%d %%, ", static_cast<int>(100.0 * static_cast<double>(done_) / static_cast<double>(total_)));
  line += counts();
  if (rate_ > 0) line += ", " + rate_text(rate_);
  if (total_ > 0 && rate_ > 0 && done_ < total_)
    line += ", " +
            duration_text(std::max(0.0, static_cast<double>(total_ - done_) / rate_ - (now - measured_))) +
            " left";
  if (total_ <= 0) line += ", " + duration_text(now - began_);
  if (!note_.empty()) line += ", " + note_;
  return line;
}

// "sampling  40 %|████████            | 20/50, 3.1 step/s, 0:10 left": the plain line around a bar that takes
// the columns left over, or none where they are too few. One column stays free, lest the terminal wrap.
std::string Progress::bar_line(double now) const {
  constexpr int kLeast = 10, kMost = 40;
  std::string line = plain_line(now);
  const int width = std::max(options_.width - 1, 1);
  const int room = std::min(width - columns(line) - 2, kMost);
  if (total_ > 0 && room >= kLeast) {
    const double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    const int full = static_cast<int>(share * room);
    std::string bar = "|";
    for (int i = 0; i < room; ++i) bar += i < full ? "█" : " ";
    const size_t comma = line.find(", ", description_.size());
    line.replace(comma, 1, bar + "|");
  }
  cut(line, width);
  return line;
}

}  // namespace pom
