// The zip around the arrays: end record, directory, local headers. Numbers are little-endian; those of 32
// bits that do not fit are 0xffffffff and stand with 64 bits in an extra field (zip64), which numpy always
// writes.
#include "pom/io/npz.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#if POM_HAS_ZLIB
#include <zlib.h>
#endif

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/crc32.h"

namespace pom::io {
namespace {

constexpr std::uint32_t end_mark = 0x06054b50, end64_mark = 0x06064b50, locator_mark = 0x07064b50,
                        entry_mark = 0x02014b50, local_mark = 0x04034b50;
constexpr std::size_t end_bytes = 22, end64_bytes = 56, locator_bytes = 20, entry_bytes = 46,
                      local_bytes = 30;
constexpr std::uint32_t elsewhere = 0xffffffff;      // the number is in the extra field
constexpr std::uint64_t most_inflated = 0xffffffff;  // what zlib takes in one call
constexpr unsigned stored_method = 0, deflated_method = 8;

std::uint64_t zip_number(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Where the directory is and how many entries it has.
struct ZipEnd {
  std::uint64_t begin, bytes, count;
};

// From the back: a comment of up to 65535 bytes may follow the record.
std::size_t find_end(std::string_view file, std::string_view site) {
  check(file.size() >= end_bytes, site, ": expected a zip, got ", file.size(), " bytes");
  const std::size_t lowest = file.size() - std::min(file.size(), end_bytes + 65535);
  for (std::size_t at = file.size() - end_bytes + 1; at-- > lowest;)
    if (zip_number(file, at, 4) == end_mark && at + end_bytes + zip_number(file, at + 20, 2) == file.size())
      return at;
  fail(site, ": expected a zip, got no end record: cut off, or no .npz");
}

ZipEnd read_end(std::string_view file, std::string_view site) {
  const std::size_t at = find_end(file, site);
  ZipEnd end{zip_number(file, at + 16, 4), zip_number(file, at + 12, 4), zip_number(file, at + 10, 2)};
  std::uint64_t limit = at;
  const bool large = end.begin == elsewhere || end.bytes == elsewhere || end.count == 0xffff;
  if (large && at >= locator_bytes && zip_number(file, at - locator_bytes, 4) == locator_mark) {
    const std::uint64_t place = zip_number(file, at - locator_bytes + 8, 8);
    check(place <= at - locator_bytes && at - locator_bytes - place >= end64_bytes &&
              zip_number(file, static_cast<std::size_t>(place), 4) == end64_mark,
          site, ": expected the end record of a zip64 at byte ", place, ", got something else");
    const auto from = static_cast<std::size_t>(place);
    end = {zip_number(file, from + 48, 8), zip_number(file, from + 40, 8), zip_number(file, from + 32, 8)};
    limit = place;
  }
  check(end.begin <= limit && end.bytes <= limit - end.begin, site, ": expected a directory of ", end.bytes,
        " bytes at byte ", end.begin, " before byte ", limit);
  // Entries that the directory has no room for are not looked for.
  check(end.count <= end.bytes / entry_bytes && end.count <= max_npz_entries, site, ": expected at most ",
        std::min(end.bytes / entry_bytes, max_npz_entries), " members, got ", end.count);
  return end;
}

// The zip64 extra field has those numbers, in this order, that stand as 0xffffffff in the entry.
void take_zip64(std::string_view extra, Npz::Entry& entry, std::string_view site) {
  while (extra.size() >= 4) {
    const std::uint64_t id = zip_number(extra, 0, 2), size = zip_number(extra, 2, 2);
    if (size > extra.size() - 4) break;
    std::string_view body = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (std::uint64_t* number : {&entry.size, &entry.packed, &entry.header}) {
      if (*number != elsewhere) continue;
      check(body.size() >= 8, site, ": member \"", shown(entry.name, 60),
            "\": expected sizes of 64 bits in its extra field, got none");
      *number = zip_number(body, 0, 8);
      body.remove_prefix(8);
    }
  }
}

#if POM_HAS_ZLIB
bool inflate_into(std::string_view packed, std::string& out) {
  z_stream stream = {};
  if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) return false;
  // Members are at most 2^32 bytes here: what a caller allows is far below.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = ::inflate(&stream, Z_FINISH);
  const bool whole = status == Z_STREAM_END && stream.avail_out == 0 && stream.avail_in == 0;
  ::inflateEnd(&stream);
  return whole;
}
#endif

}  // namespace

bool npz_inflates() {
#if POM_HAS_ZLIB
  return true;
#else
  return false;
#endif
}

Npz::Npz(std::string_view file, std::string site, std::uint64_t most) : file_(file), site_(std::move(site)) {
  const ZipEnd end = read_end(file_, site_);
  read_directory(end.begin, end.begin + end.bytes, end.count);
  std::uint64_t total = 0;
  for (const Entry& entry : entries_) {
    check(entry.size <= most - total, site_, ": member \"", shown(entry.name, 60), "\": expected at most ",
          most, " bytes in all members together, got more");
    total += entry.size;
  }
}

void Npz::read_directory(std::uint64_t begin, std::uint64_t end, std::uint64_t count) {
  std::set<std::string_view> names;
  entries_.reserve(static_cast<std::size_t>(count));
  std::string_view rest =
      file_.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  for (std::uint64_t i = 0; i < count; ++i) {
    check(rest.size() >= entry_bytes && zip_number(rest, 0, 4) == entry_mark, site_, ": expected ", count,
          " members in the directory, got ", i);
    const std::size_t name = zip_number(rest, 28, 2), extra = zip_number(rest, 30, 2),
                      note = zip_number(rest, 32, 2);
    check(name + extra + note <= rest.size() - entry_bytes, site_, ": cut off: expected member ", i,
          " of the directory to end before it");
    Entry entry;
    entry.name = rest.substr(entry_bytes, name);
    const std::uint64_t method = zip_number(rest, 10, 2);
    check((zip_number(rest, 8, 2) & 1) == 0, where(entry),
          ": expected it in the clear, got an encrypted one");
    check(method == stored_method || method == deflated_method, where(entry),
          ": expected it stored or deflated, got method ", method);
    entry.deflated = method == deflated_method;
    entry.crc = static_cast<std::uint32_t>(zip_number(rest, 16, 4));
    entry.packed = zip_number(rest, 20, 4);
    entry.size = zip_number(rest, 24, 4);
    entry.header = zip_number(rest, 42, 4);
    take_zip64(rest.substr(entry_bytes + name, extra), entry, site_);
    check(entry.deflated || entry.packed == entry.size, where(entry),
          ": stored: expected as many bytes as it has, ", entry.size, ", got ", entry.packed);
    if (entry.name.ends_with(".npy")) entry.name.resize(entry.name.size() - 4);
    entries_.push_back(std::move(entry));
    rest.remove_prefix(entry_bytes + name + extra + note);
  }
  for (const Entry& entry : entries_) check(names.insert(entry.name).second, where(entry), ": there twice");
}

std::string Npz::where(const Entry& entry) const {
  return pom::detail::concat(site_, ": member \"", shown(entry.name, 60), "\"");
}

const Npz::Entry* Npz::find(std::string_view name) const {
  const auto found = std::ranges::find(entries_, name, &Entry::name);
  return found == entries_.end() ? nullptr : &*found;
}

// After the local header, whose own name and extra field may have other lengths than the directory's.
std::string_view Npz::packed(const Entry& entry) const {
  const std::uint64_t size = file_.size();
  check(entry.header <= size && size - entry.header >= local_bytes &&
            zip_number(file_, static_cast<std::size_t>(entry.header), 4) == local_mark,
        where(entry), ": expected its header at byte ", entry.header, ", got something else");
  const auto at = static_cast<std::size_t>(entry.header);
  const std::uint64_t data =
      entry.header + local_bytes + zip_number(file_, at + 26, 2) + zip_number(file_, at + 28, 2);
  check(data <= size && entry.packed <= size - data, where(entry), ": cut off: expected ", entry.packed,
        " bytes from byte ", data, " on, and the file has ", size);
  return file_.substr(static_cast<std::size_t>(data), static_cast<std::size_t>(entry.packed));
}

std::string_view Npz::stored(const Entry& entry) const {
  check(!entry.deflated, where(entry), ": expected it stored, as numpy.savez writes it, got it deflated");
  return packed(entry);
}

std::string Npz::bytes(const Entry& entry) const {
  const std::string_view from = packed(entry);
  std::string out;
  if (!entry.deflated) {
    out = from;
  } else {
#if POM_HAS_ZLIB
    constexpr std::uint64_t most_ratio = 1032;  // deflate packs no more bytes into one
    check(entry.size <= most_ratio * (entry.packed + 1), where(entry), ": expected at most ",
          most_ratio * (entry.packed + 1), " bytes of ", entry.packed, " deflated ones, got ", entry.size);
    check(std::max(entry.size, entry.packed) <= most_inflated, where(entry), ": expected at most ",
          most_inflated, " bytes deflated, got ", entry.size);
    out.resize(static_cast<std::size_t>(entry.size));
    check(inflate_into(from, out), where(entry), ": expected ", entry.size,
          " bytes deflated, got something else");
#else
    fail(where(entry),
         ": deflated members need zlib, which this libpom was built without: install zlib1g-dev and "
         "build it again, or write with numpy.savez");
#endif
  }
  const std::uint32_t sum = crc32(out);
  check(sum == entry.crc, where(entry), ": damaged: expected the CRC ", crc32_hex(entry.crc), ", got ",
        crc32_hex(sum));
  return out;
}

NpyArray Npz::read(std::string_view name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) {
    std::string names;
    for (std::size_t i = 0; i < std::min<std::size_t>(entries_.size(), 8); ++i)
      names += (i == 0 ? "" : ", ") + shown(entries_[i].name, 40);
    fail(site_, ": expected the array ", name, ", got ", names.empty() ? "none" : names);
  }
  return read_npy(bytes(*entry), where(*entry));
}

