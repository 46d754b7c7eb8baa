// Text to numbers: a word of the list is one piece, any other is spelled in bytes. Letter case is ignored
// (of ASCII), as is the amount of space.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace pom::codecs {

// A piece's number: 0 … 255 a byte, 256 the beginning of a word that is spelled, from 257 on the list.
class WordPieces {
 public:
  static constexpr std::int64_t spelled = 256, first_word = 257;

  // Words as words_of gives them, none twice.
  explicit WordPieces(std::vector<std::string> words);
  // The `most` most frequent words of some texts, in alphabetical order.
  static WordPieces of(std::span<const std::string> texts, std::size_t most);

  std::vector<std::int64_t> pieces(std::string_view text) const;
  // Words of a text that are not of the list, each once.
  std::vector<std::string> unknown(std::string_view text) const;
  const std::vector<std::string>& words() const { return words_; }
  std::int64_t size() const { return first_word + static_cast<std::int64_t>(words_.size()); }  // of pieces

  // One word a line, each line ended.
  static WordPieces from_lines(std::string_view lines);
  std::string lines() const;

 private:
  std::vector<std::string> words_;
  std::unordered_map<std::string, std::int64_t> numbers_;
};

// "A red Star, left!" -> a, red, star, ",", left, "!": letters, digits, apostrophes and what is not ASCII
// make words; each sign is a word of its own.
std::vector<std::string> words_of(std::string_view text);

}  // namespace pom::codecs
