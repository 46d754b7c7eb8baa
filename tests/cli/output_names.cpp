#include "cli/output_names.h"

#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "cli/command.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

// An empty folder that the test works in, and leaves.
class OutputNames : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    folder_ = fs::temp_directory_path() / ("pom-names-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }
  static void touch(const fs::path& path) { std::ofstream(path) << "mine"; }
  static std::vector<std::string> names(const std::string& output) {
    const std::vector<NamedItem> pictures = {{"red fox", 7}, {"owl", 8}};
    std::vector<std::string> texts;
    for (const fs::path& path : item_names(output, "zoo", pictures, OutputKind::image))
      texts.push_back(path.string());
    return texts;
  }
  using Names = std::vector<std::string>;

 private:
  fs::path before_, folder_;
};

template <class Work>
std::string usage_error(Work&& work) {
  try {
    work();
  } catch (const UsageError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UsageError";
  return {};
}

TEST_F(OutputNames, PatternsCountFromZero) {
  EXPECT_EQ(names("a_%03d.png"), (Names{"a_000.png", "a_001.png"}));
  EXPECT_EQ(names("a%d.JPG"), (Names{"a0.JPG", "a1.JPG"}));
  EXPECT_EQ(names("%%_%d.jpeg"), (Names{"%_0.jpeg", "%_1.jpeg"}));
}

TEST_F(OutputNames, ClassAndSeedStandForThemselves) {
  EXPECT_EQ(names(""), (Names{"out/red-fox_7.png", "out/owl_8.png"}));
  EXPECT_EQ(names("{class}/{seed}.png"), (Names{"red-fox/7.png", "owl/8.png"}));
  EXPECT_EQ(names("{x}_{seed}.png"), (Names{"{x}_7.png", "{x}_8.png"}));
}

TEST_F(OutputNames, FoldersGetThePattern) {
  fs::create_directory("50%");
  EXPECT_EQ(names("new/"), (Names{"new/zoo_000.png", "new/zoo_001.png"}));
  EXPECT_EQ(names("50%"), (Names{"50%/zoo_000.png", "50%/zoo_001.png"}));
}

TEST_F(OutputNames, OneNameForManyIsRefused) {
  const std::string message = usage_error([] { names("dir/a.png"); });
  EXPECT_NE(message.find("dir/a_%03d.png"), std::string::npos) << message;
  EXPECT_NE(message.find("--grid"), std::string::npos) << message;
}

TEST_F(OutputNames, OddPatternsAreRefused) {
  for (const char* odd : {"a_%s.png", "a_%.png", "%", "a_%999999999999999999999d.png", "a.gif", "a", "a_%d"})
    EXPECT_NE(usage_error([&] { names(odd); }), "") << odd;
}

TEST_F(OutputNames, Sheets) {
  const NamedItem first = {"owl", 3};
  EXPECT_EQ(sheet_name("", "zoo", first, OutputKind::image), "out/zoo_sheet_3.png");
  EXPECT_EQ(sheet_name("s.png", "zoo", first, OutputKind::image), "s.png");
  EXPECT_EQ(sheet_name("dir/", "zoo", first, OutputKind::image), "dir/zoo_sheet_3.png");
  EXPECT_EQ(numbered("dir/s.png", 2), "dir/s_002.png");
  EXPECT_EQ(preview_name("dir/s.png", 12), "dir/s_preview_012.png");
}

TEST_F(OutputNames, NamesAreSafeInFiles) {
  EXPECT_EQ(file_safe("../../etc/passwd"), "-.-..-etc-passwd");
  EXPECT_EQ(file_safe("tench, Tinca tinca"), "tench-Tinca-tinca");
  EXPECT_EQ(file_safe("été"), "été");
  EXPECT_EQ(file_safe("///"), "picture");
  const std::string cut = file_safe(std::string(59, 'a') + "éé");  // never within a character
  EXPECT_EQ(cut, std::string(59, 'a'));
}

TEST_F(OutputNames, ExistingFilesAreKept) {
  touch("b.png");
  const std::vector<fs::path> files = {"a.png", "b.png"};
  EXPECT_NE(usage_error([&] { check_outputs(files, false); }).find("b.png already exists"),
            std::string::npos);
  check_outputs(files, true);
  EXPECT_EQ(std::distance(fs::directory_iterator("."), {}), 1) << "the check left something behind";
}

TEST_F(OutputNames, FoldersAreMadeLater) {
  check_outputs(std::vector<fs::path>{"new/deep/a.png"}, false);
  EXPECT_FALSE(fs::exists("new"));
}

TEST_F(OutputNames, FilesAreNoFolders) {
  touch("file");
  EXPECT_THROW(check_outputs(std::vector<fs::path>{"file/a.png"}, true), Error);
  fs::create_directory("a.png");
  EXPECT_THROW(check_outputs(std::vector<fs::path>{"a.png"}, true), Error);
}

TEST_F(OutputNames, PreviewsOfBeforeAreKept) {
  touch("a_preview_003.png");
  EXPECT_THROW(check_previews(std::vector<fs::path>{"a.png"}, false), UsageError);
  check_previews(std::vector<fs::path>{"a.png"}, true);
  check_previews(std::vector<fs::path>{"b.png"}, false);
}

}  // namespace
}  // namespace pom::cli
