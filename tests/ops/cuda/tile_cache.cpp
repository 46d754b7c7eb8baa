#include "pom/ops/cuda/tile_cache.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace pom::ops {
namespace {

namespace fs = std::filesystem;

class TileCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "tile_cache";
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

TEST_F(TileCacheTest, WhatIsKeptIsFoundByTheNextProcess) {
  TileCache(file()).keep("NVIDIA H200 gate bf16 1x2x3", 4);
  const TileCache next(file());
  EXPECT_EQ(next.find("NVIDIA H200 gate bf16 1x2x3"), 4);
  EXPECT_EQ(next.find("NVIDIA H200 gate bf16 1x2x4"), std::nullopt);
}

TEST_F(TileCacheTest, TwoProcessesLoseNothingOfEachOther) {
  TileCache first(file()), second(file());
  first.keep("a", 1);
  second.keep("b", 2);
  first.keep("c", 3);
  EXPECT_EQ(text(), "1 a\n2 b\n3 c\n");
}

TEST_F(TileCacheTest, LinesOfAnotherKindArePassedOver) {
  write("x y\n\n12\n7 good one\n-3 negative\n99999999999999 too large\n2 last without an end");
  const TileCache memory(file());
  EXPECT_EQ(memory.find("good one"), 7);
  EXPECT_EQ(memory.find("last without an end"), 2);
  EXPECT_EQ(memory.find("negative"), std::nullopt);
  EXPECT_EQ(memory.find("too large"), std::nullopt);
}

TEST_F(TileCacheTest, AFolderThatCannotBeWrittenToIsNoError) {
  std::ofstream(folder_) << "a file where the folder should be";
  TileCache memory(file());
  memory.keep("a", 1);
  EXPECT_EQ(memory.find("a"), 1);
}

TEST_F(TileCacheTest, WithoutAFileItRemembersUntilItGoes) {
  TileCache memory({});
  memory.keep("a", 1);
  EXPECT_EQ(memory.find("a"), 1);
  EXPECT_EQ(TileCache({}).find("a"), std::nullopt);
}

TEST_F(TileCacheTest, TheEnvironmentSaysWhere) {
  setenv("POM_TILES", "/some/where.txt", 1);
  EXPECT_EQ(TileCache::default_file(), "/some/where.txt");
  EXPECT_FALSE(TileCache::switched_off());
  setenv("POM_TILES", "off", 1);
  EXPECT_TRUE(TileCache::default_file().empty());
  EXPECT_TRUE(TileCache::switched_off());
  unsetenv("POM_TILES");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(TileCache::default_file(), "/cache/libpom/tiles.txt");
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace pom::ops
