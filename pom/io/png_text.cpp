#include "pom/io/png_text.h"

#include <algorithm>
#include <zlib.h>

#include "pom/base/error.h"
#include "pom/io/json_header.h"

namespace pom::io::detail {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t max_unpacked = std::size_t{16} << 20;
constexpr std::size_t frame_bytes = 12;      // of a chunk: length, type and checksum
constexpr std::uint64_t max_deflate = 1032;  // deflate packs no more bytes into one

std::uint32_t big_endian(Bytes bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string latin1_to_utf8(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x80) out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3f) : code);
  }
  return out;
}

// False where valid UTF-8 has a character past U+00FF.
bool utf8_to_latin1(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      out += text[i];
    } else if (lead <= 0xc3) {
      out += static_cast<char>((lead & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f));
    } else {
      return false;
    }
  }
  return true;
}

// Walks the fields of a text chunk, which end in a zero byte except the last.
class TextFields {
 public:
  TextFields(std::string_view data, std::string site) : rest_(data), site_(std::move(site)) {}

  std::string_view until_zero() {
    const std::size_t end = rest_.find('\0');
    check(end != rest_.npos, site_, ": expected a zero byte after a field, got none");
    const std::string_view field = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return field;
  }

  unsigned byte() {
    check(!rest_.empty(), site_, ": the chunk is too short");
    const auto value = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }

  std::string_view rest() const { return rest_; }
  const std::string& site() const { return site_; }

 private:
  std::string_view rest_;
  std::string site_;
};

// zlib's stream with its end.
class Inflater {
 public:
  explicit Inflater(std::string_view packed) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    ready_ = ::inflateInit(&stream_) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (ready_) ::inflateEnd(&stream_);
  }

  // Appends what comes next; the state of the stream after it.
  int next(std::string& out) {
    char block[16384];
    stream_.next_out = reinterpret_cast<Bytef*>(block);
    stream_.avail_out = sizeof block;
    const int state = ready_ ? ::inflate(&stream_, Z_NO_FLUSH) : Z_MEM_ERROR;
    out.append(block, sizeof block - stream_.avail_out);
    return state;
  }

 private:
  z_stream stream_ = {};
  bool ready_ = false;
};

std::string unpack(std::string_view packed, std::size_t& budget, const std::string& site) {
  Inflater inflater(packed);
  std::string out;
  for (int state = Z_OK; state != Z_STREAM_END;) {
    state = inflater.next(out);
    check(out.size() <= budget, site, ": expected compressed text of at most ", max_unpacked,
          " bytes in the file, got more");
    check(state == Z_OK || state == Z_STREAM_END, site, ": the compressed text is damaged");
  }
  budget -= out.size();
  return out;
}

TextEntry plain_entry(TextFields fields) {
  const std::string_view keyword = fields.until_zero();
  return {latin1_to_utf8(keyword), latin1_to_utf8(fields.rest())};
}

TextEntry packed_entry(TextFields fields, std::size_t& budget) {
  const std::string_view keyword = fields.until_zero();
  check(fields.byte() == 0, fields.site(), ": expected compression method 0");
  return {latin1_to_utf8(keyword), latin1_to_utf8(unpack(fields.rest(), budget, fields.site()))};
}

TextEntry international_entry(TextFields fields, std::size_t& budget) {
  const std::string_view keyword = fields.until_zero();
  const unsigned packed = fields.byte();
  const unsigned method = fields.byte();
  check(packed <= 1 && (packed == 0 || method == 0), fields.site(),
        ": expected compression flag 0 or 1 and method 0, got ", packed, " and ", method);
  fields.until_zero();  // the language
  fields.until_zero();  // the keyword in that language
  std::string text = packed == 1 ? unpack(fields.rest(), budget, fields.site()) : std::string(fields.rest());
  check(find_invalid_utf8(text) == text.size(), fields.site(), ": the text is not UTF-8");
  return {latin1_to_utf8(keyword), std::move(text)};
}

struct Chunk {
  std::string_view type;
  Bytes data;
  Bytes checked;  // type and data
  std::uint32_t checksum;
};

Chunk chunk_at(Bytes bytes, std::size_t offset, std::string_view site) {
  check(bytes.size() - offset >= frame_bytes, site, ": truncated: the file ends before its IEND chunk");
  const std::size_t length = big_endian(bytes.subspan(offset));
  check(bytes.size() - offset - frame_bytes >= length, site, ": truncated: a chunk at byte ", offset, " has ",
        length, " bytes, and the file ", bytes.size() - offset - frame_bytes);
  const Bytes checked = bytes.subspan(offset + 4, length + 4);
  return {as_text(checked.first(4)), checked.subspan(4), checked,
          big_endian(bytes.subspan(offset + 8 + length))};
}

bool is_text(std::string_view type) {
  return type == "tEXt" || type == "zTXt" || type == "iTXt";
}

TextEntry text_entry(const Chunk& chunk, std::size_t& budget, std::string_view site) {
  const auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(chunk.checked.data()), chunk.checked.size());
  check(sum == chunk.checksum, site, ": ", chunk.type, ": the checksum does not fit: the file is damaged");
  TextFields fields(as_text(chunk.data), ::pom::detail::concat(site, ": ", chunk.type));
  if (chunk.type == "tEXt") return plain_entry(fields);
  return chunk.type == "zTXt" ? packed_entry(fields, budget) : international_entry(fields, budget);
}

