// The parts of libpom that a build may lack, because a library was not found or because CMake was told so:
// what each brings, and what to do to have it. No torch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pom::cli {

enum class Found { yes, missing, off };  // missing: its library was not there; off: an option of CMake's

// How CMake found things when it made this program.
struct Build {
  Found pictures = Found::yes;
  Found clips = Found::yes;
  Found data = Found::yes;
  Found training = Found::yes;
  Found cuda = Found::yes;
  Found server = Found::yes;
  bool torch_has_cuda = true;
  std::string_view architectures = "";  // of the CUDA kernels: "sm_80, sm_90a"
};

Build this_build();

struct Part {
  std::string_view name;  // "training"
  Found found;
  std::string_view brings;    // "pom train and pom bench"
  std::string_view commands;  // of those, separated by spaces: "train bench"
  std::string why;            // it is left out, and what to do; empty where it is there
};

std::vector<Part> parts_of(const Build& build);

// The commands that are left out.
std::vector<std::string> absent_commands(const Build& build);

// "this build has no training: toml++ was not found ...": what `pom COMMAND` has to say; empty where the
// command is there, or is none at all.
std::string why_absent(std::string_view command, const Build& build);

}  // namespace pom::cli
