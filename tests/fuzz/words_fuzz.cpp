// Fuzzes the list of words of a text encoder, and how a prompt becomes pieces of it: the text before the
// first NUL is the list, the rest the prompt. A list that is accepted must come back equal when it is written
// and read again.
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <cstdint>

#include "pom/codecs/word_pieces.h"

namespace {

using pom::codecs::WordPieces;
using pom::codecs::words_of;

void check_pieces(const WordPieces& list, std::string_view prompt) {
  for (const std::int64_t piece : list.pieces(prompt))
    fuzz::require(piece >= 0 && piece < list.size(), "pieces are within the table");
  for (const std::string& word : words_of(prompt))
    fuzz::require(words_of(word) == std::vector<std::string>{word}, "a word is one word");
}

void parse(std::string_view input) {
  const std::string_view lines = input.substr(0, input.find('\0'));
  const std::string prompt(input.substr(std::min(lines.size() + 1, input.size())));
  check_pieces(WordPieces::of(std::span(&prompt, 1), 16), prompt);
  fuzz::accepted([&] {
    const WordPieces list = WordPieces::from_lines(lines);
    fuzz::require(WordPieces::from_lines(list.lines()).words() == list.words(), "the same words");
    check_pieces(list, prompt);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::text_of(data, size));
  return 0;
}
