// TensorBoard's event files: records of protobuf messages, each with masked CRC-32C sums, appended and
// flushed one by one, so that what was written before a crash is readable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "pom/io/file_descriptor.h"

namespace pom::io {

class EventWriter {
 public:
  // A new file events.out.tfevents.<seconds>.<suffix> in a folder that exists, with .001, .002, … behind it
  // where there is one already. `seconds` is the wall time.
  EventWriter(const std::filesystem::path& folder, double seconds, std::string_view suffix = "pom");

  // Each is a record that is whole in the file, for whoever reads along, when the call returns. A failure is
  // a pom::Error, after which the file ends with the record before, and the next may be tried. TensorBoard
  // keeps scalars as floats; tags and texts are UTF-8.
  // What earlier files say of this step and later ones no longer holds: the run goes on from before it.
  void restart(std::int64_t step, double seconds);
  void scalar(std::string_view tag, double value, std::int64_t step, double seconds);
  void text(std::string_view tag, std::string_view text, std::int64_t step, double seconds);
  // A picture as the bytes of its PNG file.
  void image(std::string_view tag, std::span<const std::byte> png, int width, int height, std::int64_t step,
             double seconds);

  const std::filesystem::path& path() const { return path_; }

 private:
  void record(std::string_view event);

  std::filesystem::path path_;
  detail::FileDescriptor file_;
  std::uint64_t size_ = 0;  // of the whole records
};

// CRC-32C (Castagnoli), and as the record format masks it.
std::uint32_t crc32c(std::span<const std::byte> bytes);
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

}  // namespace pom::io
