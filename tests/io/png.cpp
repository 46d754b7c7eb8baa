// Tests of PNG: every kind of pixel there and back, files made without libpng, text of all four kinds, and
// files that lie or end too early.
#include "pom/io/png.h"

#include "tests/io/picture_support.h"
#include <bit>
#include <cstring>
#include <fstream>
#include <sstream>
#include <zlib.h>

#include "pom/io/atomic_file.h"
#include "pom/io/png_text.h"
#include "pom/io/read_file.h"
#include "pom/io/sha256.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using PngTest = PictureTest;

const fs::path golden = tests_folder / "golden" / "pictures";

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  const auto sum = ::crc32_z(0, reinterpret_cast<const Bytef*>(checked.data()), checked.size());
  return big_endian(static_cast<std::uint32_t>(data.size())) + checked +
         big_endian(static_cast<std::uint32_t>(sum));
}

std::string packed(const std::string& text) {
  uLongf size = ::compressBound(text.size());
  std::string out(size, '\0');
  ::compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
             text.size());
  out.resize(size);
  return out;
}

const std::string signature("\x89PNG\r\n\x1a\n", 8);

std::string header(std::uint32_t width, std::uint32_t height, const std::string& rest = {8, 0, 0, 0, 0}) {
  return signature + chunk("IHDR", big_endian(width) + big_endian(height) + rest);
}

// One grey pixel, with chunks before it and after it.
std::string tiny_png(const std::string& before = {}, const std::string& after = {}) {
  return header(1, 1) + before + chunk("IDAT", packed(std::string("\0\x7f", 2))) + after + chunk("IEND", {});
}

std::vector<std::string> chunk_types(std::span<const std::byte> file) {
  std::vector<std::string> types;
  for (std::size_t at = 8; at + 8 <= file.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | std::to_integer<std::size_t>(file[at + i]);
    types.emplace_back(reinterpret_cast<const char*>(&file[at + 4]), 4);
    at += 12 + length;
  }
  return types;
}

TEST_F(PngTest, EveryKindComesBack) {
  for (const int bits : {8, 16})
    for (const int channels : {1, 2, 3, 4})
      for (const auto& [width, height] : {std::pair{1, 1}, {1, 9}, {7, 1}, {5, 3}, {64, 64}, {131, 37}}) {
        const Image image = noisy_image(width, height, channels, bits);
        write_png(folder / "a.png", image);
        const Png back = read_png(folder / "a.png");
        EXPECT_EQ(back.image, image) << width << "x" << height << "x" << channels << ", " << bits << " bits";
        EXPECT_TRUE(back.text.empty());
      }
  EXPECT_EQ(files(), 1u);
}

TEST_F(PngTest, SixteenBitsAreBigEndianInTheFile) {
  Image image = make_image("test", 1, 1, 1, 16);
  const std::uint16_t value = 0x1234;
  std::memcpy(image.data.data(), &value, 2);
  const auto file = encode_png(image);
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  const std::size_t at = text.find("IDAT");
  std::string row(3, 'x');
  uLongf size = row.size();
  ASSERT_EQ(::uncompress(reinterpret_cast<Bytef*>(row.data()), &size,
                         reinterpret_cast<const Bytef*>(text.data() + at + 4), text.size() - at - 4),
            Z_OK);
  EXPECT_EQ(row.substr(1), "\x12\x34");
}

TEST_F(PngTest, ReadsGoldenFilesOfEveryKind) {
  if constexpr (std::endian::native != std::endian::little)
    GTEST_SKIP() << "the hashes are of little-endian samples";
  std::ifstream table(golden / "expected.tsv");
  std::size_t count = 0;
  for (std::string line; std::getline(table, line); ++count) {
    std::istringstream fields(line);
    std::string name, hash;
    int width, height, channels, bits;
    fields >> name >> width >> height >> channels >> bits >> hash;
    const Image image = read_png(golden / (name + ".png")).image;
    EXPECT_EQ(image.width, width) << name;
    EXPECT_EQ(image.height, height) << name;
    EXPECT_EQ(image.channels, channels) << name;
    EXPECT_EQ(image.bits, bits) << name;
    Sha256 samples;
    samples.update(std::as_bytes(std::span(image.data)));
    EXPECT_EQ(samples.hex(), hash) << name;
  }
  EXPECT_EQ(count, 52u);
}

TEST_F(PngTest, WritingIsDeterministic) {
  const Image image = noisy_image(33, 21, 3, 8);
  const std::vector<TextEntry> text = {{"parameters", "a\nb"}, {"pom", "{}"}};
  const auto first = encode_png(image, text);
  EXPECT_EQ(encode_png(image, text), first);
  write_png(folder / "a.png", image, text);
  EXPECT_EQ(detail::read_file(folder / "a.png", "test"), first);
  EXPECT_EQ(chunk_types(first), (std::vector<std::string>{"IHDR", "tEXt", "tEXt", "IDAT", "IEND"}));
}

