// Fuzzes the safetensors parser. Any input may be refused; one that is accepted must come back equal when it
// is written and read again, and must then be written in the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <vector>

#include "pom/io/safetensors.h"

namespace {

using namespace pom::io;

using Bytes = std::span<const std::byte>;

void require(bool ok, const char* what) {
  if (ok) return;
  std::cerr << "fuzz: not so: " << what << '\n';
  std::abort();
}

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

// The input with a length that ends the header at its last brace: so changes of the text get past the frame.
std::vector<std::byte> reframed(Bytes bytes) {
  std::vector<std::byte> result(bytes.begin(), bytes.end());
  const auto brace = std::find(result.rbegin(), result.rend() - 8, std::byte{'}'});
  const auto length = static_cast<std::uint64_t>(result.rend() - 8 - brace);
  for (std::size_t i = 0; i < 8; ++i) result[i] = static_cast<std::byte>(length >> (8 * i));
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  parse(bytes);
  if (size > 8) parse(reframed(bytes));
  return 0;
}
