// Tests of JPEG: closeness after a round trip, the eight orientations, files of others, and files that are
// damaged.
#include "pom/io/jpeg.h"

#include "tests/io/picture_support.h"
#include <algorithm>
#include <cmath>

#include "pom/io/exif.h"
#include "pom/io/read_file.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using JpegTest = PictureTest;
using Bytes = std::vector<std::byte>;

const fs::path golden = tests_folder / "golden" / "pictures";

// Smooth, so that little is lost.
Image smooth_image(int width, int height, int channels) {
  Image image = make_image("test", width, height, channels);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        image.row(y)[static_cast<std::size_t>(x * channels + c)] =
            static_cast<std::uint8_t>(128 + 90 * std::sin(0.05 * x + 0.07 * y + 2 * c));
  return image;
}

int largest_difference(const Image& a, const Image& b) {
  int largest = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i)
    largest = std::max(largest, std::abs(a.data[i] - b.data[i]));
  return largest;
}

// Red with a green block at the top left and a blue one at the top right: no two orientations look alike.
Image marked_image() {
  Image image = flat_image(48, 32, {255, 0, 0});
  for (int y = 0; y < 16; ++y)
    for (int x = 0; x < 48; ++x) {
      std::uint8_t* pixel = image.row(y).data() + 3 * x;
      if (x < 16) pixel[0] = 0, pixel[1] = 255;
      if (x >= 32) pixel[0] = 0, pixel[2] = 255;
    }
  return image;
}

char colour_at(const Image& image, int x, int y) {
  const auto pixel = pixel_at(image, x, y);
  return pixel[0] > 128 ? 'r' : pixel[1] > 128 ? 'g' : 'b';
}

// The four corners: top left, top right, bottom left, bottom right.
std::string corners(const Image& image) {
  const int right = image.width - 4, bottom = image.height - 4;
  return {colour_at(image, 3, 3), colour_at(image, right, 3), colour_at(image, 3, bottom),
          colour_at(image, right, bottom)};
}

// An APP1 segment that says how the camera was held, in either byte order.
std::string exif_marker(unsigned orientation, bool little) {
  const auto number = [&](unsigned value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * (little ? i : bytes - 1 - i));
    return text;
  };
  // Two entries, of which the orientation is the second.
  return std::string("Exif\0\0", 6) + (little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(2, 2) +
         number(0x010f, 2) + number(2, 2) + number(4, 4) + "pom" + '\0' + number(0x0112, 2) + number(3, 2) +
         number(1, 4) + number(orientation, 2) + number(0, 2) + number(0, 4);
}

Bytes with_marker(const Bytes& file, const std::string& marker) {
  const std::size_t length = marker.size() + 2;
  const std::string segment =
      std::string("\xff\xe1") + static_cast<char>(length >> 8) + static_cast<char>(length & 255) + marker;
  Bytes result(file.begin(), file.begin() + 2);
  for (const std::byte byte : bytes_of(segment)) result.push_back(byte);
  result.insert(result.end(), file.begin() + 2, file.end());
  return result;
}

TEST_F(JpegTest, ComesBackNearlyEqual) {
  for (const int channels : {1, 3})
    for (const auto& [width, height] : {std::pair{1, 1}, {1, 17}, {23, 1}, {64, 64}, {101, 57}}) {
      const Image image = smooth_image(width, height, channels);
      write_jpeg(folder / "a.jpg", image, 98);
      const Image back = read_jpeg(folder / "a.jpg");
      ASSERT_EQ(back.data.size(), image.data.size());
      EXPECT_EQ(back.channels, channels);
      EXPECT_LE(largest_difference(back, image), 5) << width << "x" << height << "x" << channels;
    }
  EXPECT_EQ(files(), 1u);
}

TEST_F(JpegTest, QualityDecidesSizeAndChroma) {
  const Image image = noisy_image(64, 64, 3, 8);
  EXPECT_LT(encode_jpeg(image, 20).size(), encode_jpeg(image, 60).size());
  EXPECT_LT(encode_jpeg(image, 60).size(), encode_jpeg(image, 95).size());
  EXPECT_EQ(encode_jpeg(image, 80), encode_jpeg(image, 80));
  // Columns red and green by turns survive only where colours have their full resolution.
  Image stripes = flat_image(32, 32, {255, 0, 0});
  for (int y = 0; y < 32; ++y)
    for (int x = 0; x < 32; x += 2) stripes.row(y)[3 * x] = 0, stripes.row(y)[3 * x + 1] = 128;
  EXPECT_LE(largest_difference(parse_jpeg(encode_jpeg(stripes, 90)), stripes), 40);
  EXPECT_GE(largest_difference(parse_jpeg(encode_jpeg(stripes, 89)), stripes), 80);
}

