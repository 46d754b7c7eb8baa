// The headers of tar: what they say, and everything that can be wrong with them.
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/tar.h"

namespace pom::io {
namespace {

// Of a header's 512 bytes.
struct TarSpan {
  std::size_t at, size;
  std::string_view of(std::string_view block) const { return block.substr(at, size); }
};
constexpr TarSpan name_span{0, 100}, size_span{124, 12}, sum_span{148, 8}, magic_span{257, 6},
    prefix_span{345, 155};
constexpr std::size_t type_at = 156;

std::string_view until_nul(std::string_view text) {
  return text.substr(0, std::min(text.find('\0'), text.size()));
}

// Octal digits, with spaces before and a space or a zero byte after; none are 0. GNU writes what does not fit
// as a binary number, whose first bit is set.
std::optional<std::uint64_t> tar_number(std::string_view field) {
  std::uint64_t value = 0;
  if (static_cast<unsigned char>(field[0]) & 0x80) {
    if (static_cast<unsigned char>(field[0]) != 0x80) return std::nullopt;  // negative, or beyond 88 bits
    for (const char c : field.substr(1)) {
      if (value >> 56 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  field = until_nul(field);
  field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
  field = field.substr(0, std::min(field.find(' '), field.size()));
  for (const char c : field) {
    if (c < '0' || c > '7') return std::nullopt;
    value = value << 3 | static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

// The sum of all bytes with the sum's own as spaces; some old programs took bytes as signed.
bool sum_is_right(std::string_view block) {
  std::int64_t plain = 0, with_signs = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool own = i >= sum_span.at && i < sum_span.at + sum_span.size;
    const char c = own ? ' ' : block[i];
    plain += static_cast<unsigned char>(c);
    with_signs += static_cast<signed char>(c);
  }
  const auto told = tar_number(sum_span.of(block));
  return told &&
         (*told == static_cast<std::uint64_t>(plain) || static_cast<std::int64_t>(*told) == with_signs);
}

bool all_zero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

std::string header_name(std::string_view block) {
  std::string name(until_nul(name_span.of(block)));
  const std::string_view prefix = until_nul(prefix_span.of(block));
  // GNU's own headers ("ustar ") have other things there.
  const bool posix = magic_span.of(block) == std::string_view("ustar\0", 6);
  return posix && !prefix.empty() ? std::string(prefix) + "/" + name : name;
}

std::uint64_t in_blocks(std::uint64_t size) {
  return (size + tar_block - 1) / tar_block * tar_block;
}

bool is_file_type(char type) {
  return type == '0' || type == '\0' || type == '7';
}

// Links, devices, folders and pipes have no data whatever their size says; types nobody knows have.
bool has_data(char type) {
  return type < '1' || type > '6';
}

}  // namespace

// What headers x and L say of the member after them.
struct TarWalk::Described {
  std::optional<std::string> name;
  std::optional<std::uint64_t> size;
};

TarWalk::TarWalk(Source source, std::uint64_t begin, std::uint64_t end, bool whole, std::string site)
    : source_(std::move(source)), place_(begin), end_(end), whole_(whole), site_(std::move(site)) {}

void TarWalk::refuse(std::uint64_t offset, std::string_view name, const std::string& why) const {
  if (name.empty()) fail(site_, ": at byte ", offset, ": ", why);
  fail(site_, ": member \"", shown(name), "\" at byte ", offset, ": ", why);
}

// False at the end of the archive.
bool TarWalk::header_at(std::uint64_t offset, std::string& block) {
  const auto left = static_cast<std::size_t>(std::min(end_ - offset, tar_block));
  block = source_(offset, left);
  if (block.empty() && !whole_) return false;
  if (block.size() < tar_block)
    refuse(offset, "",
           pom::detail::concat("cut off: expected a header or the two blocks of zeros that end a tar, got ",
                               block.empty() ? "the end of the file" : "a part of a block"));
  if (all_zero(block)) {
    check_end(offset);
    return false;
  }
  if (!sum_is_right(block))
    refuse(offset, "", "expected a header, got 512 bytes whose checksum is another: damaged, or no tar");
  return true;
}

// The block after the first one of zeros. A file may end before it; a hole in a file does not look like that.
void TarWalk::check_end(std::uint64_t offset) {
  const std::uint64_t second = offset + tar_block;
  const std::string_view block =
      source_(second, static_cast<std::size_t>(std::min(end_ - second, tar_block)));
  if (!all_zero(block))
    refuse(second, "", "expected a second block of zeros at the end, got data: a hole in the file");
}

std::string TarWalk::extra(std::uint64_t offset, std::uint64_t size, std::uint64_t most,
                           std::string_view what) {
  if (size > most)
    refuse(offset, "", pom::detail::concat("expected at most ", most, " bytes of ", what, ", got ", size));
  if (size > end_ - offset - tar_block)
    refuse(offset, "", pom::detail::concat("cut off: expected ", size, " bytes of ", what));
  std::string text(source_(offset + tar_block, static_cast<std::size_t>(size)));
  if (text.size() < size)
    refuse(offset, "", pom::detail::concat("cut off: expected ", size, " bytes of ", what));
  return text;
}

// Records "LENGTH key=value\n", whose length counts all of it.
void TarWalk::take_pax(std::string_view records, Described& told, std::uint64_t offset, bool global) const {
  while (!records.empty() && !all_zero(records)) {
    std::size_t length = 0;
    const auto [after, error] = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<std::size_t>(after - records.data());
    const bool framed = error == std::errc() && length > digits + 1 && length <= records.size() &&
                        records[digits] == ' ' && records[length - 1] == '\n';
    const std::string_view record = framed ? records.substr(digits + 1, length - digits - 2) : "";
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos)
      refuse(offset, "", "expected pax records \"length key=value\", got other bytes");
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    records.remove_prefix(length);
    if (key.starts_with("GNU.sparse."))
      refuse(offset, "", "expected members that are written whole, got a sparse one");
    if (key != "path" && key != "size") continue;
    if (global) refuse(offset, "", pom::detail::concat("expected no ", key, " for all members, got one"));
    if (key == "path") {
      told.name = value;
      continue;
    }
    std::uint64_t size = 0;
    const auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (bad != std::errc() || end != value.data() + value.size())
      refuse(offset, "", pom::detail::concat("expected a size in digits, got \"", shown(value, 40), "\""));
    told.size = size;
  }
}

void TarWalk::describe(const std::string& block, TarMember& member, const Described& told) const {
  member.name = told.name ? std::string(until_nul(*told.name)) : header_name(block);
  if (member.name.empty()) refuse(member.header, "", "expected a name, got none");
  if (member.name.size() > max_tar_name)
    refuse(
        member.header, member.name,
        pom::detail::concat("expected a name of at most ", max_tar_name, " bytes, got ", member.name.size()));
  const auto size = told.size ? told.size : tar_number(size_span.of(block));
  if (!size) refuse(member.header, member.name, "expected a size, got something else");
  const char type = block[type_at];
  if (type == 'S')
    refuse(member.header, member.name, "expected a member that is written whole, got a sparse one");
  const bool folder = type == '\0' && member.name.ends_with('/');
  member.type = folder ? '5' : is_file_type(type) ? '0' : type;
  member.size = has_data(member.type) ? *size : 0;
  if (member.size > end_ - member.data)
    refuse(member.header, member.name,
           pom::detail::concat("cut off: expected ", member.size, " bytes of data from byte ", member.data,
                               " on, got ", end_ - member.data, " until the end"));
  // The last member of a file that was cut off may lack the zeros after it; the end is missed next.
  member.next = std::min(end_, member.data + in_blocks(member.size));
}

bool TarWalk::next(TarMember& member) {
  if (done_) return false;
  member = {};
  member.header = place_;
  Described told;
  std::string block;
  for (std::uint64_t offset = place_;;) {
    if (!header_at(offset, block)) {
      if (offset != place_) refuse(place_, "", "expected the member that this header describes, got the end");
      done_ = true;
      return false;
    }
    const char type = block[type_at];
    if (type != 'x' && type != 'g' && type != 'L' && type != 'K') {
      member.data = offset + tar_block;
      describe(block, member, told);
      place_ = member.next;
      return true;
    }
    const auto size = tar_number(size_span.of(block));
    if (!size) refuse(offset, "", "expected a size, got something else");
    const bool gnu = type == 'L' || type == 'K';
    const std::string text =
        extra(offset, *size, gnu ? max_tar_name + 1 : max_tar_extra, gnu ? "a name" : "pax records");
    if (type == 'L') told.name = text;
    if (!gnu) take_pax(text, told, offset, type == 'g');
    offset = std::min(end_, offset + tar_block + in_blocks(*size));
  }
}

}  // namespace pom::io
