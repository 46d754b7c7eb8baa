// The header is a Python literal, of which only what numpy writes is understood: no evaluation, no recursion.
#include "pom/io/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are handed out as they lie in the file");

constexpr std::string_view npy_magic = "\x93NUMPY";

struct NpyTypeEntry {
  std::string_view descr;
  std::size_t bytes;
};
// In the order of NpyType, without texts.
constexpr std::array<NpyTypeEntry, 8> npy_types = {
    {{"|b1", 1}, {"|i1", 1}, {"|u1", 1}, {"<i4", 4}, {"<i8", 8}, {"<f2", 2}, {"<f4", 4}, {"<f8", 8}}};

// Steps through "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".
class DictCursor {
 public:
  DictCursor(std::string_view text, std::string_view site) : text_(text), site_(site) {}

  bool skip(char token) {
    skip_space();
    if (place_ >= text_.size() || text_[place_] != token) return false;
    ++place_;
    return true;
  }
  void expect(char token) {
    if (!skip(token)) refuse(pom::detail::concat("expected '", token, "'"));
  }
  std::string_view quoted(std::string_view expected) {
    skip_space();
    const char quote = place_ < text_.size() ? text_[place_] : '\0';
    const std::size_t end = quote == '\'' || quote == '"' ? text_.find(quote, place_ + 1) : text_.npos;
    if (end == text_.npos) refuse(pom::detail::concat("expected ", expected));
    const std::string_view word = text_.substr(place_ + 1, end - place_ - 1);
    place_ = end + 1;
    return word;
  }
  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}})
      if (text_.substr(place_).starts_with(word)) {
        place_ += word.size();
        return value;
      }
    refuse("fortran_order: expected True or False");
  }
  std::int64_t integer() {
    skip_space();
    std::int64_t value = 0;
    const char* begin = text_.data() + place_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) refuse("shape: expected sizes of 0 or more");
    place_ += static_cast<std::size_t>(end - begin);
    if (place_ < text_.size() && text_[place_] == 'L') ++place_;  // Python 2 wrote 3L
    return value;
  }
  void finish() {
    skip_space();
    if (place_ != text_.size()) refuse("expected the end of the header");
  }
  [[noreturn]] void refuse(const std::string& expected) const {
    fail(site_, ": header: ", expected, ", got \"", shown(text_.substr(std::min(place_, text_.size())), 40),
         "\"");
  }

 private:
  void skip_space() {
    while (place_ < text_.size() && (text_[place_] == ' ' || text_[place_] == '\n')) ++place_;
  }

  std::string_view text_, site_;
  std::size_t place_ = 0;
};

// Of "<U7" and "|S7": how many of what follows the letter.
std::optional<std::size_t> text_length(std::string_view descr) {
  std::size_t length = 0;
  const auto [end, error] = std::from_chars(descr.data() + 2, descr.data() + descr.size(), length);
  if (error != std::errc() || end != descr.data() + descr.size() || length > (std::size_t{1} << 30))
    return std::nullopt;
  return length;
}

void take_descr(std::string_view descr, NpyHeader& header, std::string_view site) {
  for (std::size_t i = 0; i < npy_types.size(); ++i)
    if (npy_types[i].descr == descr || (npy_types[i].bytes == 1 && descr.size() == 3 &&
                                        descr.substr(1) == npy_types[i].descr.substr(1) && descr[0] != '>')) {
      header.type = static_cast<NpyType>(i);
      header.element = npy_types[i].bytes;
      return;
    }
  check(descr.find('O') == descr.npos, site, ": descr: expected numbers, got \"", shown(descr, 40),
        "\": Python objects, which are pickles and are not read");
  check(!descr.starts_with('>'), site, ": descr: expected little-endian numbers, got \"", shown(descr, 40),
        "\"");
  if (descr.starts_with("<U") || descr.starts_with("|S"))
    if (const auto length = text_length(descr)) {
      header.type = descr[1] == 'U' ? NpyType::text : NpyType::bytes;
      header.element = *length * (descr[1] == 'U' ? 4 : 1);
      return;
    }
  fail(site, ": descr: expected one of |b1, |i1, |u1, <i4, <i8, <f2, <f4, <f8, <U… or |S…, got \"",
       shown(descr, 40), "\"");
}

