// Fuzzes the safetensors parser. Any input may be refused; one that is accepted must come back equal when it
// is written and read again, and must then be written in the same bytes.
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <cstdint>
#include <vector>

#include "pom/io/safetensors.h"

namespace {

using namespace pom::io;

using namespace fuzz;

bool equal(const safetensors::TensorView& a, const safetensors::TensorView& b) {
  return a.name == b.name && a.dtype == b.dtype && std::ranges::equal(a.shape, b.shape) &&
         std::ranges::equal(a.data, b.data);
}

void check_accepted(const safetensors::File& file) {
  std::uint64_t bytes = 0;
  for (const safetensors::TensorView& tensor : file.tensors()) {
    bytes += tensor.data.size();
    require(reinterpret_cast<std::uintptr_t>(tensor.data.data()) % 64 == 0, "tensors are aligned");
  }
  require(bytes == file.header().data_bytes(), "tensors are all of the data");

  const std::vector<std::byte> written = safetensors::serialize(file.tensors(), file.header().metadata());
  const auto again = safetensors::File::parse(written);
  require(again.tensors().size() == file.tensors().size(), "as many tensors");
  require(again.header().metadata() == file.header().metadata(), "the same metadata");
  for (const safetensors::TensorView& tensor : file.tensors())
    require(equal(tensor, again.at(tensor.name)) && equal(tensor, file.at(tensor.name)), "the same tensor");
  require(safetensors::serialize(again.tensors(), again.header().metadata()) == written, "the same bytes");
}

void parse(Bytes bytes) try {
  check_accepted(safetensors::File::parse(bytes));
} catch (const SafetensorsError& error) {
  require(name(error.kind()) != "unknown" && error.what()[0] != '\0', "errors say what is wrong");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  parse(bytes);
  if (size > 8) parse(with_whole_header(bytes));
  return 0;
}
