#include "pom/train/run_folder.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

#include "pom/base/error.h"
#include "pom/train/checkpoint.h"
#include "pom/train/refusal.h"

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

// A file where a run would have written one.
void put(const fs::path& path, const std::string& text = "x") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string refusal_of(const fs::path& folder, bool resume) {
  try {
    check_run_folder(folder, resume);
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

TEST_F(RunFolderTest, ASecondHolderIsRefused) {
  const RunFolder run(folder_ / "run", false);
  put(folder_ / "run/checkpoints" / checkpoint_name(0));
  EXPECT_THROW(RunFolder(folder_ / "run", true), Error);
}

TEST_F(RunFolderTest, AStartThatFailedLeavesNoRun) {
  { const RunFolder run(folder_ / "run", false); }
  EXPECT_NO_THROW(RunFolder(folder_ / "run", false));
}

TEST_F(RunFolderTest, AFolderWithAnyTraceOfARunTakesNoOther) {
  const fs::path run = folder_ / "run";
  for (const char* trace :
       {"model/model.safetensors", "model/config.json", "log.jsonl", "log.txt", "run.json",
        "events.out.tfevents.1700000000.1", "checkpoints/step_00000000.safetensors"}) {
    fs::remove_all(run);
    put(run / trace);
    const std::string said = refusal_of(run, false);
    for (const std::string& part :
         {std::string(trace), run.string() + ": already holds a run", std::string("--resume"),
          std::string("-o DIR"), "--init-from " + (run / "model").string()})
      EXPECT_NE(said.find(part), std::string::npos) << said << "\nlacks " << part;
    EXPECT_THROW(RunFolder(run, false), Refusal);
    EXPECT_EQ(text(("run/" + std::string(trace)).c_str()), "x");
  }
  fs::remove_all(run);
  put(run / "notes.txt");
  EXPECT_EQ(refusal_of(run, false), "");
}

TEST_F(RunFolderTest, GoingOnNeedsACheckpoint) {
  const fs::path run = folder_ / "run";
  EXPECT_NE(refusal_of(run, true).find("which holds none; without --resume a new run starts there"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(run));
  put(run / "model/model.safetensors");
  EXPECT_NE(
      refusal_of(run, true).find("expected a checkpoint in " + (run / "checkpoints").string() + ", got none"),
      std::string::npos);
  put(run / "checkpoints" / checkpoint_name(20));
  EXPECT_EQ(refusal_of(run, true), "");
}

TEST_F(RunFolderTest, TheModelKnowsItsStepAndNeverGoesBack) {
  const fs::path path = folder_ / "run";
  {
    RunFolder run(path, false);
    EXPECT_EQ(run.model_step(), -1);
    run.note_model(0);
    run.note_model(40);
    EXPECT_THROW(run.note_model(20), Error);
  }
  put(path / "model/model.safetensors");
  put(path / "checkpoints" / checkpoint_name(20));
  EXPECT_EQ(RunFolder(path, true).model_step(), 40);
  fs::remove(path / "model/model.safetensors");
  EXPECT_EQ(RunFolder(path, true).model_step(), -1) << "there is none to keep";
}

TEST_F(RunFolderTest, AModelWithoutANoteIsAsFarAsItsRun) {
  const fs::path path = folder_ / "run";
  put(path / "model/model.safetensors");
  put(path / "checkpoints" / checkpoint_name(20));
  EXPECT_EQ(RunFolder(path, true).model_step(), 20);
  put(path / "log.jsonl", "{\"step\": 30, \"loss\": 1}\n{\"step\": 40, \"loss\": 1}\n");
  EXPECT_EQ(RunFolder(path, true).model_step(), 40);
}

TEST_F(RunFolderTest, TemporariesOfAKilledProcessGo) {
  { const RunFolder run(folder_ / "run", false); }
  for (const char* name : {"", "model/", "samples/", "checkpoints/"})
    put(folder_ / "run" / name / ".pom-tmp-0123456789abcdef", "half");
  put(folder_ / "run/model/mine.txt", "whole");
  const RunFolder run(folder_ / "run", false);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".pom-tmp-")) << entry.path();
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