void take_shape(DictCursor& cursor, NpyHeader& header, std::string_view site) {
  cursor.expect('(');
  while (!cursor.skip(')')) {
    check(header.shape.size() < max_npy_dimensions, site, ": shape: expected at most ", max_npy_dimensions,
          " dimensions, got more");
    header.shape.push_back(cursor.integer());
    if (!cursor.skip(',')) {
      cursor.expect(')');
      break;
    }
  }
}

void take_dict(std::string_view text, NpyHeader& header, std::string_view site) {
  DictCursor cursor(text, site);
  std::array<bool, 3> given = {};
  const std::array<std::string_view, 3> keys = {"descr", "fortran_order", "shape"};
  cursor.expect('{');
  while (!cursor.skip('}')) {
    const std::string_view key = cursor.quoted("a key");
    const auto which = static_cast<std::size_t>(std::ranges::find(keys, key) - keys.begin());
    check(which < 3, site, ": header: expected descr, fortran_order and shape, got \"", shown(key, 40), "\"");
    check(!given[which], site, ": header: ", key, ": given twice");
    given[which] = true;
    cursor.expect(':');
    if (which == 0) take_descr(cursor.quoted("one type for all elements"), header, site);
    if (which == 1) header.fortran = cursor.boolean();
    if (which == 2) take_shape(cursor, header, site);
    if (!cursor.skip(',')) {
      cursor.expect('}');
      break;
    }
  }
  cursor.finish();
  for (std::size_t i = 0; i < 3; ++i) check(given[i], site, ": header: ", keys[i], ": expected it, got none");
}

void count_elements(NpyHeader& header, std::string_view site) {
  bool fits = true;
  header.count = 1;
  for (const std::int64_t side : header.shape)
    fits = !__builtin_mul_overflow(header.count, static_cast<std::uint64_t>(side), &header.count) && fits;
  std::uint64_t bytes = 0;
  fits = fits && !__builtin_mul_overflow(header.count, std::uint64_t{header.element}, &bytes);
  check(fits, site, ": shape: expected fewer than 2^64 bytes, got ", npy_shape_text(header.shape));
}

// Elements in the order of the file to C order: the first index of the file is the fastest.
std::string in_c_order(std::string_view from, const NpyHeader& header) {
  const std::size_t dimensions = header.shape.size(), element = header.element;
  std::string to(from.size(), '\0');
  std::vector<std::int64_t> index(dimensions, 0);
  std::vector<std::size_t> stride(dimensions, element);  // in the file
  for (std::size_t d = 1; d < dimensions; ++d)
    stride[d] = stride[d - 1] * static_cast<std::size_t>(header.shape[d - 1]);
  std::size_t source = 0;
  for (std::size_t target = 0; target < to.size(); target += element) {
    std::memcpy(to.data() + target, from.data() + source, element);
    for (std::size_t d = dimensions; d-- > 0;) {
      source += stride[d];
      if (++index[d] < header.shape[d]) break;
      source -= stride[d] * static_cast<std::size_t>(header.shape[d]);
      index[d] = 0;
    }
  }
  return to;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto byte = [&](std::uint32_t value) { out += static_cast<char>(value); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      byte(0xe0 | code >> 12);
    } else {
      byte(0xf0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3f));
    }
    byte(0x80 | (code >> 6 & 0x3f));
  }
  byte(0x80 | (code & 0x3f));
}

}  // namespace

std::string_view npy_descr(NpyType type) {
  check(static_cast<std::size_t>(type) < npy_types.size(), "npy: type: expected numbers, got texts");
  return npy_types[static_cast<std::size_t>(type)].descr;
}

std::size_t npy_element(NpyType type) {
  check(static_cast<std::size_t>(type) < npy_types.size(), "npy: type: expected numbers, got texts");
  return npy_types[static_cast<std::size_t>(type)].bytes;
}