TEST_F(JpegTest, AppliesEveryOrientation) {
  const Bytes file = encode_jpeg(marked_image(), 95);
  // What is stored has green, blue above red, red. Seen upright, by the definition of each orientation:
  const char* expected[] = {"gbrr", "bgrr", "rrbg", "rrgb", "grbr", "rgrb", "rbrg", "brgr"};
  for (const bool little : {false, true})
    for (unsigned orientation = 1; orientation <= 8; ++orientation) {
      const Image image = parse_jpeg(with_marker(file, exif_marker(orientation, little)));
      EXPECT_EQ(corners(image), expected[orientation - 1]) << orientation;
      EXPECT_EQ(image.width, orientation >= 5 ? 32 : 48);
      EXPECT_EQ(image.height, orientation >= 5 ? 48 : 32);
    }
}

TEST_F(JpegTest, DamagedExifLeavesThePictureAlone) {
  const Bytes file = encode_jpeg(marked_image(), 95);
  const std::string good = exif_marker(6, true);
  const auto seen = [&](const std::string& marker) { return corners(parse_jpeg(with_marker(file, marker))); };
  EXPECT_EQ(seen(good), "rgrb");
  for (const unsigned orientation : {0u, 9u, 65535u}) EXPECT_EQ(seen(exif_marker(orientation, true)), "gbrr");
  for (std::size_t size = 0; size < 6 + 8 + 2 + 12 + 8; ++size)
    EXPECT_EQ(seen(good.substr(0, size)), "gbrr") << size;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(0xff);
    const std::string found = seen(damaged);
    EXPECT_TRUE(found == "gbrr" || found == "rgrb") << i;
  }
  EXPECT_EQ(seen("http://ns.adobe.com/xap/1.0/ and no EXIF"), "gbrr");
}

TEST_F(JpegTest, UprightMovesEveryPixel) {
  // 2 x 3, as letters a b / c d / e f
  const Image image{2, 3, 1, 8, {'a', 'b', 'c', 'd', 'e', 'f'}};
  const std::string expected[] = {"abcdef", "badcfe", "fedcba", "efcdab",
                                  "acebdf", "ecafdb", "fdbeca", "bdface"};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Image seen = upright(image, orientation);
    EXPECT_EQ(std::string(seen.data.begin(), seen.data.end()), expected[orientation - 1]) << orientation;
    EXPECT_EQ(seen.width, orientation >= 5 ? 3 : 2);
  }
  EXPECT_EQ(upright(noisy_image(5, 4, 4, 16), 3).data.size(), 5u * 4 * 8);
  error_of([&] { upright(image, 9); }, {"orientation: expected 1 to 8, got 9"});
}

TEST_F(JpegTest, ReadsFilesOfOthers) {
  for (const char* name : {"rgb.jpg", "rgb_progressive.jpg", "rgb_444.jpg", "cmyk.jpg"}) {
    const Image image = read_jpeg(golden / name);
    ASSERT_EQ(image.channels, 3) << name;
    ASSERT_EQ(image.width, 32) << name;
    const std::vector<std::uint8_t> expected[] = {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {255, 255, 255}};
    for (int i = 0; i < 4; ++i) {
      const auto pixel = pixel_at(image, 4 + i % 2 * 20, 4 + i / 2 * 20);
      for (std::size_t c = 0; c < 3; ++c)
        EXPECT_NEAR(pixel[c], expected[i][c], 12) << name << " quarter " << i;
    }
  }
  const Image grey = read_jpeg(golden / "grey.jpg");
  EXPECT_EQ(grey.channels, 1);
  EXPECT_NEAR(grey.data[0], 76, 4);
}

// The inks as they are where no marker of Adobe's says that they are inverted.
TEST_F(JpegTest, CmykWithoutAdobesMarkerIsNotInverted) {
  Bytes file = detail::read_file(golden / "cmyk.jpg", "test");
  const Bytes name = bytes_of("Adobe");
  const auto found = std::search(file.begin(), file.end(), name.begin(), name.end());
  ASSERT_NE(found, file.end());
  *found = std::byte{'X'};
  const auto pixel = pixel_at(parse_jpeg(file), 4, 4);  // inverted, and with all black ink: black
  for (const std::uint8_t value : pixel) EXPECT_LE(value, 12);
}

TEST_F(JpegTest, EveryTruncationIsAnError) {
  const Bytes own = encode_jpeg(smooth_image(24, 20, 3), 80, "comment");
  for (const Bytes& file : {own, detail::read_file(golden / "rgb_progressive.jpg", "test"),
                            detail::read_file(golden / "cmyk.jpg", "test")})
    for (std::size_t size = 0; size < file.size(); ++size)
      error_of([&] { parse_jpeg(std::span(file).first(size), "cut.jpg"); }, {"jpeg read: cut.jpg: "});
}

