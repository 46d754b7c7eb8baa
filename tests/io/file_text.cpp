// Tests of what files say of themselves: every kind gives back what it was given, whether whole or broken
// off, and files of strangers cost neither memory nor a crash. python/tests/test_clips.py has ffprobe's word.
#include "pom/io/file_text.h"

#include "tests/base/child.h"
#include "tests/io/picture_support.h"
#include <fstream>
#include <functional>

#include "pom/io/clip.h"
#include "pom/io/jpeg.h"
#include "pom/io/picture.h"
#include "pom/io/text_comment.h"

namespace pom::io {
namespace {

namespace fs = std::filesystem;
using Text = std::vector<TextEntry>;

const Text usual = {
    {"parameters", "a red star → left\nSteps: 20, Sampler: Heun"},
    {"pom", R"({"format":1,"request":{"prompt":"a \"red\" star → left","seed":7}})"},
};
// Lines that look like other entries, what works a terminal, and nothing at all.
const Text odd = {
    {"parameters", "\npom: {\"forged\":1}\n\n  x: y\r\n\t\x1b[31m\x01 100% = a:b\n"},
    {"pom sheet", "grün → 🌟"},
    {"empty", ""},
    {"pom", "{\"a\": \"\\n\"}"},
};

bool has_ffmpeg() {
  return !clip_libraries().empty();
}

// Every kind of clip that this build writes.
std::vector<std::string> clip_names() {
  std::vector<std::string> names = {"c.gif", "d.y4m", "frames"};
  if (has_ffmpeg()) names.insert(names.begin(), {"a.mp4", "b.webm"});
  return names;
}

std::string bytes_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class FileTextTest : public PictureTest {
 protected:
  // A clip of three frames.
  fs::path clip(const std::string& name, const Text& text, bool growing = false, int side = 32) const {
    const ClipOptions options = {.width = side, .height = side, .fps = 8, .growing = growing, .text = text};
    const auto writer = open_clip(folder / name, options);
    for (int i = 0; i < 3; ++i) writer->add(noisy_image(side, side, 3, 8));
    writer->finish();
    return folder / name;
  }
  fs::path picture(const std::string& name, const Text& text) const {
    write_picture(folder / name, noisy_image(16, 16, 3, 8), text);
    return folder / name;
  }
  fs::path put(const std::string& name, std::string_view bytes) const {
    put_bytes(folder / name, bytes);
    return folder / name;
  }
  // One of each kind, with the usual text.
  std::vector<fs::path> all_kinds() const {
    std::vector<fs::path> paths = {picture("e.png", usual), picture("f.jpg", usual)};
    for (const std::string& name : clip_names())
      if (name != "frames") paths.push_back(clip(name, usual));
    return paths;
  }
};

TEST_F(FileTextTest, EveryKindGivesBackWhatItWasGiven) {
  for (const Text& text : {usual, odd, Text{{"pom", "{}"}}, Text{}}) {
    for (const bool growing : {false, true})
      for (const std::string& name : clip_names())
        EXPECT_EQ(read_file_text(clip(name, text, growing)), text) << name << growing;
    for (const char* name : {"e.png", "f.jpg"}) EXPECT_EQ(read_file_text(picture(name, text)), text) << name;
  }
  // By what they hold, and not by their names.
  fs::copy_file(folder / "f.jpg", folder / "jpeg.png");
  fs::copy_file(clip("c.gif", usual), folder / "gif.mp4");
  EXPECT_EQ(read_file_text(folder / "gif.mp4"), usual);
  EXPECT_EQ(read_file_text(folder / "jpeg.png"), Text{});
}

