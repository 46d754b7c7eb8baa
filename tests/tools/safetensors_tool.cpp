// A command line around the safetensors reader and writer, for referees that are not written in C++.
//
//   safetensors_tool check FILE ...     for each file "ok", its metadata and tensors as JSON lines, or the
//   kind of error safetensors_tool rewrite IN OUT     read with our reader, written with our writer
#include <iostream>
#include <span>

#include "pom/io/json_header.h"
#include "pom/io/safetensors.h"

namespace {

using namespace pom::io;

std::string quote(std::string_view text) {
  std::string out;
  detail::append_json_string(out, text);
  return out;
}

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const std::byte byte : bytes) {
    out += digits[std::to_integer<std::size_t>(byte >> 4)];
    out += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return out;
}

void print(const safetensors::Reader& reader) {
  if (const auto& metadata = reader.header().metadata()) {
    std::cout << "{\"metadata\":{";
    const char* separator = "";
    for (const auto& [key, text] : *metadata) {
      std::cout << separator << quote(key) << ':' << quote(text);
      separator = ",";
    }
    std::cout << "}}\n";
  }
  for (const safetensors::TensorInfo& tensor : reader.header().tensors()) {
    std::cout << "{\"name\":" << quote(tensor.name) << ",\"dtype\":" << quote(name(tensor.dtype))
              << ",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) std::cout << (i == 0 ? "" : ",") << tensor.shape[i];
    std::cout << "],\"data\":\"" << hex(reader.read(tensor.name).span()) << "\"}\n";
  }
}

// Both ways of reading have to come to the same verdict, whose name is printed first.
bool check(const char* path) try {
  const safetensors::Reader reader(path);
  safetensors::File::open(path);
  std::cout << "ok\n";
  print(reader);
  return true;
} catch (const SafetensorsError& error) {
  std::cout << name(error.kind()) << '\n';
  std::cerr << error.what() << '\n';
  return false;
}

int run(std::span<char*> arguments) {
  const std::string_view command = arguments.size() > 1 ? arguments[1] : "";
  if (command == "check" && arguments.size() > 2) {
    bool good = true;
    for (const char* path : arguments.subspan(2)) good &= check(path);
    return good ? 0 : 1;
  }
  if (command == "rewrite" && arguments.size() == 4) {
    const auto file = safetensors::File::open(arguments[2]);
    safetensors::write(arguments[3], file.tensors(), file.header().metadata());
    return 0;
  }
  std::cerr << "usage: safetensors_tool check FILE ... | rewrite IN OUT\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) try {
  return run({argv, static_cast<std::size_t>(argc)});
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
