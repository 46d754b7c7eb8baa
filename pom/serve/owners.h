// Whose something is over a restart: a name for each client that tells nobody its key or address, to be kept
// in a file. Only with the folder's salt, and by trying, could one find out who a name stands for.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>

namespace pom::serve {

class Owners {
 public:
  // The salt is in the folder, in a file that nobody else may read; made where there is none. Without a
  // folder it is this run's.
  explicit Owners(const std::filesystem::path& folder = {});

  // From any thread.
  std::string of(const std::string& client);  // 32 hexadecimal digits; the first time it takes a millisecond

 private:
  std::string salt_;
  std::mutex mutex_;
  std::map<std::string, std::string> known_;
};

}  // namespace pom::serve