TEST_F(FileTextTest, LongTextAndAllOfIt) {
  const Text longest = {{"parameters", std::string(70'000, 'x')},
                        {"pom", std::string(max_file_text - 70'000 - 13, '\n')}};
  for (const std::string& name : clip_names())
    EXPECT_EQ(read_file_text(clip(name, longest)), longest) << name;
  EXPECT_EQ(read_file_text(picture("e.png", longest)), longest);
  Text more = longest;
  more[0].text += "x";
  for (const std::string& name : clip_names())
    error_of([&] { clip("more-" + name, more); },
             {"clip write: ", "text: expected at most 1048576 bytes, got 1048577"});
  const Text segment = {{"pom", std::string(65533 - 5, 'x')}};
  EXPECT_EQ(read_file_text(picture("f.jpg", segment)), segment);
  error_of([&] { picture("f.jpg", {{"pom", std::string(65533 - 4, 'x')}}); }, {"comment", "65533"});
}

TEST_F(FileTextTest, TextThatAFileCannotGiveBackIsRefused) {
  const auto refused = [&](const TextEntry& entry, const std::string& reason) {
    for (const std::string& name : clip_names())
      error_of([&] { clip(name, {entry}); }, {"clip write: ", name, ": text", reason});
    error_of([&] { picture("f.jpg", {entry}); }, {"picture write: ", "f.jpg: text", reason});
  };
  for (const std::string& keyword :
       {std::string(), std::string("a: b"), std::string("a\nb"), std::string(" a"), std::string(80, 'k'),
        std::string("\xff"), std::string("a\0b", 3)})
    refused({keyword, ""}, "keyword: expected 1 to 79 bytes");
  refused({"pom", "a\xff"}, "expected UTF-8, got something else at byte 1");
  refused({"pom", std::string("a\0b", 3)}, "expected no zero byte");
  EXPECT_EQ(files(), 0u);
}

TEST_F(FileTextTest, FilesThatGrowHaveItFromTheBeginning) {
  for (const std::string& name : clip_names()) {
    const auto writer =
        open_clip(folder / name, {.width = 32, .height = 32, .fps = 8, .growing = true, .text = usual});
    for (int i = 0; i < 2; ++i) writer->add(noisy_image(32, 32, 3, 8));
    writer->flush();
    EXPECT_EQ(read_file_text(folder / name), name == "d.y4m" ? Text{} : usual) << name;
  }
}

// ---- frames

TEST_F(FileTextTest, NoPixelChanges) {
  for (const std::string& name : clip_names()) {
    if (!has_ffmpeg() && name != "frames") continue;
    for (const int side : {32, 1}) {  // of one pixel, the text is longer than a frame
      const auto frames = [&](const Text& text) {
        ClipReader reader(clip(name, text, false, side));
        std::vector<Image> read;
        for (Image frame; reader.next(frame);) read.push_back(frame);
        return read;
      };
      const std::vector<Image> without = frames({});
      EXPECT_EQ(without.size(), 3u) << name << side;
      EXPECT_EQ(frames(usual), without) << name << side;
      EXPECT_EQ(read_file_text(folder / name), usual) << name << side;
    }
  }
}

TEST_F(FileTextTest, TextOfAnY4mFollowsItsFrames) {
  const std::string without = bytes_in(clip("d.y4m", {})), with = bytes_in(clip("d.y4m", usual));
  EXPECT_EQ(with.substr(0, without.size()), without);
  const std::string end = with.substr(without.size());
  EXPECT_TRUE(
      end.starts_with("FRAME XPOM-TEXT\nparameters: a red star → left\n Steps: 20, Sampler: Heun\npom: {"))
      << end;
  EXPECT_LT(end.size(), 3u * 32 * 32);
  char last[32];
  std::snprintf(last, sizeof last, "}\nXPOM-TEXT=%08zu\n", end.size());
  EXPECT_TRUE(end.ends_with(last)) << end;
}

TEST_F(FileTextTest, AFolderIsReadFrameByFrame) {
  const auto writer = open_clip(folder / "frames", {.width = 9, .height = 5, .fps = 8, .text = usual});
  std::vector<Image> frames;
  for (int i = 0; i < 3; ++i) {
    frames.push_back(noisy_image(9, 5, 3, 8));
    frames.back().data[0] = static_cast<std::uint8_t>(i);
    writer->add(frames.back());
  }
  writer->finish();
  ClipReader reader(folder / "frames");
  EXPECT_EQ(reader.info().width, 9);
  EXPECT_EQ(reader.info().height, 5);
  EXPECT_EQ(reader.info().fps, 0);
  EXPECT_EQ(reader.info().codec, "png");
  Image frame;
  for (const Image& expected : frames) {
    ASSERT_TRUE(reader.next(frame));
    EXPECT_EQ(frame, expected);
  }
  EXPECT_FALSE(reader.next(frame));
  EXPECT_FALSE(reader.next(frame));
  const auto read_all = [&] {
    ClipReader again(folder / "frames");
    while (again.next(frame)) continue;
  };
  error_of([&] { ClipReader(folder / "frames", {.fps = 8}); },
           {"frames", "expected 0 for size, fps and start"});
  write_png(folder / "frames" / "000001.png", flat_image(8, 5, {1, 2, 3}));
  error_of(read_all, {"000001.png", "expected 9x5", "got 8x5"});
  fs::remove(folder / "frames" / "000000.png");
  error_of(read_all, {"clip read: ", "000000.png", "No such file"});
  error_of([&] { ClipReader reader(folder); }, {"clip read: ", "clip.json counts"});
  error_of([&] { read_file_text(folder / "frames"); }, {"file text: ", "000000.png", "No such file"});
}

// ---- files of others

TEST_F(FileTextTest, CommentsOfOlderFilesAndOtherPrograms) {
  const auto of = [&](std::string_view comment) {
    const std::vector<std::byte> bytes = encode_jpeg(flat_image(8, 8, {1, 2, 3}), 90, comment);
    return read_file_text(put("a.jpg", {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  };
  // As they were written before lines were folded: the settings are found.
  EXPECT_EQ(of("parameters: star\nSteps: 20, Seed: 7\npom: {\"format\":1}"),
            (Text{{"parameters", "star"}, {"Steps", "20, Seed: 7"}, {"pom", "{\"format\":1}"}}));
  EXPECT_EQ(of("Created with GIMP"), (Text{{"comment", "Created with GIMP"}}));
  EXPECT_EQ(of("two\nlines"), (Text{{"comment", "two\nlines"}}));
  EXPECT_EQ(of(": no keyword"), (Text{{"comment", ": no keyword"}}));
  EXPECT_EQ(of("gr\xfcn"), Text{});  // Latin-1
  EXPECT_EQ(of(""), Text{});
}

TEST_F(FileTextTest, WhatIsNoneOfTheseIsNamed) {
  error_of([&] { read_file_text(put("a.mp4", "")); }, {"file text: ", "a.mp4", "an empty file"});
  error_of([&] { read_file_text(put("a.png", "no picture\n")); },
           {"a.png", "expected PNG, JPEG", "something else"});
  error_of([&] { read_file_text(folder / "none.gif"); }, {"file text: ", "none.gif", "No such file"});
  error_of([&] { read_file_text("/dev/null"); }, {"expected a regular file"});
}

TEST_F(FileTextTest, WithoutFfmpegItIsSaid) {
  const std::string mp4(
      "\0\0\0\x14"
      "ftypisom\0\0\2\0isom",
      20);
  const std::string message = error_of([&] { read_file_text(put("a.mp4", mp4)); }, {"file text: ", "a.mp4"});
  EXPECT_EQ(message.find("without FFmpeg") != message.npos, !has_ffmpeg()) << message;
}

// Any of them may be refused; what is given is UTF-8 and has an end.
void expect_harmless(const fs::path& path) {
  try {
    std::size_t bytes = 0;
    for (const TextEntry& entry : read_file_text(path)) bytes += entry.keyword.size() + entry.text.size();
    EXPECT_LE(bytes, max_file_text) << path;
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("file text: " + path.string()), 0u) << error.what();
  }
}

TEST_F(FileTextTest, FilesThatBreakOff) {
  for (const fs::path& path : all_kinds()) {
    const std::string bytes = bytes_in(path);
    const std::string ending = path.extension().string();
    for (std::size_t size = 0; size < bytes.size(); size += size < 400 ? 1 : 41)
      expect_harmless(put("cut" + ending, std::string_view(bytes).substr(0, size)));
  }
  const std::string y4m = bytes_in(folder / "d.y4m");
  EXPECT_EQ(read_file_text(put("cut.y4m", y4m.substr(0, y4m.size() - 1))), Text{});
  error_of([&] { read_file_text(put("cut.gif", bytes_in(clip("c.gif", usual)).substr(0, 100))); },
           {"cut.gif: truncated: expected"});
  error_of([&] { read_file_text(put("cut.jpg", bytes_in(picture("f.jpg", usual)).substr(0, 100))); },
           {"cut.jpg: truncated: expected"});
  error_of([&] { read_file_text(put("cut.png", bytes_in(picture("e.png", usual)).substr(0, 100))); },
           {"cut.png: truncated: a chunk at byte"});
}

TEST_F(FileTextTest, FilesWithWrongBytes) {
  for (const fs::path& path : all_kinds()) {
    std::string bytes = bytes_in(path);
    const bool at_end = path.extension() == ".y4m";
    const std::size_t count = std::min<std::size_t>(bytes.size(), 700);
    const std::size_t first = at_end ? bytes.size() - count : 0;
    for (std::size_t i = first; i < first + count; i += 3)
      for (const char wrong : {'\0', '\xff'}) {
        const char right = std::exchange(bytes[i], wrong);
        expect_harmless(put("wrong" + path.extension().string(), bytes));
        bytes[i] = right;
      }
  }
}

std::string big_endian(std::size_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string box(const std::string& name, const std::string& content, std::size_t more = 0) {
  return big_endian(8 + content.size() + more, 4) + name + content;
}

// An .mp4 of a tag alone, which says that it has `more` bytes beyond its text.
std::string tagged_mp4(const std::string& text, std::size_t more) {
  const std::string data = box("data", std::string("\0\0\0\1\0\0\0\0", 8) + text, more);
  const std::string list = box("ilst", box("ldes", data, more), more);
  const std::string handler = box("hdlr", std::string(8, '\0') + "mdirappl" + std::string(9, '\0'));
  return box("ftyp", std::string("isom\0\0\2\0isom", 12)) +
         box("moov", box("udta", box("meta", std::string(4, '\0') + handler + list, more), more), more);
}

std::string gif_comment(std::size_t bytes) {
  std::string text = "\x21\xfe";
  for (std::size_t i = 0; i < bytes / 255; ++i) text += '\xff' + std::string(255, 'x');
  return text + '\0';
}

// A file of which the text is real, but too long: it is refused, and no more memory is taken than the limits
// say.
TEST_F(FileTextTest, TooMuchTextIsRefused) {
  constexpr std::size_t much = 8 * max_file_text;
  const auto refused = [&](const fs::path& path, long mib = 16) {
    const long before = testing::in_child("", [] {}).peak_mib;
    const testing::Ending ending = testing::in_child("", [&] { read_file_text(path); });
    EXPECT_EQ(ending.code, 1) << path << ending.error;
    EXPECT_NE(ending.error.find(path.string() + ": expected at most 1048576 bytes of text"),
              std::string::npos)
        << ending.error;
    EXPECT_LT(ending.peak_mib, before + mib) << path;
  };
  const Text long_text = {{"pom", std::string(much, 'x')}};
  write_png(folder / "a.png", flat_image(8, 8, {1, 2, 3}), long_text);
  refused(folder / "a.png");
  const std::string gif = bytes_in(clip("c.gif", {}));
  refused(put("a.gif", gif.substr(0, 13) + gif_comment(much) + gif.substr(13)));
  std::string segments = "\xff\xd8";
  for (std::size_t i = 0; i < much / 65535; ++i) segments += "\xff\xfe\xff\xff" + std::string(65533, 'x');
  refused(put("a.jpg", segments));
  refused(put("a.y4m", "YUV4MPEG2 W1 H1 F8:1\n\nXPOM-TEXT=99999999\n"));
  if (has_ffmpeg()) refused(put("a.mp4", tagged_mp4(std::string(much, 'x'), 0)), 4 * 8 + 32);
}

TEST_F(FileTextTest, LengthsThatAreNotSoTakeNoMemory) {
  const auto harmless = [&](const fs::path& path, long mib) {
    const long before = testing::in_child("", [] {}).peak_mib;
    const testing::Ending ending = testing::in_child("", [&] { read_file_text(path); });
    EXPECT_LE(ending.code, 1) << path << ending.error;
    EXPECT_LT(ending.peak_mib, before + mib) << path;
  };
  harmless(put("a.png", bytes_in(picture("e.png", {})).substr(0, 33) + "\x7f\xff\xff\xfftEXtpom"), 16);
  harmless(put("b.y4m", "YUV4MPEG2 W1 H1 F8:1\n\nXPOM-TEXT=01000000\n"), 16);
  if (!has_ffmpeg()) return;
  harmless(put("a.mp4", tagged_mp4("pom: {}", 0x3000'0000)), 32);
  fs::resize_file(put("b.mp4", tagged_mp4("pom: {}", 0x3000'0000)), 0x3000'0000);  // zeros that are there
  harmless(folder / "b.mp4", 160);
}

TEST_F(FileTextTest, PartsWithoutEnd) {
  const std::string gif = bytes_in(clip("c.gif", {})).substr(0, 13);
  std::string extensions = gif + "\x21\x01";
  for (int i = 0; i < 70'000; ++i) extensions += "\1x";
  error_of([&] { read_file_text(put("a.gif", extensions)); },
           {"a.gif: expected pixels after at most 65536 parts"});
  error_of([&] { read_file_text(put("a.jpg", "\xff\xd8" + std::string(70'000, '\xff'))); },
           {"a.jpg: expected pixels after at most 65536 parts"});
  std::string chunks = bytes_in(picture("e.png", {})).substr(0, 33);
  for (int i = 0; i < (1 << 20); ++i) chunks += std::string("\0\0\0\0aaAa\0\0\0\0", 12);
  error_of([&] { read_file_text(put("a.png", chunks)); }, {"a.png: expected at most 1048576 chunks"});
}

TEST_F(FileTextTest, HostileClipsAreRefusedOrSayNothing) {
  int seen = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(tests_folder / "hostile" / "clips"))
    if (has_ffmpeg() || entry.path().extension() == ".gif") expect_harmless(entry.path()), ++seen;
  EXPECT_GT(seen, 4);
}

}  // namespace
}  // namespace pom::io
