// What main.cpp knows of a subcommand: its words, its flags, and what it does. One file per subcommand
// defines one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/error.h"

namespace pom::cli {

class Flags;

// What the program returns. Stopped by a signal, it returns 128 + the signal: 130 after Ctrl-C, 143 after
// SIGTERM, 129 after SIGHUP.
enum Exit : int { ok = 0, failed = 1, usage = 2 };

// A mistake in what was asked for, not in doing it.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Runs what finds a person's mistakes: its errors are errors of usage.
template <class Work>
auto as_usage(Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

using Action = std::function<int()>;

struct Command {
  std::string name;
  std::string summary;                    // one line, for the list of commands
  std::string usage;                      // what follows "Usage: "
  std::string about;                      // a paragraph or two for --help
  std::string examples;                   // one command a line, each ready to run
  std::function<Action(Flags&)> declare;  // its flags, and what to do once they are parsed
};

Command sample_command();
Command serve_command();
Command reproduce_command();
Command train_command();
Command plan_command();
Command eval_command();
Command dataset_command();
Command encode_command();
Command bench_command();
Command experiment_command();
Command export_command();
Command convert_command();
Command info_command();
Command doctor_command();

}  // namespace pom::cli
