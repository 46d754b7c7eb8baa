// Tests of how text of others is shown: nothing in it reaches a terminal but what can be read, and not much.
#include "pom/base/shown.h"

#include <gtest/gtest.h>

namespace pom {
namespace {

TEST(Shown, WhatCanBeReadStaysAsItIs) {
  for (const char* text :
       {"", "a red star", "ein grüner Stern", "\xe6\x98\x9f", "\xf0\x9f\x8c\x9f", "C:\\x \"y\""})
    EXPECT_EQ(shown(text), text);
}

TEST(Shown, WhatWorksTheTerminalIsSpelled) {
  EXPECT_EQ(shown("a\nb\rc\td"), "a\\nb\\x0dc\\x09d");
  EXPECT_EQ(shown("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(shown("a\x7f\xc2\x9b"
                  "b"),
            "a\\x7f\\u009bb");
  EXPECT_EQ(shown(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Shown, DirectionsAndLineSeparatorsAreSpelled) {
  EXPECT_EQ(shown("a\xe2\x80\xae"
                  "gnp.exe"),
            "a\\u202egnp.exe");
  EXPECT_EQ(shown("\xe2\x81\xa6\xe2\x81\xa9\xe2\x80\x8f\xd8\x9c"), "\\u2066\\u2069\\u200f\\u061c");
  EXPECT_EQ(shown("a\xe2\x80\xa8"
                  "b"),
            "a\\u2028b");
}

TEST(Shown, OtherBytesThanUtf8AreSpelled) {
  EXPECT_EQ(shown("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(shown("\xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x80"),
            "\\xc0\\xaf \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\xe2\\x80");
}

TEST(Shown, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(shown(std::string(10'000'000, 'a')), std::string(120, 'a') + "…");
  EXPECT_EQ(shown("aüb", 3), "aüb");
  EXPECT_EQ(shown("aüb", 2), "aü…");
  EXPECT_EQ(shown("\n\n\n", 2), "\\n\\n…");
}

}  // namespace
}  // namespace pom
