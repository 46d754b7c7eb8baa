// A command line around the readers and writers of tar, npy, npz and WebDataset, for the referees of
// python/tests/test_webdataset.py. What is found is told as lines of JSON.
//
//   tar_tool members TAR                 name, type and CRC-32 of every member
//   tar_tool samples TAR                 key and fields, with the CRC-32 of each
//   tar_tool write TAR NAME FILE ...     a tar of files under these names
//   tar_tool npy FILE                    type, shape and elements, in C order
//   tar_tool save DESCR SIZES FILE NPY   elements as a .npy; SIZES as 2,3
//   tar_tool npz FILE MOST               every array; texts as texts
//   tar_tool expand PATTERN              names of shards
#include <fstream>
#include <iostream>
#include <span>
#include <sstream>

#include "pom/base/error.h"
#include "pom/io/crc32.h"
#include "pom/io/json_header.h"
#include "pom/io/npz.h"
#include "pom/io/webdataset.h"

namespace {

using namespace pom::io;

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

std::string quote(std::string_view text) {
  std::string out;
  detail::append_json_string(out, text);
  return out;
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

std::string bytes_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  pom::check(file.is_open(), path, ": cannot open");
  return {std::istreambuf_iterator<char>(file), {}};
}

void print_members(const char* path) {
  TarReader reader(path);
  for (const TarMember& member : reader.list())
    std::cout << "{\"name\":" << quote(member.name) << ",\"type\":" << quote(std::string(1, member.type))
              << ",\"size\":" << member.size << ",\"offset\":" << member.data
              << ",\"crc32\":" << crc32(reader.read(member, most_bytes)) << "}\n";
}

void print_samples(const char* path) {
  WebShard shard(path);
  for (WebSample sample; shard.next(sample);) {
    std::cout << "{\"key\":" << quote(sample.key) << ",\"fields\":{";
    const char* separator = "";
    for (const WebField& field : sample.fields) {
      std::cout << separator << quote(field.name) << ":" << crc32(shard.read(field, most_bytes));
      separator = ",";
    }
    std::cout << "}}\n";
  }
}

void write_tar(const char* path, std::span<char*> pairs) {
  TarWriter writer(path);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) writer.add(pairs[i], bytes_of(pairs[i + 1]));
  writer.finish();
}

void print_array(std::string_view name, const NpyArray& array) {
  const bool text = array.header.type == NpyType::text || array.header.type == NpyType::bytes;
  std::cout << "{\"name\":" << quote(name) << ",\"shape\":[";
  const char* separator = "";
  for (const std::int64_t side : array.header.shape) {
    std::cout << separator << side;
    separator = ",";
  }
  std::cout << "],";
  if (text)
    std::cout << "\"text\":" << quote(npy_text(array, name)) << "}\n";
  else
    std::cout << "\"descr\":" << quote(npy_descr(array.header.type)) << ",\"data\":\"" << hex(array.elements)
              << "\"}\n";
}

NpyType type_of(std::string_view descr) {
  for (int i = 0; i < 8; ++i)
    if (npy_descr(static_cast<NpyType>(i)) == descr) return static_cast<NpyType>(i);
  pom::fail("descr: ", descr);
}

void save_npy(std::span<char*> arguments) {
  std::vector<std::int64_t> shape;
  std::istringstream sizes(arguments[1]);
  for (std::string side; std::getline(sizes, side, ',');) shape.push_back(std::stoll(side));
  const std::string elements = bytes_of(arguments[2]);
  std::ofstream(arguments[3], std::ios::binary)
      << write_npy(type_of(arguments[0]), shape, std::as_bytes(std::span(elements)));
}

void print_npz(const char* path, const char* most) {
  const std::string file = bytes_of(path);
  const Npz npz(file, path, std::stoull(most));
  for (const Npz::Entry& entry : npz.entries()) print_array(entry.name, npz.read(entry.name));
}

int run(std::span<char*> arguments) {
  const std::string_view command = arguments.size() > 2 ? arguments[1] : "";
  if (command == "members") return print_members(arguments[2]), 0;
  if (command == "samples") return print_samples(arguments[2]), 0;
  if (command == "write") return write_tar(arguments[2], arguments.subspan(3)), 0;
  if (command == "npy") return print_array("npy", read_npy(bytes_of(arguments[2]), arguments[2])), 0;
  if (command == "save" && arguments.size() == 6) return save_npy(arguments.subspan(2)), 0;
  if (command == "npz" && arguments.size() == 4) return print_npz(arguments[2], arguments[3]), 0;
  if (command == "expand") {
    for (const std::string& name : expand_webdataset(arguments[2])) std::cout << name << "\n";
    return 0;
  }
  std::cerr << "usage: tar_tool members|samples|write|npy|save|npz|expand ...\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) try {
  return run({argv, static_cast<std::size_t>(argc)});
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
