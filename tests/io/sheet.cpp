// Tests of sheets and of the font: where pictures and words come to lie, and what does not fit.
#include "pom/io/sheet.h"

#include "tests/io/picture_support.h"
#include <algorithm>
#include <set>

#include "pom/io/font.h"

namespace pom::io {
namespace {

using Pixel = std::vector<std::uint8_t>;
const Pixel white = {255, 255, 255};

std::vector<Image> flat_pictures(int count, int width, int height) {
  std::vector<Image> pictures;
  for (int i = 0; i < count; ++i)
    pictures.push_back(flat_image(width, height, {static_cast<std::uint8_t>(10 * (i + 1)), 0, 0}));
  return pictures;
}

SheetOptions plain(int columns = 0) {
  SheetOptions options;
  options.columns = columns;
  options.padding = 5;
  options.scale = 1;
  options.text_scale = 1;
  return options;
}

Image text_image(std::string_view text, int scale = 1) {
  Image image = flat_image(text_width(text, scale) + 2, font_height * scale + 2, {255, 255, 255});
  draw_text(image, 1, 1, text, {0, 0, 0}, scale);
  return image;
}

std::size_t ink(const Image& image) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < image.data.size(); i += 3) count += image.data[i] == 0 ? 1 : 0;
  return count;
}

TEST(Font, EveryCharacterHasAShapeOfItsOwn) {
  std::set<std::string> shapes;
  for (char c = '!'; c <= '~'; ++c) {
    const Image image = text_image(std::string(1, c));
    EXPECT_GT(ink(image), 0u) << c;
    EXPECT_LE(image.width, 7) << c;
    const std::string shape = std::to_string(image.width) + std::string(image.data.begin(), image.data.end());
    EXPECT_TRUE(shapes.insert(shape).second) << c << " looks like another";
  }
  EXPECT_EQ(ink(text_image(" ")), 0u);
  for (char c = '0'; c <= '9'; ++c)
    EXPECT_EQ(text_width(std::string(1, c)), text_width("0")) << "numbers line up";
}

TEST(Font, InkStaysWithinTheBox) {
  std::string all;
  for (char c = ' '; c <= '~'; ++c) all += c;
  const Image image = text_image(all, 2);
  for (int y = 0; y < image.height; ++y)
    for (const int x : {0, image.width - 1}) EXPECT_EQ(pixel_at(image, x, y), white);
  for (int x = 0; x < image.width; ++x)
    for (const int y : {0, image.height - 1}) EXPECT_EQ(pixel_at(image, x, y), white);
  EXPECT_EQ(ink(image), 4 * ink(text_image(all)));
}

TEST(Font, UnknownCharactersAreOneBoxEach) {
  const int box = text_width("\x7f");
  EXPECT_EQ(text_width("é"), box);
  EXPECT_EQ(text_width("🙂"), box);
  EXPECT_EQ(text_width("\n"), box);
  EXPECT_EQ(text_width("\xff"), box);
  EXPECT_EQ(text_width("é多"), 2 * box + 1);
  EXPECT_EQ(text_image("é").data, text_image("多").data);
  EXPECT_EQ(text_width(""), 0);
}

TEST(Font, LongTextIsCut) {
  const std::string text = "a rather long label";
  for (const int scale : {1, 3})
    for (int width = 0; width <= text_width(text, scale); ++width) {
      const std::string fitted = fit_text(text, width, scale);
      EXPECT_LE(text_width(fitted, scale), width);
      const bool is_cut = width < text_width(text, scale) && width >= text_width("...", scale);
      EXPECT_EQ(fitted.ends_with("..."), is_cut) << width;
    }
  EXPECT_EQ(fit_text(text, text_width(text)), text);
  EXPECT_EQ(fit_text("ab cd", text_width("ab ...")), "ab...");
  EXPECT_EQ(fit_text("多多多多多多", 25).find("多多"), 0u) << "never in the middle of a character";
  EXPECT_EQ(fit_text("abc", 0), "");
}

TEST(Font, DrawingIsClipped) {
  Image image = flat_image(4, 4, {255, 255, 255});
  draw_text(image, -3, -3, "WWW", {0, 0, 0}, 2);
  draw_text(image, 100, 100, "W", {0, 0, 0}, 2);
  EXPECT_GT(ink(image), 0u);
  error_of(
      [] {
        Image grey = flat_image(4, 4, {255});
        draw_text(grey, 0, 0, "x", {});
      },
      {"expected 8-bit RGB"});
}

