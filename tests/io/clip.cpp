// Tests of clips in files: what is written is read again, whole files appear whole, files that grow play at
// any time, and whatever is wrong is said. python/tests/test_clips.py has the referees from outside.
#include "pom/io/clip.h"

#include "tests/base/child.h"
#include "tests/io/picture_support.h"
#include <cmath>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <set>
#include <unistd.h>

#include "pom/io/palette.h"
#include "pom/io/yuv.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;

class ClipTest : public PictureTest {
 protected:
  static bool has_ffmpeg() { return !clip_libraries().empty(); }
};
using ClipFileTest = ClipTest;

// A grey slope, another in each frame, with a red square that moves to the right.
Image picture(int width, int height, int number) {
  Image image = make_image("test", width, height, 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      std::uint8_t* pixel = &image.row(y)[static_cast<std::size_t>(3 * x)];
      const auto grey = static_cast<std::uint8_t>(60 + 100 * x / width + 5 * number);
      const int left = 4 + 2 * number;
      const bool red = x >= left && x < left + 8 && y >= height / 4 && y < height / 4 + 8;
      pixel[0] = red ? 220 : grey;
      pixel[1] = pixel[2] = red ? 30 : grey;
    }
  return image;
}

std::vector<Image> pictures(int width, int height, int count) {
  std::vector<Image> frames;
  for (int i = 0; i < count; ++i) frames.push_back(picture(width, height, i));
  return frames;
}

void write(const fs::path& path, const std::vector<Image>& frames, ClipOptions options) {
  options.width = frames[0].width;
  options.height = frames[0].height;
  const auto writer = open_clip(path, options);
  for (const Image& frame : frames) writer->add(frame);
  writer->finish();
}

std::vector<Image> read(const fs::path& path, const ClipReading& reading = {}) {
  ClipReader reader(path, reading);
  std::vector<Image> frames;
  for (Image frame; reader.next(frame);) frames.push_back(frame);
  return frames;
}

double difference(const Image& a, const Image& b) {
  if (a.data.size() != b.data.size()) return 999;
  double sum = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) sum += std::abs(a.data[i] - b.data[i]);
  return sum / static_cast<double>(a.data.size());
}

std::string bytes_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

#define POM_NEEDS_FFMPEG() \
  if (!has_ffmpeg()) GTEST_SKIP() << "this build has no FFmpeg"

TEST_F(ClipFileTest, AreReadAsTheyWereWritten) {
  POM_NEEDS_FFMPEG();
  const std::vector<Image> frames = pictures(48, 32, 12);
  for (const bool growing : {false, true})
    for (const char* name : {"a.mp4", "b.webm", "c.gif", "d.y4m", "E.MP4"}) {
      const fs::path path = folder / name;
      write(path, frames, {.fps = 8, .growing = growing});
      ClipReader reader(path);
      EXPECT_EQ(reader.info().width, 48) << name;
      EXPECT_EQ(reader.info().height, 32) << name;
      EXPECT_NEAR(reader.info().fps, 8, 0.1) << name;
      const std::vector<Image> back = read(path);
      ASSERT_EQ(back.size(), 12u) << name << growing;
      for (std::size_t i = 0; i < 12; ++i) EXPECT_LT(difference(back[i], frames[i]), 4) << name << i;
      EXPECT_EQ(read(path, {.fps = 8}).size(), 12u) << name << growing;
    }
}

TEST_F(ClipFileTest, ColoursStayWhatTheyAre) {
  POM_NEEDS_FFMPEG();
  const std::vector<std::vector<std::uint8_t>> colours = {{0, 0, 0},     {255, 255, 255}, {230, 26, 31},
                                                          {26, 178, 51}, {26, 64, 230},   {255, 230, 26}};
  for (const char* name : {"a.mp4", "b.webm", "c.gif", "d.y4m"})
    for (const auto& colour : colours) {
      write(folder / name, std::vector<Image>(4, flat_image(32, 32, colour)), {.fps = 10});
      const std::vector<Image> back = read(folder / name);
      ASSERT_EQ(back.size(), 4u);
      for (std::size_t c = 0; c < 3; ++c)
        EXPECT_NEAR(pixel_at(back[3], 16, 16)[c], colour[c], 4) << name << c;
    }
}

