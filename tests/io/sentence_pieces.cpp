// Vocabularies of SentencePiece: how texts become pieces, and what is refused. The package itself is the
// referee in python/tests/test_t5.py; here are small vocabularies, written out.
#include "pom/io/sentence_pieces.h"

#include "tests/hostile/judge.h"
#include <bit>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::io {
namespace {

using Ids = std::vector<std::int64_t>;

std::string number_bytes(std::uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  return bytes + static_cast<char>(value);
}
std::string text_field(std::uint64_t field, const std::string& bytes) {
  return number_bytes(field << 3 | 2) + number_bytes(bytes.size()) + bytes;
}
std::string number_field(std::uint64_t field, std::uint64_t value) {
  return number_bytes(field << 3) + number_bytes(value);
}
std::string word_bytes(std::uint32_t word) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(word >> shift);
  return bytes;
}

std::string piece(const std::string& text, float score, int type = 1) {
  return text_field(1, text_field(1, text) + number_bytes(2 << 3 | 5) +
                           word_bytes(std::bit_cast<std::uint32_t>(score)) +
                           number_field(3, static_cast<std::uint64_t>(type)));
}

const std::string special = piece("<pad>", 0, 3) + piece("</s>", 0, 3) + piece("<unk>", 0, 2);
const std::string space = "\xe2\x96\x81";

SentencePieceModel parsed(const std::string& bytes) {
  return parse_sentence_pieces(std::as_bytes(std::span(bytes)), "spiece.model");
}

// Rules for one byte each: a trie of one level, whose root is at 0 and whose children are from 256 on.
std::string rules(const std::vector<std::pair<char, std::string>>& pairs) {
  constexpr std::uint32_t children = 256, leaves = 512;
  std::vector<std::uint32_t> trie(1024);
  trie[0] = children << 10;
  std::string results;
  for (std::uint32_t i = 0; i < pairs.size(); ++i) {
    const std::uint32_t byte = static_cast<unsigned char>(pairs[i].first), place = children ^ byte;
    trie[place] = ((place ^ (leaves + i)) << 10) | 1U << 8 | byte;
    trie[leaves + i] = 1U << 31 | static_cast<std::uint32_t>(results.size());
    results += pairs[i].second + '\0';
  }
  std::string bytes = word_bytes(static_cast<std::uint32_t>(4 * trie.size()));
  for (const std::uint32_t unit : trie) bytes += word_bytes(unit);
  return bytes + results;
}

TEST(SentencePieces, TakeTheBestSum) {
  const SentencePieces pieces(parsed(special + piece(space, -3) + piece("a", -2) + piece("b", -2) +
                                     piece(space + "a", -4) + piece("ab", -3.5) + piece("aba", -9)));
  EXPECT_EQ(pieces.size(), 9);
  EXPECT_EQ(pieces.encode("a"), (Ids{6}));
  EXPECT_EQ(pieces.encode("ab"), (Ids{6, 5}));
  EXPECT_EQ(pieces.encode("aab"), (Ids{6, 7}));
  EXPECT_EQ(pieces.encode("ba"), (Ids{3, 5, 4}));
  EXPECT_EQ(pieces.encode("  b   a "), (Ids{3, 5, 6}));
  EXPECT_EQ(pieces.encode(""), Ids{});
  EXPECT_EQ(pieces.encode("   "), Ids{});
  EXPECT_EQ(pieces.normalised(" a  b "), space + "a" + space + "b");
  EXPECT_EQ(pieces.piece(7).text, "ab");
}

TEST(SentencePieces, TakeTheFirstOfEquals) {
  // "ab" by the first way that reaches its end: the single letters come after.
  const SentencePieces pieces(parsed(special + piece(space, -1) + piece("a", -1) + piece("b", -1) +
                                     piece("ab", -2) + piece("unused", -1, 5)));
  EXPECT_EQ(pieces.encode("ab"), (Ids{3, 6}));
  EXPECT_EQ(pieces.encode("unused"), (Ids{3, 2}));
}

TEST(SentencePieces, UnknownOnesAreOne) {
  const SentencePieces pieces(parsed(special + piece(space, -1) + piece("a", -1)));
  EXPECT_EQ(pieces.encode("a\xf0\x9f\x98\x8a\xe7\x94\x9f<a"), (Ids{3, 4, 2, 4}));
  EXPECT_EQ(pieces.encode("</s>"), (Ids{3, 2}));
  EXPECT_EQ(pieces.encode("\xff\xe2\x96"), (Ids{3, 2}));
  EXPECT_EQ(pieces.normalised("\xff\xc3"), space + "\xef\xbf\xbd\xef\xbf\xbd");
  const auto parts = pieces.split("a<>a");
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[2].text, "<>");
  EXPECT_EQ(parts[2].id, pieces.unknown());
}