TEST(Sheet, PutsPicturesInOrder) {
  const Image sheet = make_sheet(flat_pictures(5, 20, 10), plain(3));
  EXPECT_EQ(sheet.width, 3 * 25 + 5);
  EXPECT_EQ(sheet.height, 2 * 15 + 5);
  for (int i = 0; i < 5; ++i) {
    const int left = 5 + i % 3 * 25, top = 5 + i / 3 * 15;
    const Pixel colour = {static_cast<std::uint8_t>(10 * (i + 1)), 0, 0};
    EXPECT_EQ(pixel_at(sheet, left, top), colour);
    EXPECT_EQ(pixel_at(sheet, left + 19, top + 9), colour);
    EXPECT_EQ(pixel_at(sheet, left - 1, top), white);
    EXPECT_EQ(pixel_at(sheet, left, top - 1), white);
    EXPECT_EQ(pixel_at(sheet, left + 20, top + 9), white);
    EXPECT_EQ(pixel_at(sheet, left + 19, top + 10), white);
  }
  EXPECT_EQ(pixel_at(sheet, 60, 25), white) << "the sixth place is empty";
}

TEST(Sheet, IsNearSquare) {
  const auto columns = [](int count, int width, int height) {
    const Image sheet = make_sheet(flat_pictures(count, width, height), plain());
    return (sheet.width - 5) / (width + 5);
  };
  EXPECT_EQ(columns(1, 20, 20), 1);
  EXPECT_EQ(columns(2, 20, 20), 2);
  EXPECT_EQ(columns(4, 20, 20), 2);
  EXPECT_EQ(columns(9, 20, 20), 3);
  EXPECT_EQ(columns(16, 20, 20), 4);
  EXPECT_LE(columns(4, 80, 10), 1);
  EXPECT_EQ(columns(4, 10, 80), 4);
}

TEST(Sheet, MagnifiesSmallPictures) {
  SheetOptions options = plain();
  options.scale = 0;
  const Image small = make_sheet(std::vector{noisy_image(16, 8, 3, 8)}, options);
  EXPECT_EQ(small.width, 16 * 6 + 10);
  const Image source = noisy_image(16, 8, 3, 8);
  for (int y = 0; y < 48; ++y)
    for (int x = 0; x < 96; ++x) ASSERT_EQ(pixel_at(small, 5 + x, 5 + y), pixel_at(source, x / 6, y / 6));
  EXPECT_EQ(make_sheet(flat_pictures(1, 200, 100), options).width, 210);
}

TEST(Sheet, CentresPicturesOfOtherSizes) {
  const std::vector<Image> pictures = {flat_image(20, 20, {1, 1, 1}), flat_image(10, 6, {2, 2, 2})};
  const Image sheet = make_sheet(pictures, plain(2));
  EXPECT_EQ(pixel_at(sheet, 30 + 5, 5 + 7), (Pixel{2, 2, 2}));
  EXPECT_EQ(pixel_at(sheet, 30 + 4, 5 + 7), white);
  EXPECT_EQ(pixel_at(sheet, 30 + 14, 5 + 12), (Pixel{2, 2, 2}));
  EXPECT_EQ(pixel_at(sheet, 30 + 14, 5 + 13), white);
}

TEST(Sheet, DrawsLabelsUnderPictures) {
  SheetOptions options = plain(2);
  options.labels = {"first", ""};
  const auto pictures = flat_pictures(2, 40, 10);
  const Image sheet = make_sheet(pictures, options);
  EXPECT_EQ(sheet.height, 5 + 10 + (font_height + 5) + 5);
  const auto inked = [&](int left, int right, int top, int bottom) {
    std::size_t count = 0;
    for (int y = top; y < bottom; ++y)
      for (int x = left; x < right; ++x) count += pixel_at(sheet, x, y) == white ? 0 : 1;
    return count;
  };
  EXPECT_EQ(inked(0, 50, 15, sheet.height), ink(text_image("first")));
  EXPECT_EQ(inked(50, sheet.width, 15, sheet.height), 0u);
  const int middle = 5 + 20, half = (text_width("first") + 1) / 2;
  EXPECT_EQ(inked(middle - half, middle + half + 1, 15, sheet.height), ink(text_image("first")))
      << "in the middle";
}