TEST_F(JpegTest, FlippedBytesNeverCrash) {
  const Bytes file = encode_jpeg(smooth_image(24, 20, 3), 80);
  std::size_t refused = 0;
  for (std::size_t i = 0; i < file.size(); ++i)
    for (const int bit : {0, 3, 7}) {
      Bytes damaged = file;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      try {
        check_image("damaged", parse_jpeg(damaged));
      } catch (const Error&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, file.size() / 4);
}

TEST_F(JpegTest, HeaderThatClaimsTooMuch) {
  Bytes file = encode_jpeg(smooth_image(24, 20, 3), 80);
  const Bytes start_of_frame = bytes_of(std::string("\xff\xc0\x00\x11\x08", 5));
  const auto found = std::search(file.begin(), file.end(), start_of_frame.begin(), start_of_frame.end());
  ASSERT_NE(found, file.end());
  const auto set_size = [&](unsigned height, unsigned width) {
    const auto at = found + 5;
    at[0] = static_cast<std::byte>(height >> 8), at[1] = static_cast<std::byte>(height);
    at[2] = static_cast<std::byte>(width >> 8), at[3] = static_cast<std::byte>(width);
  };
  set_size(65000, 65000);
  error_of([&] { parse_jpeg(file, "big.jpg"); }, {"big.jpg", "at most 268435456 pixels", "65000 x 65000"});
  set_size(16000, 16000);
  error_of([&] { parse_jpeg(file); }, {"16000 x 16000 pixels do not fit into a file"});
  set_size(0, 24);
  error_of([&] { parse_jpeg(file); }, {"jpeg read"});
}

// Each scan is a few bytes of file and a pass over all blocks.
TEST_F(JpegTest, RefusesEndlessScans) {
  const Bytes file = detail::read_file(golden / "rgb_progressive.jpg", "test");
  const Bytes start_of_scan = bytes_of(std::string("\xff\xda", 2));
  const auto second = std::find_end(file.begin(), file.end(), start_of_scan.begin(), start_of_scan.end());
  ASSERT_NE(second, file.end());
  Bytes bomb(file.begin(), file.end() - 2);
  for (int i = 0; i < 200; ++i) bomb.insert(bomb.end(), second, file.end() - 2);
  bomb.insert(bomb.end(), file.end() - 2, file.end());
  error_of([&] { parse_jpeg(bomb); }, {"at most 100 scans"});
}

TEST_F(JpegTest, WritesComment) {
  const Bytes file = encode_jpeg(flat_image(8, 8, {1, 2, 3}), 95, "seed 7, π");
  const Bytes expected = bytes_of(std::string("\xff\xfe\x00\x0c", 4) + "seed 7, π");
  EXPECT_NE(std::search(file.begin(), file.end(), expected.begin(), expected.end()), file.end());
  EXPECT_NO_THROW(parse_jpeg(encode_jpeg(flat_image(8, 8, {1}), 95, std::string(65533, 'c'))));
  error_of([] { encode_jpeg(flat_image(8, 8, {1}), 95, std::string(65534, 'c')); }, {"comment", "65533"});
}

TEST_F(JpegTest, RefusesWhatItCannotWrite) {
  error_of(
      [] {
        encode_jpeg(flat_image(1, 1, {1, 2, 3, 4}));
      },
      {"8 bits of grey or RGB", "4 channels", "to_rgb8"});
  error_of([] { encode_jpeg(flat_image(1, 1, {1, 2})); }, {"2 channels"});
  error_of([] { encode_jpeg(noisy_image(1, 1, 3, 16)); }, {"16 bits"});
  error_of([] { encode_jpeg(flat_image(1, 1, {1}), 0); }, {"quality: expected 1 to 100, got 0"});
  error_of([] { encode_jpeg(flat_image(1, 1, {1}), 101); }, {"quality: expected 1 to 100, got 101"});
  error_of([] { encode_jpeg(flat_image(65501, 1, {1})); }, {"at most 65500"});
  error_of([&] { write_jpeg(folder / "none" / "a.jpg", flat_image(1, 1, {1})); }, {"none/a.jpg"});
  EXPECT_EQ(files(), 0u);
}

TEST_F(JpegTest, RefusesWhatIsNoJpeg) {
  error_of([] { parse_jpeg({}); }, {"jpeg read: <memory>", "expected a JPEG file"});
  error_of([] { parse_jpeg(bytes_of("\x89PNG\r\n\x1a\n")); }, {"expected a JPEG file"});
  error_of([] { parse_jpeg(bytes_of(std::string("\xff\xd8\xff\xd9", 4))); }, {"jpeg read"});
  error_of([&] { read_jpeg(folder / "none.jpg"); }, {"none.jpg", "No such file"});
}

}  // namespace
}  // namespace pom::io