#ifdef __GLIBC__
// What is in memory before must not show: of the same frames come the same files, wherever and whenever.
TEST_F(ClipFileTest, TheSameFramesAreTheSameFile) {
  POM_NEEDS_FFMPEG();
  const std::vector<Image> frames = pictures(48, 48, 16);
  for (const bool growing : {false, true})
    for (const char* name : {"a.mp4", "b.webm", "c.gif"}) {
      std::string files[2];
      for (const int filled : {0x55, 0xaa}) {  // whatever is allocated comes filled with the complement
        ::mallopt(M_PERTURB, filled);
        write(folder / name, frames, {.fps = 8, .growing = growing});
        files[filled == 0xaa] = bytes_in(folder / name);
      }
      ::mallopt(M_PERTURB, 0);
      EXPECT_FALSE(files[0].empty()) << name;
      EXPECT_TRUE(files[0] == files[1]) << name << (growing ? ", growing" : "");
    }
}
#endif

TEST_F(ClipFileTest, OddSidesAndSinglePixels) {
  POM_NEEDS_FFMPEG();
  for (const auto& [width, height] : {std::pair{33, 17}, std::pair{17, 33}, std::pair{1, 1}, std::pair{2, 5}})
    for (const char* name : {"a.mp4", "b.webm", "c.gif", "d.y4m"}) {
      const std::vector<Image> frames = pictures(width, height, 3);
      write(folder / name, frames, {.fps = 8});
      const std::vector<Image> back = read(folder / name);
      ASSERT_EQ(back.size(), 3u) << name;
      const int even = name[0] == 'a' ? 1 : 0;
      EXPECT_EQ(back[0].width, (width + even) & ~even) << name;
      EXPECT_EQ(back[0].height, (height + even) & ~even) << name;
      EXPECT_NEAR(pixel_at(back[2], 0, 0)[1], pixel_at(frames[2], 0, 0)[1], 8) << name << width;
    }
}

TEST_F(ClipFileTest, GifsAreExactWhereColoursAreFew) {
  POM_NEEDS_FFMPEG();
  const std::vector<Image> frames = pictures(40, 24, 6);
  write(folder / "a.gif", frames, {.fps = 8});
  EXPECT_EQ(read(folder / "a.gif"), frames);
}

TEST_F(ClipFileTest, GifsOfNoiseFillTheTableOfCodes) {
  POM_NEEDS_FFMPEG();
  std::vector<Image> frames;
  for (int i = 0; i < 3; ++i) {
    Image image = noisy_image(120, 90, 3, 8);
    for (std::uint8_t& sample : image.data) sample = static_cast<std::uint8_t>((sample + 30 * i) & 0xc0);
    frames.push_back(image);  // 64 colours in an order that cannot be packed
  }
  write(folder / "a.gif", frames, {.fps = 8});
  EXPECT_EQ(read(folder / "a.gif"), frames);
}

TEST_F(ClipFileTest, FoldersOfPictures) {
  const std::vector<Image> frames = pictures(16, 8, 3);
  const std::vector<TextEntry> text = {{"pom", "{}"}};
  write(folder / "frames", frames, {.fps = 8, .text = text});
  EXPECT_EQ(read_png(folder / "frames" / "000002.png").image, frames[2]);
  EXPECT_EQ(read_png(folder / "frames" / "000000.png").text, text);
  fs::create_directories(folder / "v1.5");
  write(folder / "v1.5", frames, {.fps = 8});
  EXPECT_TRUE(fs::exists(folder / "v1.5" / "000000.png"));
  EXPECT_EQ(bytes_in(folder / "v1.5" / "clip.json"), "{\"kind\": \"frames of a clip\", \"frames\": 3}\n");
}

class ClipFolderTest : public ClipTest {
 protected:
  fs::path frames() const { return folder / "frames"; }
  std::unique_ptr<ClipWriter> open(bool growing) const {
    return open_clip(frames(), {.width = 16, .height = 8, .fps = 8, .growing = growing});
  }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(frames()))
      found.insert(entry.path().filename().string());
    return found;
  }
};

