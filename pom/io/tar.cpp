// Tars in files: read where the members lie, and written.
#include "pom/io/tar.h"

#include <algorithm>
#include <cstring>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/atomic_file.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

constexpr std::size_t window_bytes = 4096;  // a header with its pax records, and small members beside it

std::vector<TarMember> all_members(TarWalk walk) {
  std::vector<TarMember> members;
  for (TarMember member; walk.next(member);) members.push_back(std::move(member));
  return members;
}

TarWalk::Source memory_source(std::string_view bytes, std::uint64_t begin) {
  return [bytes, begin](std::uint64_t offset, std::size_t count) {
    const std::uint64_t place = offset - begin;
    return place < bytes.size() ? bytes.substr(static_cast<std::size_t>(place), count) : std::string_view();
  };
}

// ---- writing ----

std::string octal(std::uint64_t value, std::size_t digits) {
  std::string text(digits, '0');
  for (std::size_t i = digits; i-- > 0; value >>= 3) text[i] = static_cast<char>('0' + (value & 7));
  return text;
}

// What a name is in the two fields of a header; false where it fits neither.
bool split_name(std::string_view name, std::string_view& prefix, std::string_view& rest) {
  rest = name;
  prefix = {};
  if (name.size() <= 100) return true;
  // As much as can be before the slash.
  const std::size_t slash = name.rfind('/', 155);
  if (slash == std::string_view::npos || slash == 0 || name.size() - slash - 1 > 100 ||
      slash + 1 == name.size())
    return false;
  prefix = name.substr(0, slash);
  rest = name.substr(slash + 1);
  return true;
}

std::string tar_header(std::string_view prefix, std::string_view name, std::uint64_t size, char type) {
  std::string block(tar_block, '\0');
  const auto put = [&](std::size_t at, std::string_view text) { block.replace(at, text.size(), text); };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, octal(size, 11));
  put(136, octal(0, 11));
  put(148, "        ");
  block[156] = type;
  put(257, std::string_view("ustar\00000", 8));
  put(329, "0000000");
  put(337, "0000000");
  put(345, prefix);
  std::uint64_t sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return block;
}

void pad_to_block(std::string& bytes) {
  bytes.resize((bytes.size() + tar_block - 1) / tar_block * tar_block, '\0');
}

// "LENGTH key=value\n": the length counts its own digits.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest;
  while (rest + std::to_string(length).size() != length) length = rest + std::to_string(length).size();
  return pom::detail::concat(length, " ", key, "=", value, "\n");
}

constexpr std::uint64_t largest_octal = std::uint64_t{1} << 33;  // eleven digits hold what is below

std::string headers_of(std::string_view name, std::uint64_t size) {
  std::string_view prefix, rest;
  std::string records;
  if (!split_name(name, prefix, rest)) {
    records += pax_record("path", name);
    rest = name.substr(0, 100);
  }
  if (size >= largest_octal) records += pax_record("size", std::to_string(size));
  std::string bytes;
  if (!records.empty()) {
    bytes = tar_header("", "pax_header", records.size(), 'x') + records;
    pad_to_block(bytes);
  }
  return bytes + tar_header(prefix, rest, size < largest_octal ? size : 0, '0');
}

void check_member_name(std::string_view name) {
  check(!name.empty() && name.size() <= max_tar_name && name.find('\0') == std::string_view::npos &&
            !name.ends_with('/'),
        "tar write: name: expected 1 to ", max_tar_name,
        " bytes, none of them 0, and no slash at the end, got \"", shown(name), "\"");
}

}  // namespace

std::vector<TarMember> list_tar(std::string_view bytes, std::string_view source) {
  return all_members(
      TarWalk(memory_source(bytes, 0), 0, bytes.size(), true, pom::detail::concat("tar read: ", source)));
}

std::vector<TarMember> list_tar_range(std::string_view bytes, std::uint64_t begin, std::string_view site) {
  return all_members(
      TarWalk(memory_source(bytes, begin), begin, begin + bytes.size(), false, std::string(site)));
}

struct TarReader::Impl {
  detail::FileParts file;
  std::string window;           // bytes of the file that were read last
  std::uint64_t window_at = 0;  // where they begin
  TarWalk walk;

  explicit Impl(const std::filesystem::path& path)
      : file(path, "tar read"),
        walk([this](std::uint64_t offset, std::size_t count) { return bytes_at(offset, count); }, 0,
             file.size(), true, file.site()) {}

  std::string_view bytes_at(std::uint64_t offset, std::size_t count) {
    const bool inside = offset >= window_at && offset + count <= window_at + window.size();
    if (!inside) {
      window = file.up_to(offset, std::max(count, window_bytes));
      window_at = offset;
    }
    return std::string_view(window).substr(static_cast<std::size_t>(offset - window_at), count);
  }
};

TarReader::TarReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
TarReader::~TarReader() = default;
TarReader::TarReader(TarReader&&) noexcept = default;

const std::string& TarReader::site() const {
  return impl_->file.site();
}

std::uint64_t TarReader::bytes() const {
  return impl_->file.size();
}

bool TarReader::next(TarMember& member) {
  return impl_->walk.next(member);
}

std::vector<TarMember> TarReader::list() {
  std::vector<TarMember> members;
  for (TarMember member; next(member);) members.push_back(std::move(member));
  return members;
}

std::string TarReader::read(const TarMember& member, std::uint64_t most) const {
  check(member.size <= most, site(), ": member \"", shown(member.name), "\" at byte ", member.header,
        ": expected at most ", most, " bytes, got ", member.size);
  return impl_->file.at(member.data, static_cast<std::size_t>(member.size));
}

std::string TarReader::range(std::uint64_t begin, std::uint64_t end) const {
  return impl_->file.at(begin, static_cast<std::size_t>(end - begin));
}

std::string tar_member(std::string_view name, std::span<const std::byte> data) {
  check_member_name(name);
  std::string bytes = headers_of(name, data.size());
  bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
  pad_to_block(bytes);
  return bytes;
}

struct TarWriter::Impl {
  AtomicFile file;
  std::uint64_t bytes = 0;

  void write(std::string_view piece) {
    file.write(piece);
    bytes += piece.size();
  }
};

TarWriter::TarWriter(const std::filesystem::path& path) : impl_(new Impl{AtomicFile(path)}) {}
TarWriter::~TarWriter() = default;

void TarWriter::add(std::string_view name, std::span<const std::byte> data) {
  impl_->write(tar_member(name, data));
}

void TarWriter::add_bytes(std::string_view members) {
  check(members.size() % tar_block == 0, "tar write: expected whole blocks, got ", members.size(), " bytes");
  impl_->write(members);
}

void TarWriter::finish() {
  impl_->write(std::string(2 * tar_block, '\0'));
  impl_->file.commit();
}

std::uint64_t TarWriter::bytes() const {
  return impl_->bytes;
}

}  // namespace pom::io
