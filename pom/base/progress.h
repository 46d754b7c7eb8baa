// How far a long job is: a line that redraws itself on a terminal, now and then a plain line elsewhere.
// The library never prints by itself; it writes to the sink that the caller gives.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace pom {

using ProgressSink = std::function<void(std::string_view text)>;

// A sink that writes to a stream and flushes it. The stream must outlive the sink.
ProgressSink progress_sink(std::ostream& stream);

// Whether a person watches file descriptor fd (2: stderr) on a terminal that can redraw a line.
bool is_terminal(int fd);

// Columns of the terminal at fd, or `otherwise` where it is none.
int terminal_width(int fd, int otherwise = 80);

// Of a clock that never goes back, from some moment on.
double steady_seconds();

struct ProgressOptions {
  bool terminal = false;      // redraw one line (is_terminal(2)), or write plain lines
  int width = 80;             // columns of the terminal (terminal_width(2))
  std::string unit = "step";  // what is counted, in the singular: "3.1 step/s"
  int64_t first = 0;          // how much was done before, by a run now resumed: counted, but not in the rate
  std::function<double()> seconds = {};  // a clock that never goes back; steady_seconds where empty
  std::optional<double> began = {};      // when the job began, by that clock; now where empty
};

// Made at the start of a job and destroyed at its end. Where that comes early (an exception, a return), the
// last line says where the job stopped; finish() says that it is done. Every method may be called from any
// thread; the sink is called from one at a time and must not call back.
class Progress {
 public:
  // total is the count at the end; 0 where it isn't known. An empty sink makes every call do nothing.
  Progress(std::string description, int64_t total, ProgressSink sink, ProgressOptions options = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t by = 1);
  void set(int64_t done);           // to a count, which may also go back
  void note(std::string text);      // shown at the end of the line from now on: "loss 0.123"
  void say(std::string_view line);  // a line of its own, above the bar
  void finish();                    // the last line, once; later calls do nothing
  int64_t done() const;

 private:
  void update(double now);
  void measure(double now);
  void write_bar(double now);
  void end(bool completed);
  std::string bar_line(double now) const;
  std::string plain_line(double now) const;
  std::string counts() const;
  std::string rate_text(double rate) const;

  const std::string description_;
  const int64_t total_;
  const ProgressSink sink_;
  const ProgressOptions options_;
  const int exceptions_;  // in flight when the job began

  mutable std::mutex mutex_;
  int64_t done_;
  std::string note_;
  double began_, drawn_;   // when the job began and the last line was written
  int64_t drawn_done_;     // the count on that line
  double measured_;        // when the rate was last brought up to date,
  int64_t measured_done_;  // and the count then
  double rate_ = 0;        // counts a second, of late
  bool ended_ = false;
};

// "0:07", "12:05", "3:02:01", "4 d 03 h".
std::string duration_text(double seconds);

}  // namespace pom