TEST_F(ClipFolderTest, FramesThatNoClipWroteStay) {
  fs::create_directories(frames());
  const auto refused = [&](const std::string& file) {
    for (const bool growing : {false, true})
      error_of([&] { open(growing); }, {"clip write: ", "frames", file, "clip.json does not count"});
    EXPECT_EQ(frames_in(frames()).first_other, file);
  };
  put_bytes(frames() / "000000.png", "mine");
  refused("000000.png");
  EXPECT_EQ(bytes_in(frames() / "000000.png"), "mine");
  fs::remove(frames() / "000000.png");
  put_bytes(frames() / "notes.txt", "mine");
  write(frames(), pictures(16, 8, 3), {.fps = 8});
  put_bytes(frames() / "000003.png", "mine");  // one more than the clip has
  refused("000003.png");
  fs::rename(frames() / "000003.png", frames() / "0000001.png");
  refused("0000001.png");
  fs::remove(frames() / "0000001.png");
  for (const char* other : {"", "[]", "{}", "{\"frames\": 3}", "{\"kind\": \"frames of a clip\"",
                            "{\"kind\": \"frames of a clip\", \"frames\": -1}"}) {
    put_bytes(frames() / "clip.json", other);
    EXPECT_GT(frames_in(frames()).others, 0) << other;
    error_of([&] { open(false); }, {"does not count"});
    EXPECT_EQ(bytes_in(frames() / "clip.json"), other);
  }
  EXPECT_TRUE(names().contains("000002.png") && names().contains("notes.txt"));
}

TEST_F(ClipFolderTest, AnotherClipStaysUntilTheNewOneIsWhole) {
  for (const bool growing : {false, true}) {
    fs::remove_all(frames());
    write(frames(), pictures(16, 8, 4), {.fps = 8});
    const std::set<std::string> before = names();
    const std::string last = bytes_in(frames() / "000001.png");
    {
      const auto broken_off = open(growing);
      for (int i = 0; i < 2; ++i) broken_off->add(picture(16, 8, i + 5));
      EXPECT_EQ(bytes_in(frames() / "000001.png"), last);
    }
    EXPECT_EQ(names(), before);
    const auto writer = open(growing);
    for (int i = 0; i < 2; ++i) writer->add(picture(16, 8, i + 5));
    writer->finish();
    EXPECT_EQ(names(), (std::set<std::string>{"000000.png", "000001.png", "clip.json"}));
    EXPECT_EQ(read_png(frames() / "000001.png").image, picture(16, 8, 6));
    EXPECT_EQ(frames_in(frames()).counted, 2);
  }
}

TEST_F(ClipFolderTest, FramesOfAClipThatGrowsComeAtOnce) {
  {
    const auto writer = open(true);
    for (int i = 0; i < 3; ++i) writer->add(picture(16, 8, i));
    EXPECT_TRUE(names().contains("000002.png"));
  }
  EXPECT_EQ(names(), (std::set<std::string>{"000000.png", "000001.png", "000002.png", "clip.json"}));
  EXPECT_EQ(frames_in(frames()).others, 0);  // so that another clip may replace it
  { open(false)->add(picture(16, 8, 0)); }
  EXPECT_EQ(frames_in(frames()).written, 3);
  fs::remove_all(frames());
  { open(false)->add(picture(16, 8, 0)); }
  EXPECT_FALSE(fs::exists(frames()));  // of a clip that does not grow nothing is left, nor of its folder
}

TEST_F(ClipFolderTest, WhatAKilledProgramLeftIsRemovedByTheNext) {
  for (const bool growing : {false, true}) {
    fs::remove_all(frames());
    const testing::Ending ending = testing::in_child("", [&] {
      const auto writer = open(growing);
      for (int i = 0; i < 2; ++i) writer->add(picture(16, 8, i));
      ::kill(::getpid(), SIGKILL);
    });
    ASSERT_TRUE(ending.killed);
    EXPECT_EQ(names().size(), growing ? 4u : 1u);  // and a folder of those that had no place yet
    const auto living = open(false);
    living->add(picture(16, 8, 3));
    write(frames(), pictures(16, 8, 1), {.fps = 8});  // and removes what is dead alone
    living->finish();
    EXPECT_EQ(names(), (std::set<std::string>{"000000.png", "clip.json"}));
    EXPECT_EQ(read_png(frames() / "000000.png").image, picture(16, 8, 3));
  }
}

