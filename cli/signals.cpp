#include "cli/signals.h"

#include <string_view>
#include <unistd.h>

namespace pom::cli {
namespace {

std::atomic<bool> stop_asked = false;
std::atomic<int> stop_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void ask_to_stop(int signal) {
  stop_signal = signal;
  stop_asked = true;
  if (signal == SIGHUP) return;  // nobody reads any more
  constexpr std::string_view text = "\nstopping at the next step; once more ends at once\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

StopSignals::StopSignals() {
  stop_asked = false;
  struct sigaction action = {};
  action.sa_handler = ask_to_stop;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second one meets the default, which ends the program
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &interrupt_before_);
  ::sigaction(SIGTERM, &action, &terminate_before_);
  // A closed terminal may say so twice, the shell and the system, and means it once. Under nohup it is
  // ignored, and stays so.
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGHUP, nullptr, &hangup_before_);
  if (hangup_before_.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &interrupt_before_, nullptr);
  ::sigaction(SIGTERM, &terminate_before_, nullptr);
  ::sigaction(SIGHUP, &hangup_before_, nullptr);
}

const std::atomic<bool>& StopSignals::asked() const {
  return stop_asked;
}

int StopSignals::exit_code() const {
  return 128 + stop_signal;
}

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace pom::cli
