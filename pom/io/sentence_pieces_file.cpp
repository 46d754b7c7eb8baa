#include "pom/io/sentence_pieces_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <unordered_set>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/folder_swap.h"
#include "pom/io/read_file.h"
#include "pom/io/sha256.h"

namespace pom::io {
namespace {

constexpr std::string_view operation = "vocabulary";

// One field of a message: a number, or bytes.
struct ProtoField {
  std::uint64_t number = 0;
  int wire = 0;  // 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
  std::uint64_t value = 0;
  std::string_view bytes = {};
};

// Reads the fields of a message one by one. `where` begins the errors.
class ProtoMessage {
 public:
  ProtoMessage(std::string_view bytes, std::string where) : left_(bytes), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  std::optional<ProtoField> next() {
    if (left_.empty()) return std::nullopt;
    const std::uint64_t key = varint();
    ProtoField field{.number = key >> 3, .wire = static_cast<int>(key & 7)};
    check(field.number >= 1 && field.number < (1U << 29), where_, ": expected fields with numbers from 1 to ",
          (1U << 29) - 1, ", got ", field.number);
    switch (field.wire) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed(8);
        break;
      case 2:
        field.bytes = taken(varint());
        break;
      case 5:
        field.value = fixed(4);
        break;
      default:
        fail(where_, ": field ", field.number, ": expected a value of wire type 0, 1, 2 or 5, got ",
             field.wire);
    }
    return field;
  }

  // What a field must be like.
  void check_wire(const ProtoField& field, const char* name, int wire) const {
    check(field.wire == wire, where_, ": ", name, ": expected a value of wire type ", wire, ", got ",
          field.wire);
  }

 private:
  std::string_view taken(std::uint64_t count) {
    check(count <= left_.size(), where_, ": truncated: expected ", count, " bytes more, got ", left_.size());
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }

  std::uint64_t fixed(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view bytes = taken(count);
    for (std::size_t i = 0; i < count; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return value;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const std::uint64_t byte = fixed(1);
      check(shift < 63 || byte <= 1, where_, ": expected a number below 2^64, got a larger one");
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail(where_, ": expected a number of at most 10 bytes, got a longer one");
  }

  std::string_view left_;
  std::string where_;
};

SentencePiece parse_piece(ProtoMessage message) {
  SentencePiece piece;
  while (const std::optional<ProtoField> field = message.next()) {
    if (field->number == 1) {
      message.check_wire(*field, "piece", 2);
      piece.text = field->bytes;
    } else if (field->number == 2) {
      message.check_wire(*field, "score", 5);
      piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field->value));
    } else if (field->number == 3) {
      message.check_wire(*field, "type", 0);
      check(field->value >= SentencePiece::normal && field->value <= SentencePiece::byte, message.where(),
            ": type: expected 1 to 6, got ", field->value);
      piece.type = static_cast<SentencePiece::Type>(field->value);
    }
  }
  check(!piece.text.empty(), message.where(), ": piece: expected a text, got an empty one");
  check(piece.text.find('\0') == std::string::npos, message.where(),
        ": piece: expected a text without NUL, got \"", shown(piece.text), "\"");
  check(std::isfinite(piece.score), message.where(), ": score: expected a finite number, got ", piece.score);
  return piece;
}

void parse_trainer(ProtoMessage message, SentencePieceModel& model) {
  constexpr const char* names[] = {"unigram", "bpe", "word", "char"};
  while (const std::optional<ProtoField> field = message.next()) {
    if (field->number == 3) {
      message.check_wire(*field, "model_type", 0);
      check(field->value == 1, message.where(), ": model_type: expected 1 (unigram), got ", field->value,
            field->value >= 2 && field->value <= 4 ? pom::detail::concat(" (", names[field->value - 1], ")")
                                                   : std::string());
    } else if (field->number == 24) {
      message.check_wire(*field, "treat_whitespace_as_suffix", 0);
      check(field->value == 0, message.where(), ": treat_whitespace_as_suffix: expected 0, got ",
            field->value);
    } else if (field->number == 35) {
      message.check_wire(*field, "byte_fallback", 0);
      model.byte_fallback = field->value != 0;
    }
  }
}

// Four bytes of size, the trie, the results.
void parse_rules(std::string_view bytes, const std::string& where, SentencePieceModel& model) {
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
    return value;
  };
  model.trie.clear();
  model.results.clear();
  if (bytes.empty()) return;
  check(bytes.size() > 4, where, ": expected more than 4 bytes, got ", bytes.size());
  const std::size_t size = word(0);
  check(size < bytes.size() - 4, where, ": expected a trie of less than ", bytes.size() - 4, " bytes, got ",
        size);
  check(size > 0 && size % 4 == 0, where, ": expected a trie of whole words of 4 bytes, got ", size,
        " bytes");
  check(bytes.back() == '\0', where, ": expected results that end with NUL, got ",
        static_cast<int>(static_cast<unsigned char>(bytes.back())));
  model.trie.reserve(size / 4);
  for (std::size_t at = 4; at < 4 + size; at += 4) model.trie.push_back(word(at));
  model.results = bytes.substr(4 + size);
}

