// Text to the numbers of a SentencePiece vocabulary, as the library of that name does it: normalised by the
// vocabulary's own rules, then cut where the sum of the pieces' scores is greatest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pom/io/sentence_pieces_file.h"

namespace pom::io {

// Pieces in the order of their bytes: the trie of a text's prefixes, without a table that could lie.
class PieceIndex {
 public:
  void insert(std::string_view text, std::int64_t id);  // which must live on; none twice
  void finish();

  // The pieces that begin with the bytes read so far.
  struct Range {
    std::size_t first, last, bytes;
  };
  Range all() const { return {0, sorted_.size(), 0}; }
  // Goes on by a byte; false where no piece goes on so.
  bool advance(Range& range, char byte) const;
  // The piece that ends here, or -1.
  std::int64_t at_end(const Range& range) const;

 private:
  struct Entry {
    std::string_view text;
    std::int64_t id;
  };
  std::vector<Entry> sorted_;
};

class SentencePieces {
 public:
  // `source` begins the messages of what is found wrong with the rules as they are used.
  explicit SentencePieces(SentencePieceModel model, std::string source = "vocabulary");
  SentencePieces(const SentencePieces&) = delete;
  SentencePieces& operator=(const SentencePieces&) = delete;

  // The numbers of a text's pieces, without a mark of the end. Any bytes will do for a text; what is not
  // UTF-8 counts as U+FFFD.
  std::vector<std::int64_t> encode(std::string_view text) const;
  // The same with the part of the normalised text that each stands for.
  struct Part {
    std::int64_t id;
    std::string text;
  };
  std::vector<Part> split(std::string_view text) const;
  // What is split.
  std::string normalised(std::string_view text) const;

  std::int64_t size() const { return static_cast<std::int64_t>(model_.pieces.size()); }
  std::int64_t unknown() const { return model_.unknown; }
  const std::string& sha256() const { return model_.sha256; }  // of the file
  const SentencePiece& piece(std::int64_t id) const { return model_.pieces.at(static_cast<std::size_t>(id)); }

 private:
  struct Cut {
    std::size_t first, last;  // of the normalised text
    std::int64_t id;
  };
  struct Rewritten {
    std::string_view text;
    std::size_t bytes;  // of the original
  };
  std::vector<Cut> cut(std::string_view normalised) const;
  Rewritten rewritten(std::string_view text) const;
  Rewritten by_rule(std::string_view text) const;

  SentencePieceModel model_;
  std::string source_;
  PieceIndex index_, own_;           // pieces in texts; those that users defined, which no rule changes
  std::vector<std::int64_t> bytes_;  // the ids of the 256 bytes, where there is byte fallback
  float least_score_;                // of the normal ones
};

}  // namespace pom::io
