// Fuzzes the reader of .npz. However it is packed, no member takes more than was allowed.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/io/crc32.h"
#include "pom/io/npz.h"

namespace {

using namespace pom::io;

constexpr std::uint64_t allowed = 1 << 20;

void parse(std::string_view file) {
  fuzz::accepted([&] {
    const Npz npz(file, "fuzz", allowed);
    std::uint64_t total = 0;
    for (const Npz::Entry& entry : npz.entries()) {
      total += entry.size;
      fuzz::require(npz.find(entry.name) == &entry, "found by its name");
      fuzz::accepted([&] {
        const std::string bytes = npz.bytes(entry);
        fuzz::require(bytes.size() == entry.size && crc32(bytes) == entry.crc, "as it says");
        npz.read(entry.name);
      });
    }
    fuzz::require(total <= allowed, "no more than was allowed");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::text_of(data, size));
  return 0;
}
