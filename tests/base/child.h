// A child of the test's process in which a failpoint is set: how it ended, and what it threw. The parent must
// not have met a failpoint before, or the child knows its plan: what tests prepare, they write by other
// means.
#pragma once

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pom/base/error.h"

namespace pom::testing {

struct Ending {
  bool killed = false;  // by SIGKILL
  int code = -1;        // 0: all was well; 1: a pom::Error; 2: anything else
  std::string error;
  long peak_mib = 0;  // of memory, with what the parent had when it began
};

template <class Action>
int run_and_tell(Action action, int pipe) {
  std::string text;
  int code = 0;
  try {
    action();
  } catch (const Error& error) {
    code = 1;
    text = error.what();
  } catch (const std::exception& error) {
    code = 2;
    text = error.what();
  }
  const bool told = ::write(pipe, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return told ? code : 2;
}

template <class Action>
Ending in_child(const char* failpoint, Action action) {
  Ending ending;
  std::array<int, 2> ends;
  if (::pipe(ends.data()) != 0) return ending;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("POM_FAILPOINT", failpoint, 1);
    ::_exit(run_and_tell(action, ends[1]));
  }
  ::close(ends[1]);
  std::array<char, 4096> piece;
  for (ssize_t size; (size = ::read(ends[0], piece.data(), piece.size())) > 0;)
    ending.error.append(piece.data(), static_cast<std::size_t>(size));
  ::close(ends[0]);
  int status = 0;
  struct rusage used;
  if (child < 0 || ::wait4(child, &status, 0, &used) != child) return ending;
  ending.peak_mib = used.ru_maxrss / 1024;
  ending.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (WIFEXITED(status)) ending.code = WEXITSTATUS(status);
  return ending;
}

}  // namespace pom::testing
