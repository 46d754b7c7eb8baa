// Tests of SHA-256 against the examples of NIST, with the processor's instructions and without.
#include "pom/io/sha256.h"

#include "tests/io/picture_support.h"
#include <fstream>

namespace pom::io {
namespace {

using Sha256Test = PictureTest;
using Code = Sha256::Code;

std::string hash_of(std::string_view text, Code code) {
  Sha256 hash(code);
  hash.update(text);
  return hash.hex();
}

TEST_F(Sha256Test, ExamplesOfNist) {
  for (const Code code : {Code::fastest, Code::portable}) {
    EXPECT_EQ(hash_of("", code), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hash_of("abc", code), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", code),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(hash_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                      "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
                      code),
              "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    EXPECT_EQ(hash_of(std::string(1'000'000, 'a'), code),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST_F(Sha256Test, BothWaysAgreeAtEveryLength) {
  const Image noise = noisy_image(300, 1, 1, 8);
  const std::string_view text(reinterpret_cast<const char*>(noise.data.data()), noise.data.size());
  for (std::size_t size = 0; size <= text.size(); ++size)
    EXPECT_EQ(hash_of(text.substr(0, size), Code::fastest), hash_of(text.substr(0, size), Code::portable))
        << size;
}

TEST_F(Sha256Test, PiecesDoNotMatter) {
  const std::string text(1000, 'q');
  const std::string expected = hash_of(text, Code::portable);
  for (const std::size_t piece : {1u, 3u, 63u, 64u, 65u, 128u, 999u}) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      hash.update(std::string_view(text).substr(at, piece));
      hash.update("");
      hash.digest();  // asking does not end it
    }
    EXPECT_EQ(hash.hex(), expected) << piece;
  }
}

TEST_F(Sha256Test, HashesFiles) {
  std::ofstream(folder / "a", std::ios::binary) << std::string(3'000'001, 'z');
  EXPECT_EQ(sha256_file(folder / "a"), hash_of(std::string(3'000'001, 'z'), Code::portable));
  std::ofstream(folder / "empty", std::ios::binary).flush();
  EXPECT_EQ(sha256_file(folder / "empty"), hash_of("", Code::portable));
  error_of([&] { sha256_file(folder / "none"); }, {"sha256: ", "none", "No such file"});
  error_of([&] { sha256_file(folder); }, {"got a folder"});
}

}  // namespace
}  // namespace pom::io
