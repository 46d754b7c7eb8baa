// Tests of config.json: written and read, defaults of variants, and every mistake with its place.
#include "pom/generate/folder.h"

#include <fstream>
#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "pom-folder-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  ModelConfig read(const std::string& text) {
    std::ofstream(folder / config_file) << text;
    return read_config(folder);
  }
  // What follows the file's name in the error.
  std::string error_of(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      const std::string message = error.what(), begin = (folder / config_file).string() + ": ";
      EXPECT_EQ(message.find(begin), 0u) << message;
      return message.substr(begin.size());
    }
    return "no error";
  }

  fs::path folder;
};

TEST_F(FolderTest, WritesWhatItReads) {
  ModelConfig config;
  config.name = "shapes";
  config.network.dim = 64;
  config.network.classes = 2;
  config.diffusion.path = "epsilon";
  config.diffusion.variance = "cosine";
  config.sample.size = {32, 48};
  config.sample.cfg_scale = 2.5;
  config.classes = {"circle", "star"};
  write_config(folder, config);
  ModelConfig again = read_config(folder);
  EXPECT_EQ(io::write_json(again), io::write_json(config));
  EXPECT_EQ(again.sample.size, config.sample.size);
  EXPECT_EQ(again.classes, config.classes);
}

TEST_F(FolderTest, VariantGivesDefaultsAndNamesTheirNumber) {
  const ModelConfig config = read(
      R"({"format": 1, "network": {"variant": "DiPoM-XL/4", "channels": 3}, "classes": ["a", "b", "c"]})");
  EXPECT_EQ(config.network.dim, 1152);
  EXPECT_EQ(config.network.depth, 28);
  EXPECT_EQ(config.network.patch, 4);
  EXPECT_EQ(config.network.channels, 3);
  EXPECT_EQ(config.network.classes, 3);
  EXPECT_EQ(read(R"({"format": 1, "network": {}})").network.classes, 1000);
}

TEST_F(FolderTest, Mistakes) {
  const auto with = [](const std::string& rest) { return R"({"format": 1, "network": {}, )" + rest + "}"; };
  EXPECT_EQ(error_of("{}"), "missing field format");
  EXPECT_EQ(error_of(R"({"format": 1})"), "missing field network");
  EXPECT_EQ(error_of(R"({"format": 2, "network": {}})"), "format: expected 1 to 1, got 2");
  EXPECT_EQ(error_of(R"({"format": 1, "network": {"dim": "big"}})"),
            "network.dim: expected an integer, got \"big\"");
  EXPECT_EQ(error_of(R"({"format": 1, "network": {"dims": 8}})"),
            "network.dims: unknown field; did you mean \"dim\"?");
  EXPECT_NE(error_of(R"({"format": 1, "network": {"dim": 6}})").find("network.dim: expected a multiple of 4"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"format": 1, "network": {"variant": "DiPoM-M/2"}})").find("DiPoM-M/2"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"format": 1, "network": {"variant": "DiPoM-S/2", "dim": 8}})").find("384"),
            std::string::npos);
  EXPECT_EQ(error_of(with(R"("diffusion": {"path": "flaw"})")),
            "diffusion.path: unknown value \"flaw\"; did you mean \"flow\"?");
  EXPECT_NE(error_of(with(R"("sample": {"sampler": "eulre"})")).find("\"euler\""), std::string::npos);
  EXPECT_EQ(error_of(with(R"("sample": {"size": [64]})")),
            "sample.size: expected [width, height], got 1 numbers");
  EXPECT_EQ(error_of(with(R"("sample": {"steps": 0})")), "sample.steps: expected 1 to 10000, got 0");
  EXPECT_EQ(error_of(with(R"("sample": {"eta": 1})")).find("sample: "), 0u);
  EXPECT_NE(
      error_of(R"({"format": 1, "network": {"classes": 3}, "classes": ["a"]})").find("expected 3 names"),
      std::string::npos);
  EXPECT_NE(error_of(with(R"("classes": ["a", "0"])")).find("classes[1]"), std::string::npos);
  EXPECT_NE(error_of(with(R"("classes": ["a", ""])")).find("classes[1]"), std::string::npos);
  EXPECT_EQ(error_of("{\n\"format\": 1,\n").find("line "), 0u);
}

TEST_F(FolderTest, MissingFiles) {
  EXPECT_THROW(read_config(folder / "none"), Error);
  EXPECT_THROW(read_config(folder), Error);
  fs::create_directory(folder / config_file);
  EXPECT_THROW(read_config(folder), Error);
}

}  // namespace
}  // namespace pom::generate