namespace {

void put_number(std::string& bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

// What the header before a member and its line in the directory have in common. The date is the first that
// there is.
void put_member(std::string& bytes, const std::string& name, const std::string& data) {
  constexpr std::uint64_t version = 20, first_day = 0x21;
  put_number(bytes, version, 2);
  put_number(bytes, 0, 2);  // flags
  put_number(bytes, 0, 2);  // stored
  put_number(bytes, 0, 2);  // time
  put_number(bytes, first_day, 2);
  put_number(bytes, crc32(data), 4);
  put_number(bytes, data.size(), 4);
  put_number(bytes, data.size(), 4);
  put_number(bytes, name.size(), 2);
  put_number(bytes, 0, 2);  // nothing extra
}

}  // namespace

std::string write_npz(const std::vector<std::pair<std::string, std::string>>& members) {
  constexpr std::uint64_t most = 0xFFFFFFFF;
  std::string bytes, directory;
  for (const auto& [array, data] : members) {
    const std::string name = array + ".npy";
    check(bytes.size() + data.size() + directory.size() + 1024 < most,
          "write_npz: expected at most 4 GiB in all, got more with ", name);
    put_number(directory, entry_mark, 4);
    put_number(directory, 20, 2);  // made by
    put_member(directory, name, data);
    put_number(directory, 0, 2);  // no comment
    put_number(directory, 0, 2);  // one disk
    put_number(directory, 0, 2);  // attributes
    put_number(directory, 0, 4);
    put_number(directory, bytes.size(), 4);
    directory += name;
    put_number(bytes, local_mark, 4);
    put_member(bytes, name, data);
    bytes += name;
    bytes += data;
  }
  const std::uint64_t begin = bytes.size();
  bytes += directory;
  put_number(bytes, end_mark, 4);
  put_number(bytes, 0, 4);  // disks
  put_number(bytes, members.size(), 2);
  put_number(bytes, members.size(), 2);
  put_number(bytes, directory.size(), 4);
  put_number(bytes, begin, 4);
  put_number(bytes, 0, 2);  // no comment
  return bytes;
}

}  // namespace pom::io
