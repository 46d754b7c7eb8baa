// Private to the room: where the bytes of a clip go. Whole at the end, or at once into a file, pipe or
// device.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pom/io/atomic_file.h"
#include "pom/io/file_descriptor.h"

namespace pom::io::detail {

// Throws ClosedPipe where nobody reads any more, without the signal that would end the program.
void write_to(int descriptor, std::span<const std::byte> bytes, const std::string& name);

class ClipSink {
 public:
  // Whether `path` may only grow: what is there is no regular file.
  static bool must_grow(const std::filesystem::path& path);

  ClipSink(const std::filesystem::path& path, bool growing);
  ClipSink(int descriptor, std::string name);  // not closed
  // Grows, into the hands of the caller.
  explicit ClipSink(std::function<void(std::span<const std::byte>)> take) : take_(std::move(take)) {}

  bool growing() const { return !file_; }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void finish();

  // Only of a sink that does not grow, whose bytes wait in memory till the end: formats whose heads are known
  // last go back. What lies between the end and a place beyond it becomes zeros.
  void seek(std::size_t place);
  std::size_t place() const { return place_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::string name_;
  std::optional<AtomicFile> file_;
  std::vector<std::byte> bytes_;
  std::size_t place_ = 0;
  FileDescriptor own_;
  int descriptor_ = -1;
  std::function<void(std::span<const std::byte>)> take_;
};

}  // namespace pom::io::detail
