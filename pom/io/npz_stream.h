// A .npz that is written array after array, piece by piece, in constant memory: for more pictures than memory
// holds. Members are stored, sizes have 64 bits (zip64), and the file appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "pom/io/atomic_file.h"
#include "pom/io/npy.h"

namespace pom::io {

// NpzStream file("samples.npz"); file.begin("arr_0", NpyType::uint8, shape); file.add(bytes); file.add(…);
// file.begin("arr_1", …); file.add(…); file.commit();
class NpzStream {
 public:
  explicit NpzStream(const std::filesystem::path& path) : file_(path) {}

  // The array before it has to be whole.
  void begin(const std::string& name, NpyType type, std::span<const std::int64_t> shape);
  void add(std::span<const std::byte> elements);  // in C order
  void commit();

  std::uint64_t missing() const { return missing_; }  // bytes of the array that is being written

 private:
  struct Member {
    std::string name;  // with ".npy"
    std::uint64_t size = 0, header = 0;
    std::uint32_t crc = 0;
  };
  void put(std::string_view bytes);
  void end_member();

  AtomicFile file_;
  std::vector<Member> members_;
  std::uint64_t written_ = 0, missing_ = 0;
};

}  // namespace pom::io
