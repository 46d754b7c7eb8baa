// What the fuzz targets have in common. Any input may be refused with a pom::Error; whatever is accepted has
// to keep what require() says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "pom/base/error.h"

namespace fuzz {

using Bytes = std::span<const std::byte>;

inline void require(bool ok, const char* what) {
  if (ok) return;
  std::cerr << "fuzz: not so: " << what << '\n';
  std::abort();
}

// Runs a step that may refuse; false where it did.
template <class Step>
bool accepted(Step step) try {
  step();
  return true;
} catch (const pom::Error& error) {
  require(error.what()[0] != '\0', "errors say what is wrong");
  return false;
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A file for readers that want a path, in memory and of this process alone.
class MemoryFile {
 public:
  std::filesystem::path put(Bytes bytes) {
    require(::ftruncate(descriptor_, 0) == 0 &&
                ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
            "a file in memory can be written");
    return "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  int descriptor_ = ::memfd_create("fuzz", MFD_CLOEXEC);
};

// A folder for readers that want one, gone at the end.
class Folder {
 public:
  Folder() {
    const bool in_memory = std::filesystem::exists("/dev/shm");
    const auto place = in_memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string name = (place / "pom-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "a folder can be made");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void put(const char* name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

// A safetensors file with a length that ends the header at its last brace: so changes of the text get past
// the frame.
inline std::vector<std::byte> with_whole_header(Bytes bytes) {
  std::vector<std::byte> result(bytes.begin(), bytes.end());
  const auto brace = std::find(result.rbegin(), result.rend() - 8, std::byte{'}'});
  const auto length = static_cast<std::uint64_t>(result.rend() - 8 - brace);
  for (std::size_t i = 0; i < 8; ++i) result[i] = static_cast<std::byte>(length >> (8 * i));
  return result;
}

}  // namespace fuzz