TEST(Sheet, LongLabelsStayInTheirCell) {
  SheetOptions options = plain(2);
  options.labels = {std::string(200, 'W'), ""};
  const Image sheet = make_sheet(flat_pictures(2, 30, 10), options);
  EXPECT_EQ(sheet.width, 75);
  for (int y = 15; y < sheet.height; ++y)
    for (int x = 38; x < sheet.width; ++x) EXPECT_EQ(pixel_at(sheet, x, y), white);
}

TEST(Sheet, DrawsRowLabels) {
  SheetOptions options = plain(1);
  options.row_labels = {"one", "two hundred"};
  const Image sheet = make_sheet(flat_pictures(2, 20, 20), options);
  const int left = 5 + text_width("two hundred");
  EXPECT_EQ(sheet.width, left + 5 + 20 + 5);
  std::size_t count = 0;
  for (int y = 0; y < sheet.height; ++y)
    for (int x = 0; x < left; ++x) count += pixel_at(sheet, x, y) == white ? 0 : 1;
  EXPECT_EQ(count, ink(text_image("one")) + ink(text_image("two hundred")));
}

TEST(Sheet, WordsContrastWithTheGround) {
  SheetOptions options = plain();
  options.labels = {"x"};
  for (const std::uint8_t level : {0, 60, 200, 255}) {
    options.background = {level, level, level};
    const Image sheet = make_sheet(std::vector{flat_image(20, 20, {level, level, level})}, options);
    int far = 0;
    for (const std::uint8_t value : sheet.data) far = std::max(far, std::abs(value - level));
    EXPECT_GE(far, 140) << int{level};
  }
}

TEST(Sheet, ShowsGroundThroughAlphaAndTakesAnyKind) {
  SheetOptions options = plain();
  options.background = {9, 8, 7};
  const Image sheet = make_sheet(std::vector{flat_image(4, 4, {200, 0}), noisy_image(4, 4, 4, 16)}, options);
  EXPECT_EQ(pixel_at(sheet, 6, 6), (Pixel{9, 8, 7}));
}

TEST(Sheet, RefusesWhatMakesNoSense) {
  const auto pictures = flat_pictures(3, 4, 4);
  const auto message = [&](auto change) {
    SheetOptions options = plain();
    change(options);
    return error_of([&] { make_sheet(pictures, options); }, {"make_sheet: "});
  };
  EXPECT_NE(message([](auto& o) { o.labels = {"one"}; }).find("each of 3 images, got 1"), std::string::npos);
  EXPECT_NE(message([](auto& o) {
              o.row_labels = {"a", "b", "c", "d"};
            }).find("row_labels"),
            std::string::npos);
  EXPECT_NE(message([](auto& o) { o.columns = -1; }).find("columns"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.padding = -1; }).find("padding"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.scale = 5000; }).find("scale"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.scale = 4096; }).find("268435456 pixels"), std::string::npos);
  error_of([] { make_sheet({}); }, {"pictures: expected one or more"});
  error_of([] { make_sheet(std::vector{Image{}}); }, {"make_sheet: pictures: size"});
}

// A label of several lines is higher by them, breaks between words, and what is too long for the last ends in
// dots, as a label of one line does.
TEST(Sheet, LabelsMayTakeSeveralLines) {
  const std::vector<Image> pictures = flat_pictures(1, 40, 20);
  const auto sheet = [&](const std::string& label, int lines) {
    SheetOptions options = plain();
    options.background = {255, 255, 255};
    options.labels = {label};
    options.label_lines = lines;
    return make_sheet(pictures, options);
  };
  const Image one = sheet("two words", 1), two = sheet("two words", 2), three = sheet("two words", 3);
  EXPECT_EQ(two.height, one.height + font_height + 1);
  EXPECT_EQ(three.height, two.height + font_height + 1);
  const auto upper = [&](const Image& image) {  // the picture and the first line
    const int rows = one.height - plain().padding;
    return std::vector(image.data.begin(),
                       image.data.begin() + static_cast<std::ptrdiff_t>(one.row_bytes()) * rows);
  };
  EXPECT_EQ(upper(two), upper(sheet("two", 1)));
  EXPECT_NE(two.data, sheet("two other", 2).data);
  EXPECT_EQ(upper(sheet("unbreakable-label", 2)), upper(sheet("unbreakable-label", 1)));
  EXPECT_EQ(sheet("two words and more of them", 2).data, sheet("two words and many others", 2).data);
  EXPECT_THROW(sheet("two words", 0), Error);
}

}  // namespace
}  // namespace pom::io
