// What `pom doctor` finds out: each check has a state, a text and, where it is not well, what to do.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace pom::cli {

enum class State { ok, note, problem };

struct Check {
  std::string subject;
  State state = State::ok;
  std::string text;
  std::string fix = {};  // or the reason to leave it
};

// Runs one check; what it throws is a problem with this fix.
Check guarded(const std::string& subject, const std::string& fix, const std::function<std::string()>& work);

// Of the NVIDIA driver, "580.159.04"; empty where there is none.
std::string driver_version();

// What is known of GPUs, and what follows from it.
struct GpuFacts {
  std::string driver = {};  // its version; empty where there is none
  bool torch_has_cuda = false;
  int count = 0;          // that torch finds
  std::string name = {};  // of the first, where it is known
  bool kernels = false;   // whether libpom's own are part of this build
};
Check check_gpu(const GpuFacts& facts);

// The build, the processor and what runs on it, memory, libraries, terminal, disk.
std::vector<Check> check_machine();
// config.json, every tensor, and one step of sampling; the first problem ends it.
std::vector<Check> check_model(const std::filesystem::path& folder);

}  // namespace pom::cli
