// The text encoder of words: how texts become pieces, what it makes of them, and its folder.
#include "pom/codecs/words.h"

#include <filesystem>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

using io::safetensors::Reader;
using Numbers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

const Texts kCaptions{"a red star drifts to the left", "a blue star over red", "A RED circle!"};

TextConfig small(std::int64_t mixers = 0) {
  TextConfig config;
  config.width = 12, config.limit = 9, config.mixers = mixers;
  return config;
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(WordPieces, AreWordsOfTheListOrBytes) {
  EXPECT_EQ(words_of("A red  Star's\tleft, now!"), (Texts{"a", "red", "star's", "left", ",", "now", "!"}));
  EXPECT_EQ(words_of("caf\xc3\xa9 2x"), (Texts{"caf\xc3\xa9", "2x"}));
  EXPECT_TRUE(words_of(" \n").empty());
  const WordPieces pieces({"a", "red", "star"});
  EXPECT_EQ(pieces.size(), 260);
  EXPECT_EQ(pieces.pieces("a Red star"), (Numbers{257, 258, 259}));
  EXPECT_EQ(pieces.pieces("a tan star"), (Numbers{257, 256, 't', 'a', 'n', 259}));
  EXPECT_EQ(pieces.pieces("\xc3\xa9"), (Numbers{256, 0xc3, 0xa9}));
}

TEST(WordPieces, AreChosenByHowOftenTheyCome) {
  EXPECT_EQ(WordPieces::of(kCaptions, 3).words(), (Texts{"a", "red", "star"}));
  EXPECT_EQ(WordPieces::of(kCaptions, 4).words(), (Texts{"!", "a", "red", "star"}));  // of equals the first
  EXPECT_EQ(WordPieces::of(kCaptions, 100).words().size(), 11U);
}

TEST(WordPieces, RefuseWhatIsNoWord) {
  EXPECT_NE(message_of([] { WordPieces({"a", "a"}); }).find("was there before"), std::string::npos);
  EXPECT_NE(message_of([] { WordPieces({"Red"}); }).find("lower case"), std::string::npos);
  EXPECT_NE(message_of([] { WordPieces({"a b"}); }).find("one word"), std::string::npos);
  const WordPieces pieces = WordPieces::of(kCaptions, 100);
  EXPECT_EQ(WordPieces::from_lines(pieces.lines()).words(), pieces.words());
  EXPECT_NE(message_of([] { WordPieces::from_lines("a\n\nb\n"); }), "no error");
}

class WordsWithMixers : public testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Mixers, WordsWithMixers, testing::Values(0, 2));

TEST_P(WordsWithMixers, APromptIsItsOwnWhateverTheOthers) {
  const Words words(small(GetParam()), WordPieces::of(kCaptions, 100), 3);
  const EncodedText both = words.encode(Texts{"a red star", "a blue star over red", ""});
  EXPECT_EQ(both.tokens.sizes(), (at::IntArrayRef{3, 5, 12}));
  EXPECT_EQ(both.mask.sum(1).to(at::kLong).equal(at::tensor({3, 5, 0}, at::kLong)), true);
  EXPECT_TRUE(both.warnings.empty());
  const EncodedText alone = words.encode(Texts{"a red star"});
  EXPECT_TRUE(at::allclose(alone.tokens[0], both.tokens[0].slice(0, 0, 3), 1e-6, 1e-6));
  EXPECT_EQ(both.tokens[0].slice(0, 3).abs().max().item<double>(), 0);
  EXPECT_FALSE(both.tokens.requires_grad());
}

TEST(Words, KnowTheirOrder) {
  const Words words(small(), WordPieces::of(kCaptions, 100), 3);
  const EncodedText text = words.encode(Texts{"red star over blue", "blue star over red"});
  EXPECT_FALSE(
      at::allclose(text.tokens[0][1], text.tokens[1][1], 1e-2, 1e-2));  // "star", each with its colour
}

// What is further away than the layers reach, and before a word: mixers alone tell of it.
TEST_P(WordsWithMixers, KnowWhatCameBefore) {
  const Words words(small(GetParam()), WordPieces::of(kCaptions, 100), 3);
  const EncodedText text = words.encode(Texts{"red a a a a star", "blue a a a a star", "red a a a a over"});
  EXPECT_EQ(at::allclose(text.tokens[0][5], text.tokens[1][5], 1e-3, 1e-3), GetParam() == 0);
  EXPECT_TRUE(at::allclose(text.tokens[0][0], text.tokens[2][0], 1e-5, 1e-5));  // nothing of what comes after
}

TEST(Words, CutWhatIsTooLongAndSaySo) {
  const Words words(small(), WordPieces({"a"}), 0);
  const EncodedText text = words.encode(Texts{"a", "a a a a a a a a a a a"});
  ASSERT_EQ(text.warnings.size(), 1U);
  EXPECT_NE(text.warnings[0].find("at most 9"), std::string::npos) << text.warnings[0];
  EXPECT_NE(text.warnings[0].find("11"), std::string::npos) << text.warnings[0];
  EXPECT_EQ(text.tokens.size(1), 9);
  EXPECT_EQ(text.mask[1].sum().item<std::int64_t>(), 9);
}

TEST(Words, SayWhichTheyDoNotKnow) {
  const Words words(small(), WordPieces({"a", "star"}), 0);
  const EncodedText text = words.encode(Texts{"a star", "a Glo star, glo b"});
  ASSERT_EQ(text.warnings.size(), 2U);  // the first is of the length
  EXPECT_EQ(text.warnings[1],
            "\"glo\", \",\", \"b\" are not in the model's vocabulary and are spelled out in letters");
  EXPECT_EQ(words.encode(Texts{"a glo"}).warnings,
            Texts{"\"glo\" is not in the model's vocabulary and is spelled out in letters"});
}

TEST_P(WordsWithMixers, Learn) {
  Words words(small(GetParam()), WordPieces::of(kCaptions, 100), 3);
  const Words::Pieces pieces = words.pieces(kCaptions, 8);
  EXPECT_EQ(pieces.pieces.sizes(), (at::IntArrayRef{3, 8}));
  const at::Tensor tokens = words.network()->forward(pieces.pieces, pieces.mask);
  tokens.square().sum().backward();
  for (const auto& item : words.network()->named_parameters())
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
  EXPECT_EQ(words.network()->pieces->weight.grad().slice(0, 0, 257).abs().max().item<double>(), 0);
}

TEST_P(WordsWithMixers, GoThroughTheirFolder) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("pom_words_" + std::to_string(::getpid()));
  const Words words(small(GetParam()), WordPieces::of(kCaptions, 6), 3);
  words.save(folder / text_folder);
  const std::unique_ptr<TextEncoder> back = open_text_encoder(small(GetParam()), Reader(folder / text_file));
  EXPECT_EQ(back->width(), 12);
  EXPECT_EQ(back->limit(), 9);
  EXPECT_TRUE(at::equal(back->encode(kCaptions).tokens, words.encode(kCaptions).tokens));
  TextConfig other = small(GetParam());
  other.width = 16;
  const std::string refusal = message_of([&] { open_text_encoder(other, Reader(folder / text_file)); });
  EXPECT_NE(refusal.find("model.safetensors"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("expected shape"), std::string::npos) << refusal;
  other = small(GetParam());
  other.layers = 1;
  EXPECT_NE(message_of([&] { open_text_encoder(other, Reader(folder / text_file)); }).find("not part"),
            std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pom::codecs
