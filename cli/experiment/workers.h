// Trainings of one experiment at the same time, each a process of its own: small networks leave most of a GPU
// idle, and one that waits for its kernels to be launched leaves all of it.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

#include "cli/signals.h"

namespace pom::cli::experiment {

// The program that this process runs, as words to start it once more: its file, or a Python with -m libpom.
std::vector<std::string> this_program();

class Workers {
 public:
  explicit Workers(std::int64_t most, const StopSignals& signals) : most_(most), signals_(signals) {}
  // Whoever is still at work is asked to stop, and waited for.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  bool full() const { return static_cast<std::int64_t>(running_.size()) >= most_; }
  bool idle() const { return running_.empty(); }

  // Words of a command, under a name that wait() gives back. The process has no terminal's signals, is asked
  // to stop when this one ends, however it ends, and writes to the same stderr.
  void start(const std::string& name, std::vector<std::string> words);

  struct Ended {
    std::string name;
    int status = 0;  // of exit, 128 + the signal of one that was killed
  };
  // The next one that ends. After a signal all are asked to stop.
  Ended wait();

 private:
  void stop_all();

  struct Process {
    pid_t id = 0;
    std::string name;
  };

  std::int64_t most_;
  const StopSignals& signals_;
  std::vector<Process> running_;
  bool asked_ = false;
};

}  // namespace pom::cli::experiment
