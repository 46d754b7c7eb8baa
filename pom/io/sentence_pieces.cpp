#include "pom/io/sentence_pieces.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "pom/base/error.h"

namespace pom::io {
namespace {

constexpr std::string_view space_mark = "\xe2\x96\x81";   // U+2581
constexpr std::string_view replacement = "\xef\xbf\xbd";  // U+FFFD
constexpr float unknown_penalty = 10;

// What rules may make of a text. NFKC makes at most 11 bytes of one.
constexpr std::size_t most_growth = 64, always_allowed = std::size_t{1} << 20;

// Bytes of the first character; 0 where they are no UTF-8.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc0 || first >= 0xf8 || text.size() < length) return 0;
  char32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_character = code < 0xd800 || (code >= 0xe000 && code <= 0x10ffff);
  return code >= least[length] && is_character ? length : 0;
}

// The same by the first byte alone, as SentencePiece walks through what is normalised.
std::size_t step_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Of a piece that users defined, by its bytes: better than what was learned, whose scores are negative.
float own_score(std::size_t bytes) {
  return static_cast<float>(0.1 * static_cast<double>(bytes) - 0.1);
}

// A unit of a double-array trie (Darts).
struct TrieUnit {
  std::uint32_t bits;
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  std::uint32_t value() const { return bits & 0x7fffffff; }
  std::uint32_t label() const { return bits & 0x800000ff; }
  std::size_t offset() const { return std::size_t{bits >> 10} << (bits >> 6 & 8); }
};

}  // namespace

void PieceIndex::insert(std::string_view text, std::int64_t id) {
  sorted_.push_back({text, id});
}

void PieceIndex::finish() {
  std::ranges::sort(sorted_, {}, &Entry::text);
}

bool PieceIndex::advance(Range& range, char byte) const {
  const std::size_t place = range.bytes;
  const int wanted = static_cast<unsigned char>(byte);
  // Of pieces with equal beginnings the one that ends here is the first.
  const auto byte_there = [place](const Entry& entry) {
    return entry.text.size() <= place ? -1 : int{static_cast<unsigned char>(entry.text[place])};
  };
  const Entry *begin = sorted_.data() + range.first, *end = sorted_.data() + range.last;
  const Entry* first =
      std::partition_point(begin, end, [&](const Entry& entry) { return byte_there(entry) < wanted; });
  const Entry* last =
      std::partition_point(first, end, [&](const Entry& entry) { return byte_there(entry) == wanted; });
  range = {static_cast<std::size_t>(first - sorted_.data()), static_cast<std::size_t>(last - sorted_.data()),
           place + 1};
  return first != last;
}

std::int64_t PieceIndex::at_end(const Range& range) const {
  const bool ends = range.first < range.last && sorted_[range.first].text.size() == range.bytes;
  return ends ? sorted_[range.first].id : -1;
}

SentencePieces::SentencePieces(SentencePieceModel model, std::string source)
    : model_(std::move(model)), source_(std::move(source)), least_score_(std::numeric_limits<float>::max()) {
  if (model_.byte_fallback) bytes_.resize(256);
  for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
    const SentencePiece& piece = model_.pieces[i];
    const auto id = static_cast<std::int64_t>(i);
    if (piece.type == SentencePiece::normal) least_score_ = std::min(least_score_, piece.score);
    if (piece.type == SentencePiece::normal || piece.type == SentencePiece::user_defined)
      index_.insert(piece.text, id);
    if (piece.type == SentencePiece::user_defined) own_.insert(piece.text, id);
    if (piece.type == SentencePiece::byte) bytes_[std::stoul(piece.text.substr(3, 2), nullptr, 16)] = id;
  }
  index_.finish();
  own_.finish();
}

// The longest match of the rules.
SentencePieces::Rewritten SentencePieces::by_rule(std::string_view text) const {
  Rewritten best{{}, 0};
  if (model_.trie.empty()) return best;
  const auto unit = [&](std::size_t place) {
    check(place < model_.trie.size(), source_, ": precompiled_charsmap: expected places below ",
          model_.trie.size(), " in the trie, got ", place);
    return TrieUnit{model_.trie[place]};
  };
  std::size_t place = unit(0).offset();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    if (place >= model_.trie.size()) break;
    const TrieUnit here = unit(place);
    if (here.label() != byte) break;
    place ^= here.offset();
    if (!here.has_leaf()) continue;
    const std::uint32_t result = unit(place).value();
    check(result < model_.results.size(), source_, ": precompiled_charsmap: expected results below ",
          model_.results.size(), ", got ", result);
    best = {model_.results.c_str() + result, i + 1};
  }
  return best;
}

