// A vocabulary of SentencePiece (spiece.model): a protobuf message, read without protobuf. Unigram models
// only, the kind that T5 has.
//
//   ModelProto   1 pieces {1 piece, 2 score, 3 type}, 2 trainer {3 model type, 24 spaces as suffix,
//                35 byte fallback}, 3 normalizer {2 rules, 3 dummy prefix, 4 remove spaces, 5 escape spaces}
//
// The rules are a double-array trie (Darts) from strings of bytes to places in a list of NUL-ended results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::io {

class OpenFolder;

inline constexpr std::uint64_t max_sentence_pieces_bytes = std::uint64_t{64} << 20;
inline constexpr std::size_t max_sentence_pieces = std::size_t{1} << 20;

struct SentencePiece {
  enum Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

  std::string text;
  float score = 0;
  Type type = normal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  // a piece's place is its id; none twice, one of them unknown
  std::int64_t unknown = -1;
  bool dummy_prefix = true;   // a space before the text
  bool remove_spaces = true;  // those at the ends and all but one within
  bool escape_spaces = true;  // as U+2581
  bool byte_fallback = false;
  std::vector<std::uint32_t> trie;  // empty: no rules
  std::string results;              // ends with NUL where there are rules
  std::string sha256;               // of the bytes, in hexadecimal digits
};

// Everything that is wrong with the bytes is a pom::Error that begins with `source`.
SentencePieceModel parse_sentence_pieces(std::span<const std::byte> bytes, std::string_view source);

SentencePieceModel read_sentence_pieces(const std::filesystem::path& path);
SentencePieceModel read_sentence_pieces(const OpenFolder& folder, const std::string& name);

}  // namespace pom::io
