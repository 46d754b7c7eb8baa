// The tar format (POSIX ustar and pax, GNU): members one after the other, found by their headers and read
// where they lie. Written so that the same members give the same bytes.
//
//   512 bytes   header: name, size in octal digits, type, checksum, "ustar"
//   size bytes  data, then zeros up to the next 512
//   …           members whose type is x or L describe the one after them: its name, its size
//   1,024 bytes zeros: the end
//
// Nothing is ever extracted: names are names and no paths of this machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::io {

inline constexpr std::uint64_t tar_block = 512;
inline constexpr std::uint64_t max_tar_name = std::uint64_t{64} << 10;
inline constexpr std::uint64_t max_tar_extra = std::uint64_t{1} << 20;  // of headers x and g

struct TarMember {
  std::string name;
  std::uint64_t header = 0;  // where it begins, with the headers that describe it
  std::uint64_t data = 0;    // where its bytes begin
  std::uint64_t size = 0;    // how many they are
  std::uint64_t next = 0;    // where the next member begins
  char type = '0';           // as tar has it: '0' a file, '5' a folder, '2' a link, …

  bool is_file() const { return type == '0'; }  // the older types of files, 0 and 7, are given as '0'
};

// Walks headers, wherever the bytes are. Every mistake is a pom::Error that names the member and its place.
class TarWalk {
 public:
  // Up to `count` bytes from `offset` on, fewer where they end; they live until the next call.
  using Source = std::function<std::string_view(std::uint64_t offset, std::size_t count)>;

  // From `begin` to `end`, which is the end of the file, where two blocks of zeros are demanded, or, if not
  // `whole`, the end of some members within it.
  TarWalk(Source source, std::uint64_t begin, std::uint64_t end, bool whole, std::string site);

  // False at the end.
  bool next(TarMember& member);

 private:
  struct Described;
  bool header_at(std::uint64_t offset, std::string& block);
  void check_end(std::uint64_t offset);
  std::string extra(std::uint64_t offset, std::uint64_t size, std::uint64_t most, std::string_view what);
  void take_pax(std::string_view records, Described& told, std::uint64_t offset, bool global) const;
  void describe(const std::string& block, TarMember& member, const Described& told) const;
  [[noreturn]] void refuse(std::uint64_t offset, std::string_view name, const std::string& why) const;

  Source source_;
  std::uint64_t place_, end_;
  bool whole_, done_ = false;
  std::string site_;
};

// The members of a tar that is in memory.
std::vector<TarMember> list_tar(std::string_view bytes, std::string_view source);

// A tar in a file. next() reads headers alone; read() is const and may be called from many threads.
class TarReader {
 public:
  explicit TarReader(const std::filesystem::path& path);
  ~TarReader();
  TarReader(TarReader&&) noexcept;

  const std::string& site() const;  // "tar read: path"
  std::uint64_t bytes() const;      // of the file
  bool next(TarMember& member);
  // From the next one on, all of them.
  std::vector<TarMember> list();

  // The bytes of a member; more than `most` are an error.
  std::string read(const TarMember& member, std::uint64_t most) const;
  // Bytes [begin, end) of the file, headers and all; for members that lie together.
  std::string range(std::uint64_t begin, std::uint64_t end) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Members within bytes that were read together, which begin at `begin` of the file.
std::vector<TarMember> list_tar_range(std::string_view bytes, std::uint64_t begin, std::string_view site);

// Writes a tar that appears when it is finished, whole or not at all (AtomicFile). The bytes are a function
// of the names and data alone: no times, owners or modes, pax headers only where a name does not fit.
class TarWriter {
 public:
  explicit TarWriter(const std::filesystem::path& path);
  ~TarWriter();

  void add(std::string_view name, std::span<const std::byte> data);
  void add(std::string_view name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }
  // Whole members, as tar_member() gives them.
  void add_bytes(std::string_view members);
  void finish();
  std::uint64_t bytes() const;  // so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A member as the writer has it: headers, data and zeros up to the next block.
std::string tar_member(std::string_view name, std::span<const std::byte> data);

}  // namespace pom::io
