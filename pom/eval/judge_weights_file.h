// Private to the room: files of judges. safetensors, with what a judge was trained for as metadata.
#pragma once

#include <filesystem>
#include <string>

#include "pom/eval/judge.h"
#include "pom/eval/judge_layers.h"

namespace pom::eval {

// `format` says what kind of judge it is.
void write_judge_file(const std::filesystem::path& path, const std::string& format, const JudgeConfig& config,
                      const JudgeWeights& weights);

struct JudgeFile {
  JudgeConfig config;
  JudgeWeights weights;
};

// Refuses another kind of judge, or one that was trained for another size, or for other shapes or hues.
JudgeFile read_judge_file(const std::filesystem::path& path, const std::string& format, const Canvas& canvas,
                          const JudgeShapes& shapes);

}  // namespace pom::eval