void parse_normalizer(ProtoMessage message, SentencePieceModel& model) {
  while (const std::optional<ProtoField> field = message.next()) {
    const auto flag = [&](const char* name, bool& value) {
      message.check_wire(*field, name, 0);
      value = field->value != 0;
    };
    if (field->number == 2) {
      message.check_wire(*field, "precompiled_charsmap", 2);
      parse_rules(field->bytes, message.where() + ": precompiled_charsmap", model);
    } else if (field->number == 3) {
      flag("add_dummy_prefix", model.dummy_prefix);
    } else if (field->number == 4) {
      flag("remove_extra_whitespaces", model.remove_spaces);
    } else if (field->number == 5) {
      flag("escape_whitespaces", model.escape_spaces);
    }
  }
}

// "<0x0A>" -> 10.
std::optional<int> byte_named(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = digit(text[3]), low = digit(text[4]);
  return high < 0 || low < 0 ? std::nullopt : std::optional(16 * high + low);
}

// What no piece can say for itself.
void check_model(SentencePieceModel& model, std::string_view source) {
  std::unordered_set<std::string_view> found, reserved;
  std::size_t bytes = 0;
  check(!model.pieces.empty(), source, ": expected a SentencePiece model, got one without pieces");
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const bool in_text = piece.type == SentencePiece::normal || piece.type == SentencePiece::user_defined ||
                         piece.type == SentencePiece::unused;
    check((in_text ? found : reserved).insert(piece.text).second, source, ": pieces[", i, "]: piece: \"",
          shown(piece.text), "\" was there before");
    if (piece.type == SentencePiece::unknown) {
      check(model.unknown < 0, source, ": pieces[", i, "]: type: expected one unknown piece, got two, \"",
            shown(model.pieces[static_cast<std::size_t>(std::max<std::int64_t>(model.unknown, 0))].text),
            "\" and \"", shown(piece.text), "\"");
      model.unknown = static_cast<std::int64_t>(i);
    }
    if (piece.type == SentencePiece::byte) {
      check(model.byte_fallback, source, ": pieces[", i,
            "]: type: expected no bytes, as byte_fallback says, "
            "got \"",
            shown(piece.text), "\"");
      check(byte_named(piece.text).has_value(), source, ": pieces[", i,
            "]: piece: expected <0x00> to <0xFF>, "
            "got \"",
            shown(piece.text), "\"");
      ++bytes;
    }
  }
  check(model.unknown >= 0, source, ": pieces: expected an unknown piece, got none");
  check(!model.byte_fallback || bytes == 256, source,
        ": pieces: expected 256 bytes, as byte_fallback says, "
        "got ",
        bytes);
}

SentencePieceModel read_opened(const detail::FileDescriptor& file, const std::string& name) {
  return parse_sentence_pieces(detail::read_file(file, name, operation, max_sentence_pieces_bytes), name);
}

}  // namespace

SentencePieceModel parse_sentence_pieces(std::span<const std::byte> bytes, std::string_view source) {
  SentencePieceModel model;
  const std::string where(source);
  // The fields of a model are messages with numbers from 1 to 5: most other files end here.
  const unsigned first = bytes.empty() ? 0 : std::to_integer<unsigned>(bytes[0]);
  check(first % 8 == 2 && first / 8 >= 1 && first / 8 <= 5, source, ": expected a SentencePiece model, got ",
        bytes.empty() ? "an empty file" : "another file");
  ProtoMessage message({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where);
  while (const std::optional<ProtoField> field = message.next()) {
    const auto part = [&](const std::string& name) {
      message.check_wire(*field, name.c_str(), 2);
      return ProtoMessage(field->bytes, where + ": " + name);
    };
    if (field->number == 1) {
      check(model.pieces.size() < max_sentence_pieces, where, ": pieces: expected at most ",
            max_sentence_pieces, ", got more");
      model.pieces.push_back(parse_piece(part("pieces[" + std::to_string(model.pieces.size()) + "]")));
    } else if (field->number == 2) {
      parse_trainer(part("trainer_spec"), model);
    } else if (field->number == 3) {
      parse_normalizer(part("normalizer_spec"), model);
    }
  }
  check_model(model, source);
  Sha256 hash;
  hash.update(bytes);
  model.sha256 = hash.hex();
  return model;
}

SentencePieceModel read_sentence_pieces(const std::filesystem::path& path) {
  return read_opened(detail::open_for_reading(path, operation), path.string());
}

SentencePieceModel read_sentence_pieces(const OpenFolder& folder, const std::string& name) {
  return read_opened(folder.open(name, operation), folder.path_of(name));
}

}  // namespace pom::io
