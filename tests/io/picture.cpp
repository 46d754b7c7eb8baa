// Tests of reading by content and writing by name, and of the way of any picture to 8-bit RGB.
#include "pom/io/picture.h"

#include "tests/io/picture_support.h"
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sys/resource.h>

#include "pom/io/atomic_file.h"
#include "pom/io/jpeg.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

Image image16(int channels, std::vector<std::uint16_t> samples) {
  Image image = make_image("test", static_cast<std::int64_t>(samples.size()) / channels, 1, channels, 16);
  std::memcpy(image.data.data(), samples.data(), image.data.size());
  return image;
}

TEST_F(PictureTest, IsReadByContentAndWrittenByName) {
  const Image image = flat_image(16, 16, {200, 100, 50});
  for (const char* name : {"a.png", "b.PNG", "c.jpg", "d.JPEG", "e.Jpg"}) {
    write_picture(folder / name, image);
    const Image back = read_picture(folder / name);
    ASSERT_EQ(back.data.size(), image.data.size());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(back.data[i], image.data[i], 2) << name;
  }
  EXPECT_EQ(read_png(folder / "b.PNG").image, image);
  EXPECT_NO_THROW(read_jpeg(folder / "d.JPEG"));
  fs::rename(folder / "a.png", folder / "wrong.jpg");
  EXPECT_EQ(read_picture(folder / "wrong.jpg"), image);
}

TEST_F(PictureTest, NamesMustSayTheKind) {
  const Image image = flat_image(1, 1, {0});
  for (const char* name : {"a", "a.gif", "a.png.txt", "png", ".png"}) {
    error_of([&] { write_picture(folder / name, image); }, {name, ".png, .jpg or .jpeg"});
    error_of([&] { check_picture_name(folder / name); }, {name, ".png, .jpg or .jpeg"});
  }
  EXPECT_EQ(files(), 0u);
  check_picture_name("a.b.jpeg");
}

TEST_F(PictureTest, MorePixelsThanTheCallerTakes) {
  const Image image = noisy_image(8, 8, 3, 8);
  for (const auto& bytes : {encode_png(image), encode_jpeg(image)}) {
    EXPECT_EQ(parse_picture(bytes, "x", 64).width, 8);
    error_of([&] { parse_picture(bytes, "x", 32); },
             {"read: x: size: expected at most 32 pixels (2^5)", "8 x 8"});
  }
}

TEST_F(PictureTest, OtherFilesAreNamed) {
  const auto message = [](const std::string& bytes) {
    return error_of([&] { parse_picture(bytes_of(bytes), "x.png"); },
                    {"picture read: x.png: expected PNG or JPEG, got "});
  };
  EXPECT_TRUE(message("GIF89a").ends_with("GIF"));
  EXPECT_TRUE(message("BM......").ends_with("BMP"));
  EXPECT_TRUE(message(std::string("II*\0....", 8)).ends_with("TIFF"));
  EXPECT_TRUE(message("RIFF....WEBP").find("WebP") != std::string::npos);
  EXPECT_TRUE(message("").ends_with("an empty file"));
  EXPECT_TRUE(message("hello").ends_with("something else"));
  error_of([&] { read_picture(folder / "none.png"); }, {"picture read", "none.png", "No such file"});
}

