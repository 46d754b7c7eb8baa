// The safetensors format: named tensors in one file, read into owned memory, never mapped; written
// atomically.
//
//   8 bytes   N, the length of the header, little-endian
//   N bytes   JSON: {"__metadata__": {"key": "text", ...},                                   (optional)
//                    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//   the rest  the tensors' elements, little-endian, row-major, without gaps; offsets count from here
//
// The reader accepts nothing the reference implementation (huggingface/safetensors) refuses, and refuses what
// the format's text forbids and the reference lets pass; python/tests/test_safetensors.py lists those
// differences. The writer's bytes equal the reference's for equal input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pom/io/file_descriptor.h"
#include "pom/io/safetensors_error.h"

namespace pom::io {
class OpenFolder;
}

namespace pom::io::safetensors {

inline constexpr std::uint64_t max_header_bytes = 100'000'000;

// Spelled as in the format, and in its order: files are laid out from the last to the first, so that each
// tensor of whole bytes is aligned to its element.
enum class Dtype : std::uint8_t {
  BOOL,
  F4,  // two to a byte; shapes count elements, not bytes
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

inline constexpr std::size_t dtype_count = static_cast<std::size_t>(Dtype::U64) + 1;

std::string_view name(Dtype dtype);
std::optional<Dtype> dtype_named(std::string_view name);
unsigned bits(Dtype dtype);  // of one element

// Bits in a tensor; nothing when the product, taken from the left, passes 2^64 or a dimension is negative.
std::optional<std::uint64_t> bit_count(Dtype dtype, std::span<const std::int64_t> shape);

// Text about the file as a whole, in the order of the file.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// A tensor in the header. The offsets count from the start of the data.
struct TensorInfo {
  std::string name;
  Dtype dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin;
  std::uint64_t end;

  std::uint64_t bytes() const { return end - begin; }
};

// A tensor's description and elements, owned by somebody else.
struct TensorView {
  std::string_view name;
  Dtype dtype;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> data;
};

// What a file contains, validated: every byte of the data belongs to exactly one tensor.
class Header {
 public:
  // In the order of the data.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Null, or the tensor of that name.
  const TensorInfo* find(std::string_view name) const;
  // The tensor of that name, or NoSuchTensor.
  const TensorInfo& at(std::string_view name) const;

  // Nothing where the file has no "__metadata__"; the format tells that apart from an empty one.
  const std::optional<Metadata>& metadata() const { return metadata_; }
  // Null, or the text under that key.
  const std::string* find_metadata(std::string_view key) const;

  // Where the data starts in the file, and how long it is.
  std::uint64_t data_start() const { return data_start_; }
  std::uint64_t data_bytes() const { return data_bytes_; }

 private:
  friend class HeaderParser;
  Header() = default;

  std::string file_;  // for messages
  std::vector<TensorInfo> tensors_;
  std::vector<std::size_t> by_name_;  // indices into tensors_, sorted by name
  std::optional<Metadata> metadata_;
  std::uint64_t data_start_ = 0;
  std::uint64_t data_bytes_ = 0;
};

// Uninitialised memory that starts at a multiple of 64 bytes.
class Buffer {
 public:
  static constexpr std::size_t alignment = 64;

  Buffer() = default;
  explicit Buffer(std::size_t size);

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

// An open file of which only the header has been read. Reading is const and may be done from many threads.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path);
  // A file within a folder that is held open.
  Reader(const OpenFolder& folder, const std::string& name);

  const std::string& file() const { return file_; }  // its path, for messages
  const Header& header() const { return *header_; }
  // Every byte before the data, as it was read.
  std::string_view head() const { return head_; }
  // The elements of one tensor, into memory of exactly its size.
  void read(const TensorInfo& tensor, std::span<std::byte> into) const;
  Buffer read(std::string_view name) const;

 private:
  Reader(detail::FileDescriptor descriptor, std::string file);
  void read_at(std::uint64_t offset, std::span<std::byte> into) const;

  std::string file_;
  detail::FileDescriptor descriptor_;
  std::string head_;
  std::optional<Header> header_;
};

Header read_header(const std::filesystem::path& path);

// A whole file in memory. Every tensor starts at a multiple of 64 bytes, however it lies in the file.
class File {
 public:
  static File open(const std::filesystem::path& path);
  // The same from the bytes of a file, which are copied; `source` stands for the path in messages.
  static File parse(std::span<const std::byte> bytes, std::string_view source = "<memory>");

  const Header& header() const { return header_; }
  // In the order of the data. The views live as long as the file, also when it is moved.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // The tensor of that name, or NoSuchTensor.
  const TensorView& at(std::string_view name) const;

 private:
  using Fill = std::function<void(const TensorInfo&, std::span<std::byte>)>;
  File(Header header, std::string_view source, const Fill& fill);

  Header header_;
  Buffer memory_;
  std::vector<TensorView> tensors_;  // one per header_.tensors()
};

// Writes the tensors through an AtomicFile, in the reference's order (dtype from the last to the first, then
// name). Refuses names that are repeated, reserved or not UTF-8, and data whose size is not the shape's.
void write(const std::filesystem::path& path, std::span<const TensorView> tensors,
           const std::optional<Metadata>& metadata = std::nullopt);

// The same bytes in memory.
std::vector<std::byte> serialize(std::span<const TensorView> tensors,
                                 const std::optional<Metadata>& metadata = std::nullopt);

}  // namespace pom::io::safetensors
