// Tests of folders of clips: which files belong to them, what is said of them, and what becomes of those that
// cannot be used.
#include "pom/data/clips.h"

#include "tests/data/support.h"
#include <algorithm>
#include <set>

#include "pom/data/loader.h"
#include "pom/io/clip.h"

namespace pom::data {
namespace {

class ClipsTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    if (io::clip_libraries().empty()) GTEST_SKIP() << "this build has no FFmpeg";
  }

  // Frame f of grey 10·f + first, exactly.
  void put_clip(const std::string& name, int frames, int first = 20, double fps = 8) {
    const fs::path path = folder / name;
    fs::create_directories(path.parent_path());
    const auto writer = io::open_clip(path, {.width = 32, .height = 24, .fps = fps});
    for (int f = 0; f < frames; ++f) {
      io::Image image = io::make_image("test", 32, 24, 3);
      std::fill(image.data.begin(), image.data.end(), static_cast<std::uint8_t>((first + 10 * f) % 250));
      writer->add(image);
    }
    writer->finish();
  }

  DataConfig config(std::int64_t frames = 4) const {
    return {.kind = "clips", .path = folder.string(), .size = {16, 16}, .frames = frames, .fps = 8};
  }
};

int grey(const Example& example, std::int64_t frame) {
  return example.picture[1][frame][8][8].item<std::uint8_t>();
}

TEST(Csv, QuotesCommasAndEndsOfLines) {
  using Rows = std::vector<std::vector<std::string>>;
  EXPECT_EQ(parse_csv("a,b\r\n1,\"x, y\"\n\n2,\"he said \"\"no\"\"\"\n", "t"),
            (Rows{{"a", "b"}, {"1", "x, y"}, {"2", "he said \"no\""}}));
  EXPECT_EQ(parse_csv("a,\"two\nlines\"", "t"), (Rows{{"a", "two\nlines"}}));
  EXPECT_EQ(parse_csv("a,,\n", "t"), (Rows{{"a", "", ""}}));
  EXPECT_EQ(parse_csv("", "t"), Rows{});
  EXPECT_NE(error_of([] { parse_csv("a\n\"b", "t.csv"); }).find("t.csv: a field of row 2"),
            std::string::npos);
}

TEST_F(FolderTest, CaptionsLieBesideTheirClips) {
  put("b.mp4", "");
  put("b.txt", "  a red star\n");
  put("a/deep/c.WEBM", "");
  put("a/deep/c.WEBM.txt",
      "\xef\xbb\xbf"
      "two words");
  put("d.gif", "");
  put(".hidden.mp4", "");
  put(".thumbs/e.mp4", "");
  put("notes.txt", "");
  put("f.png", "");
  const auto clips = find_clips(folder.string());
  ASSERT_EQ(clips.size(), 3u);
  EXPECT_EQ(clips[0].path, folder / "a/deep/c.WEBM");
  EXPECT_EQ(clips[0].caption, "two words");
  EXPECT_EQ(clips[1].caption, "a red star");
  EXPECT_EQ(clips[2].caption, "");
}

TEST_F(FolderTest, OrInATable) {
  put("z.mp4", "");
  put("metadata.csv", "file_name,score,Text\nsub/one.mp4,3,\"red, and moving\"\nmissing.webm,4,blue\n");
  const auto clips = find_clips(folder.string());
  ASSERT_EQ(clips.size(), 2u);
  EXPECT_EQ(clips[0].path, folder / "sub/one.mp4");
  EXPECT_EQ(clips[0].caption, "red, and moving");
  EXPECT_EQ(clips[1].caption, "blue");
}

TEST_F(FolderTest, MistakesOfFoldersAreNamed) {
  const auto mentions = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  mentions(error_of([&] { find_clips(""); }), "expected a folder of clips");
  mentions(error_of([&] { find_clips((folder / "no").string()); }), "no such folder");
  mentions(error_of([&] { find_clips(put("x.png", "").string()); }), "got a file");
  mentions(error_of([&] { find_clips(folder.string()); }), "expected clips (.mp4");
  put("captions.csv", "name,caption\na.mp4,b\n");
  mentions(error_of([&] { find_clips(folder.string()); }), "file, file_name, filename, path, video");
  put("captions.csv", "file,caption\na.mp4\n");
  mentions(error_of([&] { find_clips(folder.string()); }), "row 2: expected 2 fields, got 1");
  put("captions.csv", "file,caption\n");
  mentions(error_of([&] { find_clips(folder.string()); }), "expected clips, got none");
}

// Tables come from strangers, with the folder or in place of it.
TEST_F(FolderTest, NoRowLeadsOutOfTheFolder) {
  put("secret.mp4", "");
  put("clips/sub/one.mp4", "");
  const fs::path root = folder / "clips";
  fs::create_symlink(folder, root / "out");
  fs::create_symlink("../secret.mp4", root / "out.mp4");
  fs::create_symlink("sub/one.mp4", root / "in.mp4");
  fs::create_directory_symlink(root, folder / "linked");
  const auto row = [&](const std::string& file) {
    put("clips/captions.csv", "file,caption\nsub/one.mp4,first\n" + file + ",second\n");
  };
  for (const std::string& bad :
       {(folder / "secret.mp4").string(), (root / "in.mp4").string(), std::string("../secret.mp4"),
        std::string("sub/../../secret.mp4"), std::string("../clips/in.mp4"), std::string("out.mp4"),
        std::string("out/secret.mp4"), std::string("out/none.mp4")}) {
    row(bad);
    const std::string error = error_of([&] { find_clips(root.string()); });
    EXPECT_NE(error.find("captions.csv: row 3: expected a file within the folder"), std::string::npos)
        << bad << ": " << error;
  }
  for (const std::string good : {"in.mp4", "sub/../in.mp4", "./missing.mp4", "sub/..two.mp4"}) {
    row(good);
    EXPECT_EQ(find_clips(root.string())[1].path, root / good);
    EXPECT_EQ(find_clips((folder / "linked").string())[1].path, folder / "linked" / good);
  }
}

