// NumPy's .npz: a zip of .npy files, stored or deflated, as numpy.savez and savez_compressed write it. Read
// from memory. What a member takes is known, and refused where it is too much, before memory is taken for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pom/io/npy.h"

namespace pom::io {

inline constexpr std::uint64_t max_npz_entries = 65536;

// Whether this build has zlib, without which deflated members cannot be read.
bool npz_inflates();

class Npz {
 public:
  struct Entry {
    std::string name;  // without ".npy"
    bool deflated = false;
    std::uint32_t crc = 0;
    std::uint64_t packed = 0, size = 0;  // bytes in the file, and of the member
    std::uint64_t header = 0;            // where its local header begins
  };

  // The file has to outlive it. All members together may have `most` bytes. Errors begin with `site`.
  Npz(std::string_view file, std::string site, std::uint64_t most);

  const std::vector<Entry>& entries() const { return entries_; }
  // Null, or the member of that name.
  const Entry* find(std::string_view name) const;
  // The array of that name, its CRC checked.
  NpyArray read(std::string_view name) const;
  // The bytes of a member, likewise.
  std::string bytes(const Entry& entry) const;
  // Those of one that is stored and not deflated, where they lie in the file; its CRC is not looked at.
  std::string_view stored(const Entry& entry) const;

 private:
  void read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count);
  std::string_view packed(const Entry& entry) const;
  std::string where(const Entry& entry) const;

  std::string_view file_;
  std::string site_;
  std::vector<Entry> entries_;
};

// The bytes of such a file: .npy files by the names of their arrays, stored. At most 4 GiB in all.
std::string write_npz(const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace pom::io
