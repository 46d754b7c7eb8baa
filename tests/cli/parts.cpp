// What a build that lacks a part says of itself.
#include "cli/parts.h"

#include <gtest/gtest.h>

namespace pom::cli {
namespace {

Build without_training(Found training, Found data) {
  Build build;
  build.training = training;
  build.data = data;
  return build;
}

TEST(Parts, AWholeBuildLacksNothing) {
  for (const Part& part : parts_of(Build{})) {
    EXPECT_EQ(part.found, Found::yes) << part.name;
    EXPECT_EQ(part.why, "") << part.name;
  }
  EXPECT_TRUE(absent_commands(Build{}).empty());
  for (const char* command : {"train", "bench", "dataset", "eval", "sample", "no-such-thing", ""})
    EXPECT_EQ(why_absent(command, Build{}), "") << command;
}

TEST(Parts, CommandsWithoutTheirLibrarySayWhatToInstall) {
  const Build build = without_training(Found::missing, Found::yes);
  EXPECT_EQ(absent_commands(build),
            (std::vector<std::string>{"train", "plan", "export", "bench", "experiment"}));
  for (const char* command : {"train", "plan", "export", "bench", "experiment"})
    EXPECT_EQ(why_absent(command, build),
              "this build has no training: toml++ was not found when it was built; install "
              "libtomlplusplus-dev and build again");
  EXPECT_EQ(why_absent("eval", build), "");
  EXPECT_EQ(why_absent("trai", build), "");
}

TEST(Parts, CommandsThatWereSwitchedOffNameTheOption) {
  const Build build = without_training(Found::off, Found::off);
  EXPECT_EQ(absent_commands(build), (std::vector<std::string>{"dataset", "encode", "eval", "train", "plan",
                                                              "export", "bench", "experiment"}));
  EXPECT_EQ(why_absent("dataset", build),
            "this build has no data sets: it was switched off (POM_TRAIN=OFF) when it was built");
  EXPECT_EQ(why_absent("train", build),
            "this build has no training: it was switched off (POM_TRAIN=OFF) when it was built");
}

TEST(Parts, EachPartSaysWhyItIsLeftOut) {
  const Build build{Found::missing, Found::missing, Found::yes, Found::yes,
                    Found::missing, Found::missing, true,       ""};
  const std::vector<Part> parts = parts_of(build);
  ASSERT_EQ(parts.size(), 6u);
  EXPECT_EQ(parts[0].why,
            "libpng or libjpeg was not found when it was built; install libpng-dev and libjpeg-dev and build "
            "again");
  EXPECT_EQ(parts[1].why,
            "FFmpeg's libraries were not found when it was built; install libavformat-dev, libavcodec-dev, "
            "libswscale-dev and libavutil-dev and build again");
  EXPECT_EQ(parts[4].why,
            "Boost's headers were not found when it was built; install libboost-dev and build again");
  EXPECT_EQ(parts[5].why, "nvcc was not found when it was built; install the CUDA toolkit and build again");
  EXPECT_EQ(absent_commands(build), std::vector<std::string>{"serve"});
  Build plain = build;
  plain.torch_has_cuda = false;
  EXPECT_EQ(parts_of(plain)[5].why,
            "this torch is a CPU build; for a GPU, install a torch with CUDA and build again");
}

}  // namespace
}  // namespace pom::cli