TEST_F(ClipFileTest, SayWhatTheyAre) {
  POM_NEEDS_FFMPEG();
  for (const char* name : {"a.mp4", "b.webm", "c.gif"}) {
    write(folder / name, pictures(32, 32, 2), {.fps = 8, .text = {{"parameters", "a red star, Steps: 20"}}});
    const std::string keyword = name[0] == 'c' ? "parameters: " : "";  // a GIF has a comment and no other tag
    EXPECT_EQ(ClipReader(folder / name).info().comment, keyword + "a red star, Steps: 20") << name;
  }
}

TEST_F(ClipTest, NothingAppearsBeforeItIsWhole) {
  for (const char* name : {"a.mp4", "b.webm", "c.gif", "d.y4m"}) {
    if (!has_ffmpeg() && name[0] < 'c') continue;
    put_bytes(folder / name, "before");
    {
      const auto writer = open_clip(folder / name, {.width = 32, .height = 32, .fps = 8});
      for (int i = 0; i < 5; ++i) writer->add(picture(32, 32, i));
      EXPECT_EQ(bytes_in(folder / name), "before") << name;
    }
    EXPECT_EQ(bytes_in(folder / name), "before") << name;
  }
  EXPECT_EQ(files(), has_ffmpeg() ? 4u : 2u);
}

// A program that is killed writes no end.
TEST_F(ClipFileTest, ThoseThatGrowPlayAtAnyTime) {
  POM_NEEDS_FFMPEG();
  for (const char* name : {"a.mp4", "b.webm", "c.gif", "d.y4m"}) {
    const fs::path path = folder / name;
    const auto writer = open_clip(path, {.width = 32, .height = 32, .fps = 8, .growing = true});
    for (int i = 0; i < 5; ++i) writer->add(picture(32, 32, i));
    writer->flush();
    fs::copy_file(path, folder / ("five" + path.extension().string()));
    EXPECT_EQ(read(folder / ("five" + path.extension().string())).size(), 5u) << name;
    for (int i = 5; i < 20; ++i) writer->add(picture(32, 32, i));
    const std::size_t played = read(path).size();
    EXPECT_GE(played, 16u) << name;  // flushed once a second
    writer->finish();
    EXPECT_EQ(read(path).size(), 20u) << name;
    EXPECT_EQ(writer->frames(), 20);
  }
}

TEST_F(ClipFileTest, AnMp4ThatIsCutPlaysUpToTheCut) {
  POM_NEEDS_FFMPEG();
  write(folder / "a.mp4", pictures(64, 64, 40), {.fps = 8, .growing = true});
  const std::string bytes = bytes_in(folder / "a.mp4");
  put_bytes(folder / "cut.mp4", bytes.substr(0, bytes.size() * 3 / 4));
  ClipReader reader(folder / "cut.mp4");
  int frames = 0;
  try {
    for (Image frame; reader.next(frame);) ++frames;
  } catch (const Error&) {  // the last fragment is damaged
  }
  EXPECT_GE(frames, 16);
  EXPECT_LT(frames, 40);
}

TEST_F(ClipFileTest, EveryRate) {
  POM_NEEDS_FFMPEG();
  const std::vector<Image> frames = pictures(32, 32, 24);
  for (const double fps : {1.0, 7.5, 12.5, 24.0, 29.97, 50.0})
    for (const char* name : {"a.mp4", "b.webm", "c.gif", "d.y4m"}) {
      write(folder / name, frames, {.fps = fps});
      const std::vector<Image> back = read(folder / name, {.fps = fps});
      ASSERT_EQ(back.size(), 24u) << name << fps;
      for (std::size_t i = 0; i < 24; ++i)
        ASSERT_LT(difference(back[i], frames[i]), 4) << name << fps << " " << i;
      EXPECT_NEAR(ClipReader(folder / name).info().seconds, 24 / fps, 0.02 + (name[0] == 'b' ? 0.05 : 0))
          << name;
    }
}

