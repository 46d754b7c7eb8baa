// Fuzzes the reader of .npy. An array of numbers that is accepted comes back equal when it is written and
// read again.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/io/npy.h"

namespace {

using namespace pom::io;

void parse(std::string_view file) {
  NpyArray array;
  if (!fuzz::accepted([&] { array = read_npy(file, "fuzz"); })) return;
  fuzz::require(array.elements.size() == array.header.bytes(), "all elements");
  if (array.header.type == NpyType::text || array.header.type == NpyType::bytes) {
    fuzz::accepted([&] { npy_text(array, "fuzz"); });
    return;
  }
  const std::string written =
      write_npy(array.header.type, array.header.shape, std::as_bytes(std::span(array.elements)));
  const NpyArray again = read_npy(written, "again");
  fuzz::require(again.elements == array.elements && again.header.shape == array.header.shape,
                "the same array");
}

// With the length of the header up to its newline, so that changes of the text get past the frame.
std::string with_length(std::string_view file) {
  std::string bytes(file);
  const std::size_t end = bytes.find('\n', 10);
  if (end == std::string::npos || end > 60000) return bytes;
  bytes.replace(0, 8, std::string("\x93NUMPY\x01\0", 8));
  bytes[8] = static_cast<char>((end - 9) & 255);
  bytes[9] = static_cast<char>((end - 9) >> 8);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file = fuzz::text_of(data, size);
  parse(file);
  if (size > 10) parse(with_length(file));
  return 0;
}
