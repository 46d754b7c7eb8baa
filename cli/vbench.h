// Clips for VBench: a list of prompts, and one flat folder in which clip i of a prompt is "PROMPT-i.mp4".
// What made them lies beside the folder, for VBench takes whatever is in it for a clip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/sample_options.h"
#include "pom/generate/engine.h"

namespace pom::cli {

inline constexpr std::int64_t vbench_clips = 5;  // of each prompt

// The lines of a file without what is blank at their ends; empty ones are passed over. No prompt is an error.
std::vector<std::string> read_prompts(const std::filesystem::path& file);

// The seed of clip `index` of a prompt: a number of its own, which neither the other prompts nor their order
// change.
std::int64_t vbench_seed(std::int64_t seed, std::string_view prompt, std::int64_t index);

// Which clips of a run are to be made, and where they go.
struct VbenchPlan {
  std::vector<std::filesystem::path> names;  // of the job's items
  std::int64_t there = 0;                    // clips that are there already
  std::filesystem::path manifest;            // "clips.jsonl" beside "clips/"
  std::string text;                          // of the manifest
  std::vector<std::string> remarks;
};

// Takes what is there already out of the job and gives each clip its seed. Prompts that no file can be named
// after, and a folder with clips of another model or other settings, are errors.
VbenchPlan plan_vbench(const SampleOptions& options, const generate::Engine& engine, generate::Job& job);

}  // namespace pom::cli
