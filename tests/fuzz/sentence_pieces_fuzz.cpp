// Fuzzes vocabularies of SentencePiece, and how a text is normalised and cut by them: the input is the
// vocabulary, and its last bytes are a text too. What is accepted gives pieces within the vocabulary, which
// together are the normalised text.
#include "tests/fuzz/fuzz.h"
#include <algorithm>
#include <cstdint>

#include "pom/io/sentence_pieces.h"

namespace {

using namespace pom::io;

void check_pieces(const SentencePieces& pieces, std::string_view text) {
  fuzz::accepted([&] {  // rules that lead nowhere are refused when a text leads there
    const std::string normalised = pieces.normalised(text);
    std::string joined;
    std::vector<std::int64_t> ids;
    for (const SentencePieces::Part& part : pieces.split(text)) {
      fuzz::require(part.id >= 0 && part.id < pieces.size(), "pieces are within the vocabulary");
      const SentencePiece& piece = pieces.piece(part.id);
      fuzz::require(piece.type != SentencePiece::control && piece.type != SentencePiece::unused,
                    "no text is a control piece");
      if (piece.type == SentencePiece::normal) fuzz::require(piece.text == part.text, "a piece is its text");
      joined += part.text;
      ids.push_back(part.id);
    }
    fuzz::require(joined == normalised, "the pieces are the text");
    fuzz::require(ids == pieces.encode(text), "the same pieces");
  });
}

void parse(std::string_view input) {
  fuzz::accepted([&] {
    const SentencePieces pieces(parse_sentence_pieces(std::as_bytes(std::span(input)), "fuzz"), "fuzz");
    for (const std::string_view text :
         {std::string_view(" a  b\t<\xe2\x96\x81"), std::string_view("an aab\xff"),
          input.substr(input.size() - std::min<std::size_t>(input.size(), 24))})
      check_pieces(pieces, text);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  parse(fuzz::text_of(data, size));
  return 0;
}