TEST_F(PngTest, TextComesBack) {
  const std::vector<TextEntry> text = {
      {"parameters", "a cat\nSteps: 20, Sampler: heun"},
      {"pom", R"({"seed": 1})"},
      {"Clé", "naïve £ \t\r\n\x7f"},
      {"iTXt", "δ → 🙂 多"},
      {"empty", ""},
      {"parameters", "twice the same keyword"},
      {std::string(79, 'k'), std::string(100'000, 't')},
  };
  const auto file = encode_png(flat_image(2, 2, {1, 2, 3}), text);
  const Png back = parse_png(file);
  EXPECT_EQ(back.text, text);
  EXPECT_EQ(back.image, flat_image(2, 2, {1, 2, 3}));
  const std::vector<std::string> expected = {"IHDR", "tEXt", "tEXt", "tEXt", "iTXt",
                                             "tEXt", "tEXt", "tEXt", "IDAT", "IEND"};
  EXPECT_EQ(chunk_types(file), expected);
}

TEST_F(PngTest, ReadsAllFourKindsOfTextOnEitherSideOfThePixels) {
  const std::string world = "多项式 🙂", latin = "déjà vu";
  std::string fifty_latin, fifty_world;
  for (int i = 0; i < 50; ++i) fifty_latin += latin, fifty_world += world;
  const std::vector<TextEntry> expected = {
      {"Title", latin}, {"Author", fifty_latin}, {"Comment", world}, {"parameters", fifty_world}};
  EXPECT_EQ(read_png_text(golden / "seed_text.png"), expected);
  EXPECT_EQ(read_png(golden / "seed_text.png").text, expected);
}

TEST_F(PngTest, TextIsReadWithoutPixels) {
  std::string damaged = header(1000, 1000) + chunk("tEXt", std::string("k\0v", 3)) +
                        chunk("IDAT", std::string(2000, 'x')) + chunk("IEND", {});
  EXPECT_EQ(parse_png_text(bytes_of(damaged)), (std::vector<TextEntry>{{"k", "v"}}));
  error_of([&] { parse_png(bytes_of(damaged)); });
}

TEST_F(PngTest, RefusesBadTextToWrite) {
  const Image image = flat_image(1, 1, {0});
  const auto write = [&](std::string keyword, std::string text) {
    const std::vector<TextEntry> entries = {{std::move(keyword), std::move(text)}};
    return [=] { encode_png(image, entries); };
  };
  for (const char* keyword : {"", " a", "a ", "a  b", "a\nb", "多", "\xff", "a\xc2\xa0"})
    error_of(write(keyword, "x"), {"png write", "keyword", "Latin-1"});
  error_of(write(std::string(80, 'k'), "x"), {"keyword", "1 to 79"});
  error_of(write("k", "a\xff"), {"text \"k\"", "UTF-8", "byte 1"});
  error_of(write("k", std::string("a\0b", 3)), {"zero byte"});
}

TEST_F(PngTest, RefusesDamagedText) {
  const auto message = [](const std::string& text) {
    return error_of([&] { parse_png_text(bytes_of(tiny_png(text)), "a.png"); }, {"png read: a.png"});
  };
  EXPECT_NE(message(chunk("tEXt", "no zero byte")).find("tEXt: expected a zero byte"), std::string::npos);
  EXPECT_NE(message(chunk("zTXt", std::string("k\0\1", 3) + packed("x"))).find("method"), std::string::npos);
  EXPECT_NE(message(chunk("zTXt", std::string("k\0\0", 3) + "xxxxx")).find("damaged"), std::string::npos);
  EXPECT_NE(
      message(chunk("zTXt", std::string("k\0\0", 3) + packed("some text").substr(0, 6))).find("damaged"),
      std::string::npos);
  EXPECT_NE(message(chunk("iTXt", std::string("k\0\0\0\0\0\xff", 7))).find("not UTF-8"), std::string::npos);
  EXPECT_NE(message(chunk("iTXt", std::string("k\0\2\0\0\0x", 7))).find("flag"), std::string::npos);
  EXPECT_NE(message(chunk("iTXt", std::string("k\0", 2))).find("too short"), std::string::npos);
  std::string wrong_sum = chunk("tEXt", std::string("k\0v", 3));
  wrong_sum.back() ^= 1;
  EXPECT_NE(message(wrong_sum).find("checksum"), std::string::npos);
}

TEST_F(PngTest, PixelsAreReadPastDamagedText) {
  const std::string file = tiny_png(chunk("iTXt", std::string("k\0\0\0\0\0\xff", 7)));
  EXPECT_EQ(parse_png_image(bytes_of(file)), flat_image(1, 1, {0x7f}));
}

TEST_F(PngTest, LimitsUnpackedText) {
  const std::string bomb = chunk("zTXt", std::string("k\0\0", 3) + packed(std::string(9 << 20, 'x')));
  EXPECT_EQ(parse_png_text(bytes_of(tiny_png(bomb))).at(0).text.size(), 9u << 20);
  error_of([&] { parse_png_text(bytes_of(tiny_png(bomb, bomb))); }, {"at most 16777216 bytes"});
  const std::string one = chunk("iTXt", std::string("k\0\1\0\0\0", 6) + packed(std::string(17 << 20, 'x')));
  error_of([&] { parse_png_text(bytes_of(tiny_png(one))); }, {"at most 16777216 bytes"});
}

TEST_F(PngTest, EveryTruncationIsAnError) {
  const std::vector<TextEntry> text = {{"k", "v"}, {"u", "→"}};
  for (const auto& file : {encode_png(noisy_image(5, 4, 3, 8), text), encode_png(noisy_image(3, 3, 4, 16)),
                           detail::read_file(golden / "colour3_depth4_trns_adam7.png", "test"),
                           detail::read_file(golden / "seed_text.png", "test")})
    for (std::size_t size = 0; size < file.size(); ++size) {
      const auto part = std::span(file).first(size);
      error_of([&] { parse_png(part, "cut.png"); }, {"png read: cut.png: "});
      error_of([&] { parse_png_text(part, "cut.png"); }, {"png read: cut.png: "});
      error_of([&] { parse_png_image(part, "cut.png"); }, {"png read: cut.png: "});
    }
}

TEST_F(PngTest, EveryFlippedByteIsAnErrorOrChangesNothing) {
  const Image image = noisy_image(4, 3, 3, 8);
  const auto file = encode_png(image);
  for (std::size_t i = 0; i < file.size(); ++i) {
    auto damaged = file;
    damaged[i] ^= std::byte{0x10};
    error_of([&] { parse_png(damaged); }, {"png read"});  // each byte is under a checksum, or is one
  }
}

TEST_F(PngTest, TrailingBytesAreIgnored) {
  EXPECT_EQ(parse_png_image(bytes_of(tiny_png() + "more")), flat_image(1, 1, {0x7f}));
}

TEST_F(PngTest, HeadersThatClaimTooMuch) {
  const std::string end = chunk("IDAT", packed("x")) + chunk("IEND", {});
  const auto message = [&](std::uint32_t width, std::uint32_t height, const std::string& rest) {
    return error_of([&] { parse_png(bytes_of(header(width, height, rest) + end), "big.png"); },
                    {"png read: big.png"});
  };
  const std::string grey = {8, 0, 0, 0, 0}, bilevel = {1, 0, 0, 0, 0}, wide = {16, 6, 0, 0, 0};
  EXPECT_NE(message(1 << 15, 1 << 14, grey).find("at most 268435456 pixels"), std::string::npos);
  EXPECT_NE(message(0x7fffffff, 0x7fffffff, bilevel).find("at most 268435456 pixels"), std::string::npos);
  EXPECT_NE(message(0xffffffff, 1, grey).find("from 1 to"), std::string::npos);
  EXPECT_NE(message(0, 1, grey).find("from 1 to"), std::string::npos);
  EXPECT_NE(message(1, 0, grey).find("from 1 to"), std::string::npos);
  // Within the limit, and still more than the file can hold: refused before two gigabytes are asked for.
  EXPECT_NE(message(1 << 14, 1 << 14, wide).find("do not fit into a file"), std::string::npos);
}

TEST_F(PngTest, HeadersThatMakeNoSense) {
  const std::string end = chunk("IDAT", packed("x")) + chunk("IEND", {});
  for (const std::string& rest : {std::string{3, 0, 0, 0, 0},
                                  {8, 1, 0, 0, 0},
                                  {8, 0, 1, 0, 0},
                                  {8, 0, 0, 1, 0},
                                  {8, 0, 0, 0, 2},
                                  {16, 3, 0, 0, 0},
                                  {0, 0, 0, 0, 0}})
    error_of([&] { parse_png(bytes_of(header(1, 1, rest) + end)); }, {"png read: <memory>"});
  error_of([&] { parse_png(bytes_of(header(1, 1, {8, 3, 0, 0, 0}) + end)); }, {"png read"});  // no palette
  error_of([&] { parse_png(bytes_of(signature + chunk("IEND", {}))); }, {"IHDR"});
  error_of([&] { parse_png(bytes_of("GIF89a, which is no PNG")); }, {"expected a PNG file"});
  error_of([&] { parse_png({}); }, {"expected a PNG file"});
}

TEST_F(PngTest, RefusesPicturesThatAreNone) {
  error_of([] { encode_png(Image{}); }, {"png write", "size"});
  error_of([] { encode_png(Image{1, 1, 5, 8, {1, 2, 3, 4, 5}}); }, {"channels: expected 1 to 4, got 5"});
  error_of([] { encode_png(Image{1, 1, 1, 12, {1}}); }, {"bits: expected 8 or 16, got 12"});
  error_of([] { encode_png(Image{2, 2, 3, 8, {1, 2, 3}}); }, {"expected 12 bytes", "got 3"});
}

TEST_F(PngTest, FilesThatCannotBe) {
  const Image image = flat_image(1, 1, {0});
  error_of([&] { write_png(folder / "none" / "a.png", image); }, {"none/a.png", "No such file"});
  error_of([&] { write_png("/proc/self/a.png", image); }, {"/proc/self/a.png"});
  error_of([&] { read_png(folder / "none.png"); }, {"png read", "none.png", "No such file"});
  error_of([&] { read_png(folder); }, {"got a folder"});
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace pom::io
