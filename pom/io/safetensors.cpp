// Dtypes, look-up by name, and reading: only the header, single tensors, or the whole file.
#include "pom/io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <sys/stat.h>
#include <unistd.h>

#include "pom/io/folder_swap.h"
#include "pom/io/read_file.h"
#include "pom/io/safetensors_header.h"

namespace pom::io::safetensors {

static_assert(std::endian::native == std::endian::little, "tensors are handed out as they lie in the file");

namespace {

using Kind = SafetensorsError::Kind;

struct DtypeEntry {
  std::string_view name;
  unsigned bits;
};

// In the order of Dtype.
constexpr std::array<DtypeEntry, dtype_count> dtypes = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

detail::Site reading(std::string_view file) {
  return {"safetensors read", std::string(file)};
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

constexpr std::uint64_t align_up(std::uint64_t offset) {
  return (offset + Buffer::alignment - 1) / Buffer::alignment * Buffer::alignment;
}

Buffer allocate(std::uint64_t bytes, std::string_view file) try {
  if (bytes > std::numeric_limits<std::size_t>::max()) throw std::bad_alloc();
  return Buffer(static_cast<std::size_t>(bytes));
} catch (const std::bad_alloc&) {
  fail("safetensors read: ", file, ": expected memory for ", bytes,
       " bytes of tensors, got none from the system");
}

}  // namespace

std::string_view name(Dtype dtype) {
  return dtypes[static_cast<std::size_t>(dtype)].name;
}

unsigned bits(Dtype dtype) {
  return dtypes[static_cast<std::size_t>(dtype)].bits;
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i].name == name) return static_cast<Dtype>(i);
  return std::nullopt;
}

std::optional<std::uint64_t> bit_count(Dtype dtype, std::span<const std::int64_t> shape) {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count))
      return std::nullopt;
  if (__builtin_mul_overflow(count, std::uint64_t{bits(dtype)}, &count)) return std::nullopt;
  return count;
}

const TensorInfo* Header::find(std::string_view name) const {
  const auto place =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::size_t index, std::string_view n) { return tensors_[index].name < n; });
  if (place == by_name_.end() || tensors_[*place].name != name) return nullptr;
  return &tensors_[*place];
}

const TensorInfo& Header::at(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  // Tensors are named by paths, so the likeliest intention shares the longest beginning.
  const auto nearer = [&](const TensorInfo& a, const TensorInfo& b) {
    return common_prefix(a.name, name) < common_prefix(b.name, name);
  };
  const auto nearest = std::max_element(tensors_.begin(), tensors_.end(), nearer);
  reading(file_).fail(
      Kind::NoSuchTensor, "expected one of its ", tensors_.size(), " tensors, got ", detail::quote(name),
      nearest == tensors_.end() ? "" : "; did you mean " + detail::quote(nearest->name) + "?");
}

const std::string* Header::find_metadata(std::string_view key) const {
  if (!metadata_) return nullptr;
  for (const auto& [name, text] : *metadata_)
    if (name == key) return &text;
  return nullptr;
}

Buffer::Buffer(std::size_t size)
    : memory_(static_cast<std::byte*>(::operator new (size, std::align_val_t{alignment}))), size_(size) {}

void Buffer::Free::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{alignment});
}

Reader::Reader(const std::filesystem::path& path)
    : Reader(detail::open_for_reading(path, "safetensors read"), path.string()) {}

Reader::Reader(const OpenFolder& folder, const std::string& name)
    : Reader(folder.open(name, "safetensors read"), folder.path_of(name)) {}

Reader::Reader(detail::FileDescriptor descriptor, std::string file)
    : file_(std::move(file)), descriptor_(std::move(descriptor)) {
  struct stat status;
  check(::fstat(descriptor_.get(), &status) == 0, "safetensors read: ", file_,
        ": cannot stat: ", detail::errno_text(errno));
  const detail::Site site = reading(file_);
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  std::array<std::byte, length_bytes> start = {};
  read_at(0, std::span(start).first(std::min(file_bytes, length_bytes)));
  head_.resize(length_bytes + header_length(start, file_bytes, site));
  std::memcpy(head_.data(), start.data(), length_bytes);
  read_at(length_bytes, std::as_writable_bytes(std::span(head_).subspan(length_bytes)));
  header_ = parse_header(head().substr(length_bytes), file_bytes - head_.size(), site);
}

void Reader::read(const TensorInfo& tensor, std::span<std::byte> into) const {
  if (into.size() != tensor.bytes())
    reading(file_).fail(Kind::SizeMismatch, "expected memory of ", tensor.bytes(), " bytes for tensor ",
                        detail::quote(tensor.name), ", got ", into.size());
  read_at(header_->data_start() + tensor.begin, into);
}

Buffer Reader::read(std::string_view name) const {
  const TensorInfo& tensor = header_->at(name);
  Buffer buffer = allocate(tensor.bytes(), file_);
  read(tensor, buffer.span());
  return buffer;
}

void Reader::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t count = ::pread(descriptor_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("safetensors read: ", file_, ": cannot read: ", detail::errno_text(errno));
    if (count == 0)
      fail("safetensors read: ", file_, ": expected ", into.size(), " more bytes at ", offset,
           ", got the end of the file: it was truncated while being read");
    offset += static_cast<std::uint64_t>(count);
    into = into.subspan(static_cast<std::size_t>(count));
  }
}

Header read_header(const std::filesystem::path& path) {
  return Reader(path).header();
}

File File::open(const std::filesystem::path& path) {
  const Reader reader(path);
  return File(reader.header(), path.string(),
              [&](const TensorInfo& tensor, std::span<std::byte> into) { reader.read(tensor, into); });
}

File File::parse(std::span<const std::byte> bytes, std::string_view source) {
  const detail::Site site = reading(source);
  const std::uint64_t length = header_length(bytes, bytes.size(), site);
  const auto text = bytes.subspan(length_bytes, length);
  const auto data = bytes.subspan(length_bytes + length);
  const Header header =
      parse_header({reinterpret_cast<const char*>(text.data()), text.size()}, data.size(), site);
  return File(header, source, [&](const TensorInfo& tensor, std::span<std::byte> into) {
    if (!into.empty()) std::memcpy(into.data(), data.data() + tensor.begin, into.size());
  });
}

File::File(Header header, std::string_view source, const Fill& fill) : header_(std::move(header)) {
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : header_.tensors()) bytes = align_up(bytes) + tensor.bytes();
  memory_ = allocate(bytes, source);
  std::uint64_t offset = 0;
  tensors_.reserve(header_.tensors().size());
  for (const TensorInfo& tensor : header_.tensors()) {
    offset = align_up(offset);
    const std::span<std::byte> place = memory_.span().subspan(offset, tensor.bytes());
    fill(tensor, place);
    tensors_.push_back({tensor.name, tensor.dtype, tensor.shape, place});
    offset += tensor.bytes();
  }
}

const TensorView& File::at(std::string_view name) const {
  return tensors_[static_cast<std::size_t>(&header_.at(name) - header_.tensors().data())];
}

}  // namespace pom::io::safetensors
