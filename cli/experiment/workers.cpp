#include "cli/experiment/workers.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "pom/base/error.h"

namespace pom::cli::experiment {
namespace {

constexpr auto pause_between_looks = std::chrono::milliseconds(20);
constexpr int not_started = 127;

// In the new process, where nothing but system calls is allowed. Results go nowhere: files are what counts.
[[noreturn]] void become(char* const* words, pid_t parent, const sigset_t& signals) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(not_started);  // it ended before it could be asked
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere >= 0) ::dup2(nowhere, 0), ::dup2(nowhere, 1);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::execv(words[0], words);
  ::_exit(not_started);
}

int exit_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::vector<std::string> this_program() {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::read_symlink("/proc/self/exe", error);
  check(!error, "--jobs: /proc/self/exe: ", error.message());
  if (file.filename().string().starts_with("python")) {  // which may be that of a virtual environment
    const char* own = std::getenv("LIBPOM_PYTHON");
    return {own ? std::string(own) : file.string(), "-m", "libpom"};
  }
  return {file.string()};
}

Workers::~Workers() {
  stop_all();
  for (const Process& process : running_) ::waitpid(process.id, nullptr, 0);
}

void Workers::start(const std::string& name, std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // none is lost between the handler here and the one there
  const pid_t parent = ::getpid(), id = ::fork();
  if (id == 0) become(arguments.data(), parent, before);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  check(id >= 0, "--jobs: another process cannot be started: ", std::strerror(errno));
  running_.push_back({id, name});
}

Workers::Ended Workers::wait() {
  check(!running_.empty(), "experiment: expected a process to wait for, got none; this is a bug");
  while (true) {
    if (signals_.asked().load()) stop_all();
    for (auto process = running_.begin(); process != running_.end(); ++process) {
      int status = 0;
      const pid_t ended = ::waitpid(process->id, &status, WNOHANG);
      if (ended == 0) continue;
      const Ended result{process->name, ended == process->id ? exit_status(status) : not_started};
      running_.erase(process);
      return result;
    }
    std::this_thread::sleep_for(pause_between_looks);
  }
}

// Once: a second signal would end them before they have saved.
void Workers::stop_all() {
  if (std::exchange(asked_, true)) return;
  for (const Process& process : running_) ::kill(process.id, SIGTERM);
}

}  // namespace pom::cli::experiment