TEST(SentencePieces, AreNormalisedByTheRulesOfTheFile) {
  const std::string normalizer =
      text_field(3, text_field(2, rules({{'\t', " "}, {'A', "a"}, {'x', "ab"}, {'-', ""}})));
  const SentencePieces pieces(
      parsed(special + piece(space, -1) + piece("a", -1) + piece("b", -1) + normalizer));
  EXPECT_EQ(pieces.normalised("\tA\t\tx-b\t"), space + "a" + space + "abb");
  EXPECT_EQ(pieces.encode("\tA\t\tx-b\t"), (Ids{3, 4, 3, 4, 5, 5}));
  EXPECT_EQ(pieces.normalised("-"), "");  // nothing but the space in front, which goes too
  EXPECT_EQ(pieces.encode("\t\t"), Ids{});
}

TEST(SentencePieces, FollowTheirSettings) {
  const std::string plain = special + piece(" ", -1) + piece("a", -1) + piece(space, -1);
  const std::string none = number_field(3, 0) + number_field(4, 0);
  EXPECT_EQ(SentencePieces(parsed(plain + text_field(3, none))).encode(" a  "), (Ids{5, 4, 5, 5}));
  EXPECT_EQ(SentencePieces(parsed(plain + text_field(3, none + number_field(5, 0)))).encode(" a  "),
            (Ids{3, 4, 3, 3}));
  std::string bytes = special;
  for (int i = 0; i < 256; ++i) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(i));
    bytes += piece(name, 0, 6);
  }
  const SentencePieces fallback(parsed(bytes + piece(space, -1) + text_field(2, number_field(35, 1))));
  EXPECT_EQ(fallback.encode("a\xc3\xa9"), (Ids{259, 3 + 'a', 3 + 0xc3, 3 + 0xa9}));
  const SentencePieces own(parsed(special + piece(space, -1) + piece("a", -1) + piece("a\tb", -1, 4) +
                                  text_field(3, text_field(2, rules({{'\t', " "}})))));
  EXPECT_EQ(own.encode("aa\tba\t"), (Ids{3, 4, 5, 4}));
}

std::string refusal(const std::string& bytes, const std::string& text = "aA") {
  try {
    SentencePieces(parsed(bytes), "spiece.model").encode(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Tries that lie are found when a text leads there, and never followed.
TEST(SentencePieces, RefuseRulesThatLeadNowhere) {
  const auto with = [](const std::function<void(std::string&)>& damage) {
    std::string table = rules({{'A', "a"}});
    damage(table);
    return special + piece("a", -1) + text_field(3, text_field(2, table));
  };
  const auto put = [](std::string& table, std::size_t unit, std::uint32_t value) {
    table.replace(4 + 4 * unit, 4, word_bytes(value));
  };
  EXPECT_EQ(refusal(with([](std::string&) {})), "no error");
  EXPECT_EQ(refusal(with([&](std::string& t) { put(t, 0, 0xffffffff); })), "no error");  // leaves no match
  EXPECT_EQ(refusal(with([&](std::string& t) { put(t, 256 ^ 'A', 0x7ffffc00 | 1U << 8 | 'A'); })),
            "spiece.model: precompiled_charsmap: expected places below 1024 in the trie, got 2096830");
  EXPECT_EQ(refusal(with([&](std::string& t) { put(t, 512, 0x7fffffff); })),
            "spiece.model: precompiled_charsmap: expected results below 2, got 2147483647");
}

TEST(SentencePieces, RefuseRulesThatMakeTooMuchOfAText) {
  const std::string table = rules({{'A', std::string(100'000, 'a')}});
  const std::string model = special + piece("a", -1) + text_field(3, text_field(2, table));
  EXPECT_EQ(refusal(model, "AA"), "no error");
  EXPECT_EQ(refusal(model, std::string(1000, 'A')),
            "spiece.model: precompiled_charsmap: expected rules that make a text at most 64 times as long, "
            "got more");
}

TEST(SentencePieces, ReadLongTextsInATimeThatGrowsWithThem) {
  std::string model = special;
  for (int i = 1; i < 40; ++i)
    model += piece(std::string(static_cast<std::size_t>(i), 'a'), static_cast<float>(-i));
  const SentencePieces pieces(parsed(model));
  EXPECT_EQ(pieces.encode(std::string(200'000, 'a')).front(), 2);  // the space in front
}

// Some are seen only when a text leads there.
TEST(SentencePieces, EachHostileFileIsRefusedForItsReason) {
  hostile::Table table("sentence_pieces");
  const hostile::Folder folder;
  const auto judge = [&](const std::string& name, const std::filesystem::path& file) {
    table.judge(name, file.parent_path(),
                [&] { SentencePieces(read_sentence_pieces(file), file.string()).encode("an a<>"); });
  };
  for (const auto& file : hostile::files_of("sentence_pieces")) judge(file.filename(), file);
  const auto made = [&](const std::string& name, const std::string& bytes) {
    hostile::put_bytes(folder.path() / name, bytes);
    judge(name, folder.path() / name);
  };
  std::string many;
  for (std::size_t i = 0; i <= max_sentence_pieces; ++i)
    many += text_field(1, text_field(1, "p" + std::to_string(i)));
  made("large_many_pieces.model", many);
  made("large_piece_twice.model",
       special + piece(std::string(1'000'000, 'p'), -1) + piece(std::string(1'000'000, 'p'), -1));
  made("large_file.model", std::string(max_sentence_pieces_bytes + 1, '\0'));
  table.finish();
}

}  // namespace
}  // namespace pom::io
