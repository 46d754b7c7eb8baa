// What this build of libpom is: for `pom info`, `pom doctor`, the metadata of pictures and reports.
#pragma once

#include <string>
#include <string_view>

namespace pom {

struct BuildInfo {
  std::string_view version;     // "0.1.0"
  std::string_view git;         // `git describe` when the build was configured; empty outside a repository
  std::string_view compiler;    // "g++ 12.2.0"
  std::string_view build_type;  // "Release"
};

const BuildInfo& build_info();

// "libpom 0.1.0 (1a2b3c4, g++ 12.2.0, Release)"
std::string build_line();

}  // namespace pom