// What the beginning of a text becomes: a piece of the user's stays, else a rule, else a character as it is.
SentencePieces::Rewritten SentencePieces::rewritten(std::string_view text) const {
  std::size_t own = 0;
  PieceIndex::Range range = own_.all();
  for (std::size_t i = 0; i < text.size() && own_.advance(range, text[i]); ++i)
    if (own_.at_end(range) >= 0) own = i + 1;
  if (own > 0) return {text.substr(0, own), own};
  if (const Rewritten rule = by_rule(text); rule.bytes > 0) return rule;
  const std::size_t length = utf8_length(text);
  return length == 0 ? Rewritten{replacement, 1} : Rewritten{text.substr(0, length), length};
}

std::string SentencePieces::normalised(std::string_view text) const {
  const std::size_t most = always_allowed + most_growth * text.size();
  while (model_.remove_spaces && !text.empty()) {
    const Rewritten first = rewritten(text);
    if (first.text != " ") break;
    text.remove_prefix(first.bytes);
  }
  if (text.empty()) return {};
  const std::string_view space = model_.escape_spaces ? space_mark : " ";
  std::string result;
  if (model_.dummy_prefix) result += space;
  bool after_space = model_.remove_spaces;
  while (!text.empty()) {
    Rewritten next = rewritten(text);
    text.remove_prefix(next.bytes);
    while (after_space && next.text.starts_with(' ')) next.text.remove_prefix(1);
    for (const char c : next.text)
      if (c == ' ')
        result += space;
      else
        result += c;
    if (!next.text.empty()) after_space = next.text.ends_with(' ');
    after_space = after_space && model_.remove_spaces;
    check(result.size() <= most, source_, ": precompiled_charsmap: expected rules that make a text at most ",
          most_growth, " times as long, got more");
  }
  while (model_.remove_spaces && result.ends_with(space)) result.erase(result.size() - space.size());
  return result;
}

// Of all ways that lead to a place the best is kept, with the sum of its scores in single precision.
std::vector<SentencePieces::Cut> SentencePieces::cut(std::string_view text) const {
  struct Best {
    float score = 0;
    std::int64_t id = -1;
    std::size_t first = 0;
  };
  std::vector<Best> best(text.size() + 1);  // by where they end
  const auto offer = [&](std::size_t first, std::size_t last, std::int64_t id, float score) {
    Best& there = best[last];
    const float sum = best[first].score + score;
    if (there.id < 0 || sum > there.score) there = {sum, id, first};
  };
  for (std::size_t first = 0; first < text.size();) {
    const std::size_t length = std::min(step_length(text[first]), text.size() - first);
    bool has_one = false;  // a piece of this character alone
    PieceIndex::Range range = index_.all();
    for (std::size_t last = first + 1; last <= text.size() && index_.advance(range, text[last - 1]); ++last) {
      const std::int64_t id = index_.at_end(range);
      if (id < 0) continue;
      const SentencePiece& found = piece(id);
      const bool own = found.type == SentencePiece::user_defined;
      offer(first, last, id, own ? own_score(last - first) : found.score);
      has_one = has_one || last - first == length;
    }
    if (!has_one) offer(first, first + length, model_.unknown, least_score_ - unknown_penalty);
    first += length;
  }
  std::vector<Cut> cuts;
  for (std::size_t last = text.size(); last > 0; last = cuts.back().first)
    cuts.push_back({best[last].first, last, best[last].id});
  std::ranges::reverse(cuts);
  return cuts;
}

std::vector<SentencePieces::Part> SentencePieces::split(std::string_view text) const {
  const std::string plain = normalised(text);
  std::vector<Part> parts;
  bool after_unknown = false;
  for (const Cut& cut : cut(plain)) {
    const bool unknown = cut.id == model_.unknown;
    const std::string_view part = std::string_view(plain).substr(cut.first, cut.last - cut.first);
    if (unknown && model_.byte_fallback)
      for (const char c : part) parts.push_back({bytes_[static_cast<unsigned char>(c)], std::string(1, c)});
    else if (unknown && after_unknown)  // a run of unknown ones is one
      parts.back().text += part;
    else
      parts.push_back({cut.id, std::string(part)});
    after_unknown = unknown;
  }
  return parts;
}

std::vector<std::int64_t> SentencePieces::encode(std::string_view text) const {
  std::vector<std::int64_t> ids;
  for (const Part& part : split(text)) ids.push_back(part.id);
  return ids;
}

}  // namespace pom::io