TEST_F(PictureTest, TextGoesIntoEither) {
  const std::vector<TextEntry> text = {{"parameters", "a → b"}, {"pom", "{}"}};
  write_picture(folder / "a.png", flat_image(4, 4, {1, 2, 3, 4}), text);
  EXPECT_EQ(read_png_text(folder / "a.png"), text);
  write_picture(folder / "a.jpg", flat_image(4, 4, {1, 2, 3, 4}), text);
  std::ifstream stream(folder / "a.jpg", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
  EXPECT_NE(bytes.find("parameters: a → b\npom: {}"), std::string::npos);
}

TEST_F(PictureTest, JpegPutsAlphaOnWhite) {
  write_picture(folder / "a.jpg", flat_image(16, 16, {0, 0, 0, 0}));
  EXPECT_EQ(pixel_at(read_picture(folder / "a.jpg"), 8, 8), (std::vector<std::uint8_t>{255, 255, 255}));
  write_picture(folder / "b.jpg", noisy_image(16, 16, 1, 16));
  EXPECT_EQ(read_picture(folder / "b.jpg").channels, 3);
  write_picture(folder / "c.jpg", flat_image(16, 16, {90}));
  EXPECT_EQ(read_picture(folder / "c.jpg").channels, 1);
}

TEST_F(PictureTest, FullDiskLeavesNothing) {
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {1000, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const std::string png = error_of([&] { write_picture(folder / "a.png", noisy_image(64, 64, 3, 8)); });
  const std::string jpeg = error_of([&] { write_picture(folder / "a.jpg", noisy_image(64, 64, 3, 8)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(png.find("a.png: cannot write"), std::string::npos) << png;
  EXPECT_NE(jpeg.find("a.jpg: cannot write"), std::string::npos) << jpeg;
  EXPECT_EQ(files(), 0u);
}

TEST_F(PictureTest, Rgb8RoundsEverySixteenBitValueToTheNearest) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const Image result = to_rgb8(image16(1, all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto expected = static_cast<int>(std::lround(static_cast<double>(i) * 255 / 65535));
    ASSERT_EQ(result.data[3 * i], expected) << i;
    ASSERT_EQ(result.data[3 * i + 2], expected) << i;
  }
}

TEST_F(PictureTest, Rgb8MixesEveryAlphaToTheNearest) {
  for (int alpha = 0; alpha < 256; ++alpha)
    for (const int colour : {0, 1, 17, 127, 128, 254, 255}) {
      const Image pixel{1, 1, 2, 8, {static_cast<std::uint8_t>(colour), static_cast<std::uint8_t>(alpha)}};
      const Image result = to_rgb8(pixel, {0, 100, 255});
      for (const auto& [channel, behind] : {std::pair{0, 0}, {1, 100}, {2, 255}}) {
        const double exact = (colour * alpha + behind * (255 - alpha)) / 255.0;
        ASSERT_EQ(result.data[static_cast<std::size_t>(channel)], std::lround(exact))
            << colour << ' ' << alpha;
      }
    }
}

TEST_F(PictureTest, Rgb8KeepsWhatItIs) {
  const Image rgb = noisy_image(5, 3, 3, 8);
  EXPECT_EQ(to_rgb8(rgb), rgb);
  const Image grey = to_rgb8(flat_image(2, 2, {77}));
  EXPECT_EQ(grey, flat_image(2, 2, {77, 77, 77}));
  EXPECT_EQ(to_rgb8(flat_image(2, 2, {9, 8, 7, 255})), flat_image(2, 2, {9, 8, 7}));
  EXPECT_EQ(to_rgb8(flat_image(2, 2, {9, 8, 7, 0}), {1, 2, 3}), flat_image(2, 2, {1, 2, 3}));
  EXPECT_EQ(to_rgb8(image16(4, {65535, 0, 257, 65535})), flat_image(1, 1, {255, 0, 1}));
  error_of([] { to_rgb8(Image{1, 1, 3, 8, {}}); }, {"to_rgb8: data"});
  for (const int bits : {8, 16})
    for (int channels = 1; channels <= 4; ++channels) {
      const Image image = noisy_image(7, 5, channels, bits);
      Image own = image;
      const std::uint8_t* memory = own.data.data();
      const Image result = to_rgb8(std::move(own), {1, 2, 3});
      EXPECT_EQ(result, to_rgb8(image, {1, 2, 3})) << channels << " " << bits;
      EXPECT_EQ(result.data.data() == memory, channels >= 3) << channels << " " << bits;
    }
}

TEST_F(PictureTest, SizesAreChecked) {
  error_of([] { make_image("op", 1 << 15, 1 << 14, 1); }, {"op: size: expected at most 268435456 pixels"});
  error_of([] { make_image("op", -1, 1, 1); }, {"op: size"});
  error_of([] { make_image("op", std::int64_t{1} << 40, std::int64_t{1} << 40, 1); }, {"op: size"});
  EXPECT_EQ(make_image("op", 3, 2, 4, 16).data.size(), 48u);
}

TEST_F(PictureTest, LibrariesHaveNames) {
  EXPECT_EQ(picture_libraries().find("libpng 1."), 0u) << picture_libraries();
  EXPECT_NE(picture_libraries().find("libjpeg"), std::string::npos);
}

}  // namespace
}  // namespace pom::io
