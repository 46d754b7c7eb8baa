#include "pom/ops/tile_memory.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace pom::ops {
namespace {

namespace fs = std::filesystem;

class TileMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "tile_memory";
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path file() const { return folder_ / "deep" / "tiles.txt"; }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file()).rdbuf();
    return all.str();
  }
  void write(const std::string& text) const {
    fs::create_directories(file().parent_path());
    std::ofstream(file()) << text;
  }
  fs::path folder_;
};

TEST_F(TileMemoryTest, WhatIsKeptIsFoundByTheNextProcess) {
  TileMemory(file()).keep("NVIDIA H200 gate bf16 1x2x3", 4);
  const TileMemory next(file());
  EXPECT_EQ(next.find("NVIDIA H200 gate bf16 1x2x3"), 4);
  EXPECT_EQ(next.find("NVIDIA H200 gate bf16 1x2x4"), std::nullopt);
}

TEST_F(TileMemoryTest, TwoProcessesLoseNothingOfEachOther) {
  TileMemory first(file()), second(file());
  first.keep("a", 1);
  second.keep("b", 2);
  first.keep("c", 3);
  EXPECT_EQ(text(), "1 a\n2 b\n3 c\n");
}

TEST_F(TileMemoryTest, LinesOfAnotherKindArePassedOver) {
  write("x y\n\n12\n7 good one\n-3 negative\n99999999999999 too large\n2 last without an end");
  const TileMemory memory(file());
  EXPECT_EQ(memory.find("good one"), 7);
  EXPECT_EQ(memory.find("last without an end"), 2);
  EXPECT_EQ(memory.find("negative"), std::nullopt);
  EXPECT_EQ(memory.find("too large"), std::nullopt);
}

TEST_F(TileMemoryTest, AFolderThatCannotBeWrittenToIsNoError) {
  std::ofstream(folder_) << "a file where the folder should be";
  TileMemory memory(file());
  memory.keep("a", 1);
  EXPECT_EQ(memory.find("a"), 1);
}

TEST_F(TileMemoryTest, WithoutAFileItRemembersUntilItGoes) {
  TileMemory memory({});
  memory.keep("a", 1);
  EXPECT_EQ(memory.find("a"), 1);
  EXPECT_EQ(TileMemory({}).find("a"), std::nullopt);
}

TEST_F(TileMemoryTest, TheEnvironmentSaysWhere) {
  setenv("POM_TILES", "/some/where.txt", 1);
  EXPECT_EQ(TileMemory::default_file(), "/some/where.txt");
  EXPECT_FALSE(TileMemory::switched_off());
  setenv("POM_TILES", "off", 1);
  EXPECT_TRUE(TileMemory::default_file().empty());
  EXPECT_TRUE(TileMemory::switched_off());
  unsetenv("POM_TILES");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(TileMemory::default_file(), "/cache/libpom/tiles.txt");
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace pom::ops
