// Tests of base64 against the standard's examples.
#include "pom/net/base64.h"

#include <gtest/gtest.h>

namespace pom::net {
namespace {

TEST(Base64, ExamplesOfTheStandard) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : examples) {
    EXPECT_EQ(base64_encode(bytes), text);
    EXPECT_EQ(base64_decode(text), bytes);
  }
}

TEST(Base64, EveryByteAtEveryPlaceComesBack) {
  for (int byte = 0; byte < 256; ++byte)
    for (std::size_t size = 1; size <= 4; ++size)
      for (std::size_t place = 0; place < size; ++place) {
        std::string bytes(size, 'x');
        bytes[place] = static_cast<char>(byte);
        EXPECT_EQ(base64_decode(base64_encode(bytes)), bytes);
      }
  EXPECT_EQ(base64_encode("\xfb\xff\xbf"), "+/+/");
}

TEST(Base64, WhatIsNone) {
  for (const char* text :
       {"Z",    "Zg",     "Zg=",   "Zm8",   "Zm9vY", "=",    "==",   "====", "Z===",     "Zg=a",
        "=Zg=", "Zm9v\n", " Zm9v", "Zm9v ", "Zm-v",  "Zm_v", "Zh==", "Zm9=", "Zg==Zg==", "Zm\x80v"})
    EXPECT_FALSE(base64_decode(text)) << text;
  EXPECT_FALSE(base64_decode(std::string_view("Zm\0v", 4)));
}

}  // namespace
}  // namespace pom::net
