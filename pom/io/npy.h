// NumPy's .npy: one array. Versions 1 to 3 are read, version 1 is written, byte for byte as numpy.save does.
//
//   6 bytes  "\x93NUMPY"
//   2 bytes  version
//   2 or 4   N, the length of the header, little-endian (4 from version 2 on)
//   N bytes  a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//   the rest the elements
//
// Arrays of objects are pickles, which are programs: they are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::io {

enum class NpyType : std::uint8_t {
  boolean,  // |b1, a byte each
  int8,
  uint8,
  int32,
  int64,
  half,  // <f2
  single,
  real,   // <f8
  text,   // <U7: texts of 7 characters of 4 bytes, zeros after the end
  bytes,  // |S7
};

inline constexpr std::size_t max_npy_header = std::size_t{64} << 10;
inline constexpr std::size_t max_npy_dimensions = 32;

struct NpyHeader {
  NpyType type = NpyType::single;
  std::size_t element = 4;          // bytes of one
  bool fortran = false;             // the first index changes fastest
  std::vector<std::int64_t> shape;  // empty: one number
  std::size_t data = 0;             // where the elements begin
  std::uint64_t count = 1;          // of elements

  std::uint64_t bytes() const { return count * element; }
};

// '<f4' of a type of numbers.
std::string_view npy_descr(NpyType type);
std::size_t npy_element(NpyType type);  // bytes of a number
// "(2, 3)"
std::string npy_shape_text(std::span<const std::int64_t> shape);

// The header of a whole file, whose size must be what it says. Errors begin with `site`.
NpyHeader parse_npy(std::string_view file, std::string_view site);

// An array with its elements in C order (the last index changes fastest).
struct NpyArray {
  NpyHeader header;
  std::string elements;

  std::string_view view() const { return elements; }
};
NpyArray read_npy(std::string_view file, std::string_view site);

// A file at `path` of at most `most` bytes.
NpyArray read_npy_file(const std::filesystem::path& path, std::uint64_t most);

// The one text of an array of texts, as UTF-8.
std::string npy_text(const NpyArray& array, std::string_view site);

// What stands before the elements in a file of numbers in C order.
std::string npy_head(NpyType type, std::span<const std::int64_t> shape);

// A file of numbers in C order.
std::string write_npy(NpyType type, std::span<const std::int64_t> shape, std::span<const std::byte> elements);

}  // namespace pom::io
