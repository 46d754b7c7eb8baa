// Private to the room: a whole file of ordinary size in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "pom/io/file_descriptor.h"

namespace pom::io::detail {

// A regular file, open for reading. Errors begin with `operation` and the path.
FileDescriptor open_for_reading(const std::filesystem::path& path, std::string_view operation);

// The same of what the system's open() has given, or -1 and errno; `name` is for messages.
FileDescriptor regular_file(int descriptor, std::string_view name, std::string_view operation);

// What the file holds; more than `most` bytes are an error.
std::vector<std::byte> read_file(const std::filesystem::path& path, std::string_view operation,
                                 std::uint64_t most = std::uint64_t{1} << 32);
std::vector<std::byte> read_file(const FileDescriptor& file, std::string_view name,
                                 std::string_view operation, std::uint64_t most);

}  // namespace pom::io::detail
