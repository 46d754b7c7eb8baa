#include "pom/codecs/word_pieces.h"

#include <algorithm>
#include <map>

#include "pom/base/error.h"
#include "pom/base/shown.h"

namespace pom::codecs {
namespace {

bool is_space(unsigned char c) {
  return c <= ' ' || c == 0x7f;
}
bool in_word(unsigned char c) {
  return c >= 0x80 || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '\'';
}
char lowered(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;  // whether the last word may go on
  for (const char raw : text) {
    const char c = lowered(raw);
    const bool letter = in_word(static_cast<unsigned char>(c));
    if (is_space(static_cast<unsigned char>(c))) {
      open = false;
    } else if (letter && open) {
      words.back() += c;
    } else {
      words.emplace_back(1, c);
      open = letter;
    }
  }
  return words;
}

WordPieces::WordPieces(std::vector<std::string> words) : words_(std::move(words)) {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::vector<std::string> read = words_of(words_[i]);
    check(read.size() == 1 && read[0] == words_[i], "words: word ", i + 1,
          ": expected one word in lower case, got \"", shown(words_[i]), "\"");
    check(numbers_.emplace(words_[i], first_word + static_cast<std::int64_t>(i)).second, "words: word ",
          i + 1, ": \"", shown(words_[i]), "\" was there before");
  }
}

WordPieces WordPieces::of(std::span<const std::string> texts, std::size_t most) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& text : texts)
    for (const std::string& word : words_of(text)) ++counts[word];
  std::vector<std::pair<std::int64_t, std::string>> ranked;
  for (const auto& [word, count] : counts) ranked.emplace_back(-count, word);
  std::ranges::sort(ranked);  // of equally frequent ones the first in the alphabet
  ranked.resize(std::min(ranked.size(), most));
  std::vector<std::string> words;
  for (auto& [count, word] : ranked) words.push_back(std::move(word));
  std::ranges::sort(words);
  return WordPieces(std::move(words));
}

std::vector<std::int64_t> WordPieces::pieces(std::string_view text) const {
  std::vector<std::int64_t> pieces;
  for (const std::string& word : words_of(text)) {
    if (const auto found = numbers_.find(word); found != numbers_.end()) {
      pieces.push_back(found->second);
      continue;
    }
    pieces.push_back(spelled);
    for (const char c : word) pieces.push_back(static_cast<unsigned char>(c));
  }
  return pieces;
}

std::vector<std::string> WordPieces::unknown(std::string_view text) const {
  std::vector<std::string> unknown;
  for (std::string& word : words_of(text))
    if (!numbers_.contains(word) && std::ranges::find(unknown, word) == unknown.end())
      unknown.push_back(std::move(word));
  return unknown;
}

WordPieces WordPieces::from_lines(std::string_view lines) {
  std::vector<std::string> words;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    words.emplace_back(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return WordPieces(std::move(words));
}

std::string WordPieces::lines() const {
  std::string text;
  for (const std::string& word : words_) text.append(word).append("\n");
  return text;
}

}  // namespace pom::codecs