TEST_F(ClipFileTest, ReadAtAnotherRate) {
  POM_NEEDS_FFMPEG();
  const std::vector<Image> frames = pictures(32, 32, 24);
  write(folder / "a.y4m", frames, {.fps = 12});
  const std::vector<Image> all = read(folder / "a.y4m");
  const auto expect = [&](double fps, double start, std::vector<std::size_t> which) {
    const std::vector<Image> back = read(folder / "a.y4m", {.fps = fps, .start = start});
    ASSERT_EQ(back.size(), which.size()) << fps;
    for (std::size_t i = 0; i < which.size(); ++i) EXPECT_EQ(back[i], all[which[i]]) << fps << " " << i;
  };
  expect(6, 0, {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22});
  expect(3, 0, {0, 4, 8, 12, 16, 20});
  expect(4, 0.5, {6, 9, 12, 15, 18, 21});
  expect(12, 1.5, {18, 19, 20, 21, 22, 23});
  EXPECT_EQ(read(folder / "a.y4m", {.fps = 24}).size(), 48u);
  EXPECT_EQ(read(folder / "a.y4m", {.fps = 24})[7], all[3]);
  EXPECT_EQ(read(folder / "a.y4m", {.start = 1}).size(), 12u);
  EXPECT_EQ(read(folder / "a.y4m", {.fps = 8, .start = 60}).size(), 0u);
}

TEST_F(ClipFileTest, SeekingFindsTheFrame) {
  POM_NEEDS_FFMPEG();
  const std::vector<Image> frames = pictures(32, 32, 30);
  for (const char* name : {"a.mp4", "b.webm"}) {
    for (const bool growing : {false, true}) {
      std::vector<Image> many;
      for (int i = 0; i < 6; ++i) many.insert(many.end(), frames.begin(), frames.end());
      write(folder / name, many, {.fps = 10, .growing = growing});
      for (const double start : {0.1, 2.9, 7.3, 14.0, 17.9}) {
        const std::vector<Image> back = read(folder / name, {.fps = 10, .start = start});
        ASSERT_EQ(back.size(), 180 - static_cast<std::size_t>(std::lround(10 * start))) << name << start;
        EXPECT_LT(difference(back[0], many[180 - back.size()]), 4) << name << start;
      }
    }
  }
}

TEST_F(ClipFileTest, ReadAtAnotherSize) {
  POM_NEEDS_FFMPEG();
  Image wide = make_image("test", 96, 32, 3);  // thirds: red, green, blue
  for (int y = 0; y < 32; ++y)
    for (int x = 0; x < 96; ++x) wide.row(y)[static_cast<std::size_t>(3 * x + x / 32)] = 200;
  write(folder / "a.gif", {wide, wide}, {.fps = 8});
  const std::vector<Image> square = read(folder / "a.gif", {.width = 16, .height = 16});
  ASSERT_EQ(square.size(), 2u);
  EXPECT_EQ(square[1].width, 16);
  for (const int x : {0, 8, 15}) EXPECT_NEAR(pixel_at(square[1], x, 8)[1], 200, 3) << x;  // the middle third
  const std::vector<Image> whole = read(folder / "a.gif", {.width = 48, .height = 16});
  EXPECT_NEAR(pixel_at(whole[0], 2, 8)[0], 200, 3);
  EXPECT_NEAR(pixel_at(whole[0], 45, 8)[2], 200, 3);
  const std::vector<Image> tall = read(folder / "a.gif", {.width = 8, .height = 64});
  EXPECT_EQ(tall[0].height, 64);
  EXPECT_NEAR(pixel_at(tall[0], 4, 60)[1], 200, 3);
}

// ---- pipes

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    close_reader();
    ::close(ends_[1]);
  }
  void close_reader() {
    if (ends_[0] >= 0) ::close(std::exchange(ends_[0], -1));
  }
  int writer() const { return ends_[1]; }
  int reader() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
};