std::string npy_shape_text(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

NpyHeader parse_npy(std::string_view file, std::string_view site) {
  check(file.starts_with(npy_magic), site, ": expected a .npy (\"\\x93NUMPY\"), got \"",
        shown(file.substr(0, std::min<std::size_t>(file.size(), 6))), "\"");
  check(file.size() >= 10, site, ": cut off: expected a header, got ", file.size(), " bytes");
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(file[i]));
  };
  const std::size_t major = byte(6);
  check(major >= 1 && major <= 3 && byte(7) == 0, site, ": version: expected 1.0, 2.0 or 3.0, got ", major,
        ".", byte(7));
  const std::size_t frame = major == 1 ? 10 : 12;
  check(file.size() >= frame, site, ": cut off: expected a header, got ", file.size(), " bytes");
  std::size_t length = byte(8) | byte(9) << 8;
  if (major > 1) length |= byte(10) << 16 | byte(11) << 24;
  check(length <= max_npy_header, site, ": header: expected at most ", max_npy_header, " bytes, got ",
        length);
  check(length <= file.size() - frame, site, ": cut off: expected ", length, " bytes of header, got ",
        file.size() - frame);
  NpyHeader header;
  take_dict(file.substr(frame, length), header, site);
  count_elements(header, site);
  header.data = frame + length;
  check(header.bytes() == file.size() - header.data, site, ": expected ", header.bytes(),
        " bytes for the shape ", npy_shape_text(header.shape), ", got ", file.size() - header.data);
  return header;
}

NpyArray read_npy(std::string_view file, std::string_view site) {
  NpyArray array{parse_npy(file, site), {}};
  const std::string_view elements = file.substr(array.header.data);
  const bool reorder = array.header.fortran && array.header.shape.size() > 1 && array.header.element > 0;
  array.elements = reorder ? in_c_order(elements, array.header) : std::string(elements);
  array.header.fortran = false;
  return array;
}

NpyArray read_npy_file(const std::filesystem::path& path, std::uint64_t most) {
  const std::vector<std::byte> bytes = detail::read_file(path, "npy read", most);
  return read_npy({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "npy read: " + path.string());
}

std::string npy_text(const NpyArray& array, std::string_view site) {
  const NpyHeader& header = array.header;
  check(header.count == 1 && (header.type == NpyType::text || header.type == NpyType::bytes), site,
        ": expected one text, got ",
        header.count == 1 ? "a number" : pom::detail::concat("the shape ", npy_shape_text(header.shape)));
  std::string text = array.elements;
  if (header.type == NpyType::text) {
    text.clear();
    for (std::size_t i = 0; i < array.elements.size(); i += 4) {
      std::uint32_t code = 0;
      std::memcpy(&code, array.elements.data() + i, 4);
      check(code < 0x110000 && (code < 0xd800 || code > 0xdfff), site, ": expected Unicode characters, got ",
            code);
      append_utf8(text, code);
    }
  }
  text.resize(text.find_last_not_of('\0') + 1);  // numpy fills with zeros; npos + 1 is 0
  return text;
}

namespace {

NpyHeader header_of(NpyType type, std::span<const std::int64_t> shape) {
  NpyHeader header{
      .type = type, .element = npy_element(type), .fortran = false, .shape = {shape.begin(), shape.end()}};
  for (const std::int64_t side : shape)
    check(side >= 0, "npy write: shape: expected sizes of 0 or more, got ", npy_shape_text(shape));
  count_elements(header, "npy write");
  return header;
}

}  // namespace

std::string npy_head(NpyType type, std::span<const std::int64_t> shape) {
  header_of(type, shape);
  std::string dict = pom::detail::concat(
      "{'descr': '", npy_descr(type), "', 'fortran_order': False, 'shape': ", npy_shape_text(shape), ", }");
  // numpy leaves room for the first size to grow to 21 digits, and ends at a multiple of 64.
  constexpr std::size_t frame = 10, alignment = 64, growth = 21;
  if (!shape.empty()) dict.append(growth - std::to_string(shape[0]).size(), ' ');
  dict.append(alignment - (frame + dict.size() + 1) % alignment, ' ').append("\n");
  check(dict.size() < 65536, "npy write: shape: expected fewer dimensions, got ", shape.size());
  std::string file(npy_magic);
  file += {'\x01', '\x00', static_cast<char>(dict.size() & 255), static_cast<char>(dict.size() >> 8)};
  return file + dict;
}

std::string write_npy(NpyType type, std::span<const std::int64_t> shape,
                      std::span<const std::byte> elements) {
  const NpyHeader header = header_of(type, shape);
  check(header.bytes() == elements.size(), "npy write: expected ", header.bytes(), " bytes for the shape ",
        npy_shape_text(shape), ", got ", elements.size());
  return npy_head(type, shape).append(reinterpret_cast<const char*>(elements.data()), elements.size());
}

}  // namespace pom::io
