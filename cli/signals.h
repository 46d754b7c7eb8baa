// Ctrl-C, SIGTERM and SIGHUP (a terminal that was closed) during a long job: the first asks it to stop at the
// next step, a second Ctrl-C or SIGTERM ends the program.
#pragma once

#include <atomic>
#include <csignal>

namespace pom::cli {

// From construction to destruction; one at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  const std::atomic<bool>& asked() const;
  int exit_code() const;  // 128 + the signal

 private:
  struct sigaction interrupt_before_, terminate_before_, hangup_before_;
};

// A closed pipe and a file too large are errors of writing, told like the others, and no reason to die.
void ignore_write_signals();

}  // namespace pom::cli