TEST(ClipPipe, RawFramesForAPlayer) {
  Pipe pipe;
  const auto writer = open_y4m(pipe.writer(), {.width = 5, .height = 3, .fps = 29.97});
  writer->add(flat_image(5, 3, {255, 255, 255}));
  writer->finish();
  std::string text(200, '\0');
  text.resize(static_cast<std::size_t>(::read(pipe.reader(), text.data(), text.size())));
  const std::string head = "YUV4MPEG2 W5 H3 F30000:1001 Ip A1:1 C444 XCOLORRANGE=LIMITED\nFRAME\n";
  ASSERT_EQ(text.size(), head.size() + 45);
  EXPECT_EQ(text.substr(0, head.size()), head);
  EXPECT_EQ(text.substr(head.size(), 15), std::string(15, '\xeb'));
  EXPECT_EQ(text.substr(head.size() + 15), std::string(30, '\x80'));
}

// The default action of the signal would end this very test.
TEST(ClipPipe, AClosedPipeIsToldApart) {
  ASSERT_EQ(std::signal(SIGPIPE, SIG_DFL), SIG_DFL);
  Pipe pipe;
  const auto writer = open_y4m(pipe.writer(), {.width = 32, .height = 32, .fps = 8});
  writer->add(picture(32, 32, 0));
  pipe.close_reader();
  EXPECT_THROW(writer->add(picture(32, 32, 1)), ClosedPipe);
  EXPECT_NE(error_of([&] { writer->add(picture(32, 32, 2)); }).find("after a failure"), std::string::npos);
  sigset_t waiting;
  ::sigpending(&waiting);
  EXPECT_EQ(::sigismember(&waiting, SIGPIPE), 0);
}

TEST_F(ClipTest, ANamedPipeGrows) {
  for (const char* name : {"a.mp4", "b.gif"}) {
    if (!has_ffmpeg() && name[0] == 'a') continue;
    const fs::path path = folder / name;
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
    const auto writer = open_clip(path, {.width = 32, .height = 32, .fps = 8});
    for (int i = 0; i < 10; ++i) writer->add(picture(32, 32, i));
    std::string bytes(1 << 16, '\0');
    EXPECT_GT(::read(reader, bytes.data(), bytes.size()), 100) << name;
    ::close(reader);
    EXPECT_THROW(
        {
          for (int i = 0; i < 20; ++i) writer->add(picture(32, 32, i));
        },
        ClosedPipe)
        << name;
    EXPECT_TRUE(fs::is_fifo(path));
  }
}

TEST_F(ClipTest, AFullDiskIsNoClosedPipe) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const int full = ::open("/dev/full", O_WRONLY);
  std::string message;
  try {
    open_y4m(full, {.width = 8, .height = 8, .fps = 8});
  } catch (const ClosedPipe&) {
    FAIL() << "told as a closed pipe";
  } catch (const Error& error) {
    message = error.what();
  }
  ::close(full);
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
}

// ---- mistakes

TEST_F(ClipTest, MistakesAreNamed) {
  const ClipOptions good = {.width = 8, .height = 8, .fps = 8};
  error_of([&] { open_clip(folder / "a.avi", good); },
           {"a.avi", ".mp4, .webm, .gif or .y4m, or a folder", ".avi"});
  error_of([&] { check_clip_name("a.png"); }, {"a.png"});
  check_clip_name("a.gif");
  check_clip_name("frames");
  error_of([&] { open_clip(folder / "a.gif", {.width = 0, .height = 8, .fps = 8}); }, {"a.gif"});
  error_of([&] { open_clip(folder / "a.gif", {.width = 8, .height = 8, .fps = 0}); }, {"fps"});
  error_of([&] { open_clip(folder / "a.gif", {.width = 8, .height = 8, .fps = 60}); }, {"at most 50", "60"});
  error_of([&] { open_clip(folder / "no" / "a.gif", good); }, {"a.gif", "No such file"});
  EXPECT_EQ(files(), 0u);
  const auto writer = open_clip(folder / "a.gif", good);
  error_of([&] { writer->finish(); }, {"at least one frame"});
  error_of([&] { writer->add(flat_image(8, 9, {0, 0, 0})); }, {"expected 8-bit RGB of 8x8", "8x9"});
  error_of([&] { writer->add(flat_image(8, 8, {0})); }, {"1 channels"});
  writer->add(flat_image(8, 8, {1, 2, 3}));
  writer->finish();
  error_of([&] { writer->add(flat_image(8, 8, {1, 2, 3})); }, {"add after finish"});
  error_of([&] { writer->finish(); }, {"finish after finish"});
}

