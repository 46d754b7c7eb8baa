#include "pom/serve/owners.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/io/file_descriptor.h"
#include "pom/io/sha256.h"
#include "pom/serve/pictures.h"

namespace pom::serve {
namespace {

namespace fs = std::filesystem;

std::string read_salt(const fs::path& path) {
  const io::detail::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.is_open()) return {};
  std::string salt(32, '\0');
  const ssize_t count = ::read(file.get(), salt.data(), salt.size());
  check(count == std::ssize(salt) && is_id(salt), path.string(),
        ": expected 32 hexadecimal digits, got something else: without it, what was made before is nobody's");
  return salt;
}

// Whole or not at all. On a disk that is full or cannot be written to it is this run's alone: what is made is
// nobody's after it, and no reason not to start.
std::string made_salt(const fs::path& path) {
  const std::string salt = random_id();
  const fs::path whole = path.string() + "." + salt;
  {
    const io::detail::FileDescriptor file(
        ::open(whole.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    const bool written = file.is_open() &&
                         ::write(file.get(), salt.data(), salt.size()) == std::ssize(salt) &&
                         ::fsync(file.get()) == 0;
    if (written) ::link(whole.c_str(), path.c_str());
  }
  ::unlink(whole.c_str());
  const std::string there = read_salt(path);  // another server may have been the first
  return there.empty() ? salt : there;
}

}  // namespace

Owners::Owners(const fs::path& folder) {
  if (folder.empty()) {
    salt_ = random_id();
    return;
  }
  fs::create_directories(folder);
  const fs::path path = folder / "owners.salt";
  salt_ = read_salt(path);
  if (salt_.empty()) salt_ = made_salt(path);
}

std::string Owners::of(const std::string& client) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = known_.find(client); found != known_.end()) return found->second;
  constexpr int rounds = 1024;  // who tries keys has to work for each
  constexpr std::size_t most = 4096;
  io::Sha256 hash;
  hash.update(salt_);
  hash.update(client);
  for (int i = 0; i < rounds; ++i) {
    const io::Sha256::Digest last = hash.digest();
    hash = io::Sha256();
    hash.update(salt_);
    hash.update(last);
  }
  if (known_.size() >= most) known_.clear();
  return known_[client] = hash.hex().substr(0, 32);
}

}  // namespace pom::serve
