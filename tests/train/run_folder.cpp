#include "pom/train/run_folder.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "pom/base/error.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-run-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string text(const char* name) const {
    std::ifstream file(folder_ / name);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }

  fs::path folder_;
};

TEST_F(RunFolderTest, ASecondHolderIsRefused) {
  const RunFolder run(folder_ / "run", false);
  EXPECT_THROW(RunFolder(folder_ / "run", true), Error);
}

TEST_F(RunFolderTest, AUsedFolderNeedsResume) {
  { const RunFolder run(folder_ / "run", false); }
  EXPECT_NO_THROW(RunFolder(folder_ / "run", false)) << "a start that failed leaves no run";
  std::ofstream(folder_ / "run/checkpoints/step_00000000.safetensors") << "a checkpoint";
  EXPECT_THROW(RunFolder(folder_ / "run", false), Error);
  EXPECT_NO_THROW(RunFolder(folder_ / "run", true));
}

TEST_F(RunFolderTest, TemporariesOfAKilledProcessGo) {
  { const RunFolder run(folder_ / "run", false); }
  std::ofstream(folder_ / "run/model/.pom-tmp-0123456789abcdef") << "half";
  std::ofstream(folder_ / "run/model/mine.txt") << "whole";
  const RunFolder run(folder_ / "run", true);
  EXPECT_FALSE(fs::exists(folder_ / "run/model/.pom-tmp-0123456789abcdef"));
  EXPECT_TRUE(fs::exists(folder_ / "run/model/mine.txt"));
}

TEST_F(RunFolderTest, LinesAfterTheCheckpointAreCut) {
  for (const std::int64_t step : {10, 20, 30})
    RunLog(folder_, 1000).figures({.step = step, .loss_by_time = {}});
  std::ofstream(folder_ / "log.jsonl", std::ios::app) << "{\"step\": 40, \"lo";  // as a crash leaves it
  RunLog log(folder_, 20);
  std::istringstream lines(text("log.jsonl"));
  std::vector<std::string> starts;
  for (std::string line; std::getline(lines, line);) starts.push_back(line.substr(0, 11));
  EXPECT_EQ(starts, (std::vector<std::string>{"{\"step\": 10", "{\"step\": 20"}));
}

TEST_F(RunFolderTest, StartsAreAList) {
  note_start(folder_, "{\"step\": 0}");
  note_start(folder_, "{\"step\": 7}");
  EXPECT_EQ(text("run.json"), "[\n{\"step\": 0},\n{\"step\": 7}\n]\n");
}

TEST_F(RunFolderTest, NumbersThatAreNoneBecomeNull) {
  RunLog(folder_, 0).figures({.step = 1, .loss = std::nan(""), .loss_by_time = {1.5, std::nan("")}});
  EXPECT_NE(text("log.jsonl").find("\"loss\": null"), std::string::npos);
  EXPECT_NE(text("log.jsonl").find("[1.5, null]"), std::string::npos);
}

}  // namespace
}  // namespace pom::train