TEST_F(ClipTest, WithoutFfmpegItIsSaid) {
  if (has_ffmpeg()) GTEST_SKIP() << "this build has FFmpeg";
  error_of([&] { check_clip_name("a.mp4"); }, {"a.mp4", "libavformat-dev", ".gif"});
  error_of([&] { open_clip(folder / "a.webm", {.width = 8, .height = 8, .fps = 8}); },
           {"a.webm", "libavformat-dev"});
  error_of([&] { ClipReader(folder / "a.mp4"); }, {"a.mp4", "libavformat-dev"});
}

TEST_F(ClipFileTest, BrokenFilesAreNamed) {
  POM_NEEDS_FFMPEG();
  put_bytes(folder / "empty.mp4", "");
  put_bytes(folder / "text.mp4", "not a clip at all\n");
  error_of([&] { read(folder / "empty.mp4"); }, {"clip read: ", "empty.mp4"});
  error_of([&] { read(folder / "text.mp4"); }, {"clip read: ", "text.mp4"});
  error_of([&] { read(folder / "none.mp4"); }, {"none.mp4", "No such file"});
  error_of([&] { read(folder); }, {"a folder"});
  write(folder / "a.mp4", pictures(32, 32, 20), {.fps = 8});
  std::string bytes = bytes_in(folder / "a.mp4");
  put_bytes(folder / "head.mp4", bytes.substr(0, 200));
  error_of([&] { read(folder / "head.mp4"); }, {"head.mp4"});
  error_of([&] { read(folder / "a.mp4", {.width = 8}); }, {"both sides"});
}

// A list of other files, which a player would follow.
TEST_F(ClipFileTest, FilesThatAFileNamesAreNotOpened) {
  POM_NEEDS_FFMPEG();
  write(folder / "secret.mp4", pictures(32, 32, 8), {.fps = 8});
  const std::string secret = (folder / "secret.mp4").string();
  put_bytes(folder / "a.m3u8",
            "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://" + secret + "\n#EXT-X-ENDLIST\n");
  put_bytes(folder / "b.txt", "ffconcat version 1.0\nfile '" + secret + "'\n");
  error_of([&] { read(folder / "a.m3u8"); }, {"a.m3u8"});
  error_of([&] { read(folder / "b.txt"); }, {"b.txt"});
}

// ---- files that say what is not so

std::string element(std::string_view id, const std::string& data) {  // of Matroska: a name, a length, data
  std::string size(8, '\0');
  for (std::size_t i = 0; i < 7; ++i) size[7 - i] = static_cast<char>(data.size() >> (8 * i));
  size[0] = 1;
  return std::string(id) + size + data;
}

// A key frame of VP8 whose bits are all 0: the decoder reads as many of them as it likes.
std::string key_frame(int side) {
  const auto bytes = [](int value) {
    return std::string{static_cast<char>(value), static_cast<char>(value >> 8)};
  };
  constexpr int first_part = 300, shown = 1 << 4;
  const int tag = first_part << 5 | shown;
  return bytes(tag) + static_cast<char>(tag >> 16) + "\x9d\x01\x2a" + bytes(side) + bytes(side) +
         std::string(first_part + 20, '\0');
}

std::string webm(const std::string& frame) {
  using namespace std::string_literals;
  const std::string size = element("\xb0", " ") + element("\xba", " ");  // 32 x 32
  const std::string track = element("\xd7", "\1") + element("\x73\xc5", "\1") + element("\x83", "\1") +
                            element("\x86", "V_VP8") + element("\xe0", size);
  const std::string cluster = element("\xe7", "\0"s) + element("\xa3", "\x81\0\0\x80"s + frame);
  return element("\x1a\x45\xdf\xa3", element("\x42\x82", "webm")) +
         element("\x18\x53\x80\x67",
                 element("\x16\x54\xae\x6b", element("\xae", track)) + element("\x1f\x43\xb6\x75", cluster));
}