unsigned samples_of_colour_type(unsigned type) {
  switch (type) {
    case 2:
      return 3;
    case 4:
      return 2;
    case 6:
      return 4;
    default:
      return 1;
  }
}

void check_keyword(const std::string& keyword, const std::string& latin1, std::string_view operation) {
  const auto printable = [](char c) {
    const auto code = static_cast<unsigned char>(c);
    return (code >= 0x20 && code <= 0x7e) || code >= 0xa1;
  };
  const bool spaced = latin1.starts_with(' ') || latin1.ends_with(' ') || latin1.find("  ") != latin1.npos;
  check(!latin1.empty() && latin1.size() <= 79 && std::ranges::all_of(latin1, printable) && !spaced,
        operation,
        ": keyword: expected 1 to 79 printable characters of Latin-1 with single spaces between words, got ",
        quote(keyword));
}

}  // namespace

PngHeader check_png_header(Bytes bytes, std::string_view site, std::int64_t most) {
  const std::size_t common = std::min(bytes.size(), png_signature.size());
  check(common > 0 && std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(common),
                                 std::as_bytes(std::span(png_signature)).begin()),
        site, ": expected a PNG file, got other bytes at its beginning");
  check(bytes.size() >= png_signature.size(), site, ": truncated: the file ends in its signature");
  const Chunk chunk = chunk_at(bytes, png_signature.size(), site);
  check(chunk.type == "IHDR" && chunk.data.size() == 13, site, ": expected an IHDR chunk of 13 bytes first");
  const unsigned depth = std::to_integer<unsigned>(chunk.data[8]);
  const unsigned samples = samples_of_colour_type(std::to_integer<unsigned>(chunk.data[9]));
  const PngHeader header{big_endian(chunk.data), big_endian(chunk.data.subspan(4)), depth * samples};
  check_size(site, header.width, header.height, most);
  const std::uint64_t least =
      header.height * ((std::uint64_t{header.width} * std::max(header.bits_per_pixel, 1u) + 7) / 8);
  check(least / max_deflate <= bytes.size(), site, ": truncated: ", header.width, " x ", header.height,
        " pixels do not fit into a file of ", bytes.size(), " bytes");
  return header;
}

std::vector<TextEntry> find_png_text(Bytes bytes, std::string_view site) {
  check_png_header(bytes, site);
  std::vector<TextEntry> found;
  std::size_t budget = max_unpacked;
  for (std::size_t offset = png_signature.size();;) {
    const Chunk chunk = chunk_at(bytes, offset, site);
    if (chunk.type == "IEND") return found;
    if (is_text(chunk.type)) found.push_back(text_entry(chunk, budget, site));
    offset += frame_bytes + chunk.data.size();
  }
}

std::vector<TextEntry> find_png_text(const FileParts& file, std::size_t most) {
  constexpr std::uint64_t around_text = 5;  // zero bytes and flags of an iTXt chunk
  constexpr int max_chunks = 1 << 20;       // a file of empty ones could keep a processor busy for minutes
  std::vector<TextEntry> found;
  std::size_t budget = max_unpacked, text_bytes = 0;
  std::uint64_t offset = png_signature.size();
  for (int i = 0; i < max_chunks; ++i) {
    const std::string head = file.at(offset, 8);
    const std::uint64_t length = big_endian(std::as_bytes(std::span(head)));
    const std::string type = head.substr(4);
    if (type == "IEND") return found;
    check(length + frame_bytes <= file.size() - offset, file.site(), ": truncated: a chunk at byte ", offset,
          " has ", length, " bytes, and the file ", file.size() - offset);
    if (is_text(type)) {
      text_bytes += length - std::min<std::uint64_t>(length, around_text);
      check(text_bytes <= most, file.site(), ": expected at most ", most, " bytes of text, got more");
      const std::string chunk = file.at(offset, length + frame_bytes);
      found.push_back(
          text_entry(chunk_at(std::as_bytes(std::span(chunk)), 0, file.site()), budget, file.site()));
    }
    offset += length + frame_bytes;
  }
  fail(file.site(), ": expected at most ", max_chunks, " chunks, got more");
}

PngChunk text_chunk(const TextEntry& entry, std::string_view operation) {
  std::string keyword;
  check(find_invalid_utf8(entry.keyword) == entry.keyword.size() && utf8_to_latin1(entry.keyword, keyword),
        operation, ": keyword: expected characters of Latin-1, in UTF-8, got ", quote(entry.keyword));
  check_keyword(entry.keyword, keyword, operation);
  const std::string site = ::pom::detail::concat(operation, ": text ", quote(entry.keyword));
  const std::size_t invalid = find_invalid_utf8(entry.text);
  check(invalid == entry.text.size(), site, ": expected UTF-8, got something else at byte ", invalid);
  check(entry.text.find('\0') == entry.text.npos, site,
        ": expected no zero byte, which the format cannot hold");
  check(entry.text.size() < 0x7fffff00u, site, ": expected less than 2 GiB, got ", entry.text.size(),
        " bytes");
  std::string latin1;
  if (utf8_to_latin1(entry.text, latin1)) return {"tEXt", keyword + '\0' + latin1};
  return {"iTXt", keyword + std::string(5, '\0') + entry.text};  // not compressed, no language
}

}  // namespace pom::io::detail
