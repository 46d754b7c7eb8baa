// Tests of folders of pictures: what is found and in which order, what is wrong with them, and that a drawing
// written and read again is the same.
#include "pom/data/folder.h"

#include "tests/data/support.h"
#include <algorithm>

#include "pom/data/loader.h"
#include "pom/data/shapes.h"
#include "pom/io/picture.h"

namespace pom::data {
namespace {

class PictureFolderTest : public FolderTest {
 protected:
  void put_picture(const std::string& name, int width, int height, std::vector<std::uint8_t> pixel) {
    io::Image image = io::make_image("test", width, height, static_cast<int>(pixel.size()));
    for (std::size_t i = 0; i < image.data.size(); ++i) image.data[i] = pixel[i % pixel.size()];
    fs::create_directories((folder / name).parent_path());
    io::write_picture(folder / name, image);
  }
  DataConfig config(std::int64_t width = 8, std::int64_t height = 8) const {
    return {.kind = "folder", .path = folder.string(), .size = {width, height}, .validation = 0};
  }
  void expect_error(const std::string& part) const {
    const std::string text = error_of([&] { open_dataset(config(), 0); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
};

TEST_F(PictureFolderTest, ClassesAreFoldersInTheOrderOfTheirNames) {
  put_picture("zebra/1.png", 8, 8, {1, 2, 3});
  put_picture("ant/b.png", 8, 8, {4, 5, 6});
  put_picture("ant/a.png", 8, 8, {7, 8, 9});
  put("ant/notes.txt", "no picture");
  put("ant/.hidden.png", "no picture");
  put(".cache/x.png", "no class");
  put("readme.md", "no class");
  const auto set = open_dataset(config(), 0).training;
  EXPECT_EQ(set->classes(), (std::vector<std::string>{"ant", "zebra"}));
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->name_of(0), (folder / "ant/a.png").string());
  EXPECT_EQ(set->name_of(2), (folder / "zebra/1.png").string());
  EXPECT_EQ(set->get(0, 0).label, 0);
  EXPECT_EQ(set->get(2, 0).label, 1);
  const std::vector<std::uint8_t> bytes = bytes_of(set->get(0, 0).picture);  // planar
  EXPECT_EQ(bytes[0], 7);
  EXPECT_EQ(bytes[64], 8);
  EXPECT_EQ(bytes[128], 9);
}

TEST_F(PictureFolderTest, EndingsInAnyCaseGreyAndAlpha) {
  put_picture("a/1.png", 5, 4, {100});
  put_picture("a/2.jpg", 5, 4, {200, 200, 200});
  put_picture("a/3.png", 5, 4, {0, 0, 0, 0});  // nothing of it is seen: white
  fs::rename(folder / "a/1.png", folder / "a/1.PNG");
  fs::rename(folder / "a/2.jpg", folder / "a/2.JpEg");
  const auto set = open_dataset(config(), 0).training;
  ASSERT_EQ(set->size(), 3);
  const auto value = [&](std::int64_t i) { return static_cast<int>(bytes_of(set->get(i, 0).picture)[70]); };
  EXPECT_EQ(value(0), 100);
  EXPECT_NEAR(value(1), 200, 2);
  EXPECT_EQ(value(2), 255);
}

TEST_F(PictureFolderTest, MistakesAreNamed) {
  expect_error(folder.string() + ": expected one subfolder of images per class, got no folder");
  put_picture("full/1.png", 4, 4, {1, 2, 3});
  fs::create_directories(folder / "empty");
  expect_error((folder / "empty").string() + ": expected images (.png, .jpg or .jpeg), got none");
  DataConfig other = config();
  other.path = (folder / "nowhere").string();
  EXPECT_NE(error_of([&] { open_dataset(other, 0); }).find("got no such folder"), std::string::npos);
  other.path = (folder / "full/1.png").string();
  EXPECT_NE(error_of([&] { open_dataset(other, 0); }).find("got a file"), std::string::npos);
  other.path = "";
  EXPECT_NE(error_of([&] { open_dataset(other, 0); }).find("got nothing"), std::string::npos);
}

TEST_F(PictureFolderTest, BrokenPicturesAreFoundWhenTheyAreRead) {
  for (int i = 0; i < 5; ++i) put_picture("a/" + std::to_string(i) + ".png", 4, 4, {1, 2, 3});
  put("a/2.png", "not a picture");
  put("a/4.png", "");
  const auto set = open_dataset(config(), 0).training;
  const std::string text = error_of([&] { set->get(2, 0); });
  EXPECT_NE(text.find((folder / "a/2.png").string()), std::string::npos) << text;
  std::vector<std::string> told;
  Loader loader(set,
                {.batch = 5, .workers = 2, .on_broken = [&](const std::string& name, const std::string&) {
                   told.push_back(fs::path(name).filename().string());
                 }});
  loader.next();
  std::ranges::sort(told);
  EXPECT_EQ(told, (std::vector<std::string>{"2.png", "4.png"}));
  EXPECT_EQ(loader.broken(), 2);
}

// A head of a few bytes that claims gigabytes is refused before they are taken.
TEST_F(PictureFolderTest, PicturesThatClaimTooMuchAreBroken) {
  put_picture("a/1.jpg", 8, 8, {1, 2, 3});
  std::ifstream file(folder / "a/1.jpg", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  const std::size_t head = bytes.find("\xff\xc0");
  ASSERT_NE(head, std::string::npos);
  bytes.replace(head + 5, 4, "\x3e\x80\x3e\x80");  // 16000 x 16000
  put("a/1.jpg", bytes);
  const std::string text = error_of([&] { open_dataset(config(), 0).training->get(0, 0); });
  EXPECT_NE(text.find("1.jpg: size: expected at most 67108864 pixels (2^26), got 16000 x 16000"),
            std::string::npos)
      << text;
}

TEST_F(PictureFolderTest, WrittenDrawingsReadAsTheyWereDrawn) {
  constexpr std::int64_t width = 40, height = 28;
  std::vector<std::vector<std::uint8_t>> drawn(12);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    drawn[i].resize(3 * width * height);
    draw_shape(shape_at(3, static_cast<std::int64_t>(i)), width, height, drawn[i]);
    io::Image image = io::make_image("test", width, height, 3);
    for (std::size_t p = 0; p < width * height; ++p)
      for (std::size_t c = 0; c < 3; ++c) image.data[3 * p + c] = drawn[i][c * width * height + p];
    fs::create_directories(folder / "all");
    io::write_picture(folder / "all" / (std::to_string(100 + i) + ".png"), image);
  }
  const auto set = open_dataset(config(width, height), 0).training;
  for (std::size_t i = 0; i < drawn.size(); ++i)
    EXPECT_EQ(bytes_of(set->get(static_cast<std::int64_t>(i), 0).picture), drawn[i]);
}

TEST_F(PictureFolderTest, HalfAreMirroredInTrainingOnly) {
  for (int i = 0; i < 40; ++i) {
    io::Image image = io::make_image("test", 8, 8, 1);
    for (std::size_t p = 0; p < 64; ++p) image.data[p] = static_cast<std::uint8_t>(p % 8 * 30 + i);
    fs::create_directories(folder / "a");
    io::write_picture(folder / "a" / (std::to_string(i) + ".png"), image);
  }
  DataConfig flipped = config();
  flipped.flip = true;
  flipped.validation = 4;
  const Split split = open_dataset(flipped, 1);
  const auto is_mirrored = [](const Example& e) { return bytes_of(e.picture)[0] > bytes_of(e.picture)[7]; };
  int mirrored = 0;
  for (std::int64_t visit = 0; visit < 40; ++visit)
    for (std::int64_t i = 0; i < split.training->size(); ++i) {
      mirrored += is_mirrored(split.training->get(i, visit)) ? 1 : 0;
      ASSERT_EQ(is_mirrored(split.training->get(i, visit)), is_mirrored(split.training->get(i, visit)));
    }
  EXPECT_NEAR(mirrored, 20 * split.training->size(), 90);
  for (std::int64_t i = 0; i < split.validation->size(); ++i)
    for (std::int64_t visit = 0; visit < 8; ++visit)
      EXPECT_FALSE(is_mirrored(split.validation->get(i, visit)));
}

}  // namespace
}  // namespace pom::data
