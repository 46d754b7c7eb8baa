#include "cli/ranks_launch.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <unistd.h>

#include <c10/core/Device.h>

#include "cli/command.h"
#include "pom/parallel/ranks.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

// The file that a function of ours or of torch was loaded from.
template <class Function>
fs::path library_of(Function* function) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(function), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  return fs::weakly_canonical(info.dli_fname, error);
}

// The Python whose torch this program runs on, lib/python3.11/site-packages/torch/lib in it; else the one
// that is found by its name.
std::string python() {
  if (const char* named = std::getenv("LIBPOM_PYTHON")) return named;
  using Text = std::string (c10::Device::*)() const;
  const Text text = &c10::Device::str;
  void* address = nullptr;
  std::memcpy(&address, &text, sizeof address);
  Dl_info info{};
  if (::dladdr(address, &info) != 0 && info.dli_fname) {
    std::error_code error;
    fs::path prefix = fs::weakly_canonical(info.dli_fname, error);
    for (int up = 0; up < 6; ++up) prefix = prefix.parent_path();  // libc10.so, lib, torch, site-packages, …
    if (fs::exists(prefix / "bin" / "python3", error)) return (prefix / "bin" / "python3").string();
  }
  return "python3";
}

// Where the package libpom lies, for this library: around it as installed, or in the tree it was built in.
fs::path package_folder(const fs::path& library) {
  std::error_code error;
  const fs::path installed = library.parent_path().parent_path();  // libpom/lib/libpom.so
  if (fs::exists(installed / "__main__.py", error)) return installed.parent_path();
  const fs::path tree = library.parent_path().parent_path().parent_path();  // build/release/libpom.so
  if (fs::exists(tree / "python" / "libpom" / "__main__.py", error)) return tree / "python";
  return {};
}

std::vector<std::string>& command_words() {
  static std::vector<std::string> words;
  return words;
}

[[noreturn]] void become_torchrun(std::int64_t ranks, const std::vector<std::string>& words) {
  const fs::path library = library_of(&parallel::world);
  if (!library.empty()) ::setenv("LIBPOM_LIBRARY", library.c_str(), 1);
  if (const fs::path folder = package_folder(library); !folder.empty()) {
    const char* before = std::getenv("PYTHONPATH");
    ::setenv("PYTHONPATH", (folder.string() + (before ? std::string(":") + before : "")).c_str(), 1);
  }
  const std::string interpreter = python();
  std::vector<std::string> all = {interpreter,
                                  "-m",
                                  "torch.distributed.run",
                                  "--standalone",
                                  "--nproc-per-node",
                                  std::to_string(ranks),
                                  "-m",
                                  "libpom"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(interpreter.c_str(), arguments.data());
  fail("--gpus: ", interpreter, " cannot be started: ", std::strerror(errno),
       "; LIBPOM_PYTHON names the Python that has torch and libpom");
}

}  // namespace

void remember_command(int argc, char** argv) {
  command_words().assign(argv + (argc > 0 ? 1 : 0), argv + argc);
}

std::vector<std::string> without_gpus(std::vector<std::string> words) {
  const std::string flag = "--gpus";
  for (auto word = words.begin(); word != words.end();) {
    if (*word == flag && word + 1 != words.end())
      word = words.erase(word, word + 2);
    else if (word->starts_with(flag + "="))
      word = words.erase(word);
    else
      ++word;
  }
  return words;
}

void on_ranks(std::int64_t gpus) {
  if (gpus > 0 && parallel::world().alone()) become_torchrun(gpus, without_gpus(command_words()));
}

}  // namespace pom::cli