TEST_F(FolderTest, CaptionsAreUtf8) {
  put("a.mp4", "");
  put("a.txt", "caf\xe9");
  const std::string beside = error_of([&] { find_clips(folder.string()); });
  EXPECT_NE(beside.find("a.txt: expected a caption in UTF-8"), std::string::npos) << beside;
  put("captions.csv", "file,caption\na.mp4,caf\xc3\xa9\nb.mp4,caf\xe9\n");
  const std::string table = error_of([&] { find_clips(folder.string()); });
  EXPECT_NE(table.find("captions.csv: row 3: expected a caption in UTF-8"), std::string::npos) << table;
}

TEST_F(ClipsTest, AreReadAsTheyAre) {
  put_clip("a.gif", 4);
  put("a.txt", "getting lighter");
  const FileSets sets = open_clip_folder(config(), 1);
  EXPECT_EQ(sets.training->shape(), (std::vector<std::int64_t>{3, 4, 16, 16}));
  for (const auto& set : {sets.training, sets.validation}) {
    const Example example = set->get(0, 0);
    EXPECT_EQ(example.caption, "getting lighter");
    for (int f = 0; f < 4; ++f) EXPECT_NEAR(grey(example, f), 20 + 10 * f, 1);
  }
}

TEST_F(ClipsTest, RatesAreTheConfigs) {
  put_clip("a.gif", 16, 20, 16);
  put("a.txt", "x");
  const Example example = open_clip_folder(config(8), 1).validation->get(0, 0);
  for (int f = 0; f < 8; ++f) EXPECT_NEAR(grey(example, f), 20 + 20 * f, 1) << f;
}

TEST_F(ClipsTest, LongOnesAreSeenFromDifferentPlaces) {
  put_clip("a.gif", 20, 0);
  put("a.txt", "x");
  const FileSets sets = open_clip_folder(config(), 1);
  std::set<int> starts;
  for (std::int64_t visit = 0; visit < 200; ++visit) {
    const Example example = sets.training->get(0, visit);
    const int first = grey(example, 0);
    for (int f = 1; f < 4; ++f) EXPECT_NEAR(grey(example, f), first + 10 * f, 1);
    starts.insert(first / 10);
    EXPECT_EQ(bytes_of(sets.training->get(0, visit).picture), bytes_of(example.picture));
  }
  EXPECT_EQ(starts.size(), 17u);
  EXPECT_EQ(grey(sets.validation->get(0, 5), 0), 0);
}

TEST_F(ClipsTest, WhatCannotBeUsedIsSkippedCountedAndNamed) {
  put_clip("good1.gif", 6, 10);
  put_clip("good2.mp4", 6, 90);
  put_clip("short.gif", 2);
  put_clip("silent.gif", 6);
  put("broken.mp4", "no clip");
  put("empty.webm", "");
  for (const char* name : {"good1", "good2", "short", "broken", "empty"})
    put(std::string(name) + ".txt", name);
  const FileSets sets = open_clip_folder(config(), 1);
  EXPECT_EQ(sets.training->size(), 6);
  std::vector<std::string> told;
  Loader loader(
      sets.training,
      {.batch = 12, .workers = 2, .on_broken = [&](const std::string& name, const std::string& why) {
         told.push_back(name + " " + why);
       }});
  const Batch batch = loader.next();
  for (const std::string& caption : batch.captions)
    EXPECT_TRUE(caption == "good1" || caption == "good2") << caption;
  EXPECT_EQ(loader.broken(), 4);
  std::ranges::sort(told);
  ASSERT_EQ(told.size(), 4u);
  const auto mentions = [&](std::size_t i, const std::string& name, const std::string& why) {
    EXPECT_NE(told[i].find(name), std::string::npos) << told[i];
    EXPECT_NE(told[i].find(why), std::string::npos) << told[i];
  };
  mentions(0, "broken.mp4", "cannot open");
  mentions(1, "empty.webm", "cannot open");
  mentions(2, "short.gif", "expected 4 frames at 8 a second, got 2");
  mentions(3, "silent.gif", "expected a caption, got none");
}

TEST_F(ClipsTest, OpenedAsADataSet) {
  for (int i = 0; i < 20; ++i) {
    put_clip(std::to_string(i) + ".gif", 4, 5 * i);
    put(std::to_string(i) + ".txt", "clip " + std::to_string(i));
  }
  DataConfig wanted = config();
  wanted.validation = 512;
  const Split split = open_dataset(wanted, 3);
  EXPECT_EQ(split.training->size(), 18);
  EXPECT_EQ(split.validation->size(), 2);
  std::set<std::string> all;
  for (const auto& set : {split.training, split.validation})
    for (std::int64_t i = 0; i < set->size(); ++i) all.insert(set->get(i, 0).caption);
  EXPECT_EQ(all.size(), 20u);
}

}  // namespace
}  // namespace pom::data
