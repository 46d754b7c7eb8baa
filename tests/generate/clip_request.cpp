// Tests of what a request for a clip stands for: whole blocks, prompts by block, and what is refused.
#include "pom/generate/clip_request.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::generate {
namespace {

ModelConfig clip_model() {
  ModelConfig config;
  config.network.kind = "vdipom";
  config.network.patch = 4;
  config.network.patch_time = 2;
  config.sample.size = {32, 16};
  config.sample.frames = 12;
  config.sample.fps = 10;
  return config;
}

ClipJob resolved(const ClipRequest& clip, const ModelConfig& config = clip_model()) {
  return resolve_clip(clip, {}, config, /*factor=*/1, /*block_frames=*/2);
}

TEST(ClipRequest, OpenFieldsAreTheModels) {
  const ClipJob job = resolved({.prompt = "a star"});
  EXPECT_EQ(job.frames, 12);
  EXPECT_EQ(job.blocks, 6);
  EXPECT_EQ(job.fps, 10);
  EXPECT_FALSE(job.stream);
  EXPECT_EQ(job.request.width, 32);
  EXPECT_TRUE(job.remarks.empty());
}

TEST(ClipRequest, FramesFillBlocks) {
  const ClipJob job = resolved({.prompt = "a star", .frames = "5"});
  EXPECT_EQ(job.frames, 5);
  EXPECT_EQ(job.blocks, 3);
  ASSERT_EQ(job.remarks.size(), 1u);
  EXPECT_NE(job.remarks[0].find("6 are made"), std::string::npos);
  const ClipJob endless = resolved({.prompt = "a star", .frames = "inf"});
  EXPECT_EQ(endless.frames, 0);
  EXPECT_EQ(endless.blocks, 0);
  EXPECT_TRUE(endless.stream) << "what has no end can only be streamed";
  for (const char* text : {"", "0", "-2", "2.5", "4 ", "infinite", "99999999999999999999"})
    EXPECT_THROW(resolved({.prompt = "a star", .frames = text}), Error) << text;
}

TEST(ClipRequest, PromptsBelongToBlocks) {
  const ClipJob job = resolved({.prompt = "a", .prompt_at = {"9:c: d", "4:b"}});
  ASSERT_EQ(job.prompts.size(), 3u);
  EXPECT_EQ(job.prompts[1].block, 2);
  EXPECT_EQ(job.prompts[1].text, "b");
  EXPECT_EQ(job.prompts[2].block, 4);
  EXPECT_EQ(job.prompts[2].text, "c: d");
  EXPECT_EQ(job.remarks.size(), 1u) << "frame 9 is within a block";
  EXPECT_EQ(resolved({.prompt_at = {"0:a"}}).prompts.size(), 1u);
  EXPECT_EQ(resolved({.prompt = ""}).prompts.at(0).text, "");
  for (const char* text : {"", "a", ":a", "x:a", "-1:a", "12:a", "1:a"})
    EXPECT_THROW(resolved({.prompt = "a", .prompt_at = {text}}), Error) << text;
  EXPECT_THROW(resolved({}), Error);
  EXPECT_THROW(resolved({.prompt_at = {"4:b"}}), Error) << "nothing for the first block";
}

TEST(ClipRequest, StreamsNeedAMaskThatLooksBack) {
  ModelConfig config = clip_model();
  config.network.temporal_mask = "none";
  EXPECT_FALSE(resolved({.prompt = "a"}, config).stream);
  EXPECT_THROW(resolved({.prompt = "a", .stream = true}, config), Error);
  EXPECT_THROW(resolved({.prompt = "a", .frames = "inf"}, config), Error);
  EXPECT_THROW(resolved({.prompt = "a", .save_state = "s"}, config), Error);
}

TEST(ClipRequest, EveryFieldHasHelpAndGroup) {
  ClipRequest request;
  for (const BoundField& bound : bind_fields(request))
    EXPECT_FALSE(bound.field.help.empty() || bound.field.group.empty()) << bound.field.name;
}

}  // namespace
}  // namespace pom::generate