TEST_F(ClipFileTest, FramesLargerThanWeTakeAreRefusedBeforeTheyAreMade) {
  POM_NEEDS_FFMPEG();
  put_bytes(folder / "honest.webm", webm(key_frame(32)));
  const testing::Ending honest = testing::in_child("", [&] { read(folder / "honest.webm"); });
  EXPECT_EQ(honest.code, 0) << honest.error;
  for (const int side : {8200, 16000, 16383}) {
    put_bytes(folder / "liar.webm", webm(key_frame(side)));
    const testing::Ending liar = testing::in_child("", [&] { read(folder / "liar.webm"); });
    EXPECT_EQ(liar.code, 1) << side;
    EXPECT_NE(liar.error.find("liar.webm: "), std::string::npos) << liar.error;
    EXPECT_NE(liar.error.find(std::to_string(side)), std::string::npos) << liar.error;
    EXPECT_LT(liar.peak_mib, honest.peak_mib + 16) << side;
  }
}

TEST_F(ClipFileTest, RareFormatsStayClosed) {
  POM_NEEDS_FFMPEG();
  put_bytes(folder / "a.srt", "1\n00:00:00,000 --> 00:00:01,000\nhello\n\n");
  error_of([&] { read(folder / "a.srt"); }, {"a.srt: cannot open: ", "whitelist"});
}

// ---- parts

TEST(FrameRate, IsAFractionOfWholeNumbers) {
  EXPECT_EQ(frame_rate(8), (FrameRate{8, 1}));
  EXPECT_EQ(frame_rate(29.97), (FrameRate{30000, 1001}));
  EXPECT_EQ(frame_rate(23.976), (FrameRate{24000, 1001}));
  EXPECT_EQ(frame_rate(59.94), (FrameRate{60000, 1001}));
  EXPECT_EQ(frame_rate(12.5), (FrameRate{25, 2}));
  EXPECT_EQ(frame_rate(0.5), (FrameRate{1, 2}));
  EXPECT_EQ(frame_rate(16), (FrameRate{16, 1}));
  EXPECT_NE(error_of([] { frame_rate(-1); }).find("above 0"), std::string::npos);
}

TEST(Palette, KeepsFewColoursAndHalvesManyWell) {
  const Image noise = noisy_image(64, 64, 3, 8);
  const detail::Indexed few = detail::to_palette(noise.data, 255);
  EXPECT_EQ(few.palette.size(), 255u);
  double error = 0;
  for (std::size_t i = 0; i < few.pixels.size(); ++i) {
    const Rgb colour = few.palette[few.pixels[i]];
    error += std::pow(colour.red - noise.data[3 * i], 2) + std::pow(colour.green - noise.data[3 * i + 1], 2) +
             std::pow(colour.blue - noise.data[3 * i + 2], 2);
  }
  // 255 cubes of colours would have sides of 40, and an error of 40²/12 a channel.
  EXPECT_LT(error / static_cast<double>(3 * few.pixels.size()), 1.3 * 40 * 40 / 12);
  const Image flat = flat_image(7, 5, {9, 8, 7});
  EXPECT_EQ(detail::to_palette(flat.data, 255).palette, (std::vector<Rgb>{{9, 8, 7}}));
}

TEST(Yuv, GreysHaveNoColourAndPrimariesAreThoseOfTheStandard) {
  const auto of = [](std::vector<std::uint8_t> colour, const detail::YuvMatrix& matrix) {
    std::uint8_t y, u, v;
    const detail::YuvPlane planes[3] = {{&y, 1}, {&u, 1}, {&v, 1}};
    detail::to_yuv444(flat_image(1, 1, std::move(colour)), matrix, planes);
    return std::array<int, 3>{y, u, v};
  };
  for (int grey = 0; grey < 256; ++grey) {
    const auto g = static_cast<std::uint8_t>(grey);
    EXPECT_EQ(of({g, g, g}, detail::bt709), (std::array{16 + (219 * grey + 127) / 255, 128, 128}));
  }
  EXPECT_EQ(of({255, 0, 0}, detail::bt601), (std::array{81, 90, 240}));
  EXPECT_EQ(of({0, 0, 255}, detail::bt601), (std::array{41, 240, 110}));
  EXPECT_EQ(of({255, 0, 0}, detail::bt709), (std::array{63, 102, 240}));
  EXPECT_EQ(of({0, 255, 0}, detail::bt709), (std::array{173, 42, 26}));
}

}  // namespace
}  // namespace pom::io
