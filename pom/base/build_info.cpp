#include "pom/base/build_info.h"

// CMake passes these to this file alone, so that a new commit recompiles nothing else.
#ifndef POM_VERSION
#define POM_VERSION "unknown"
#endif
#ifndef POM_GIT
#define POM_GIT ""
#endif
#ifndef POM_BUILD_TYPE
#define POM_BUILD_TYPE ""
#endif

#define POM_TEXT_OF(x) #x
#define POM_TEXT(x) POM_TEXT_OF(x)
#if defined(__clang__)
#define POM_COMPILER \
  "clang " POM_TEXT(__clang_major__) "." POM_TEXT(__clang_minor__) "." POM_TEXT(__clang_patchlevel__)
#elif defined(__GNUC__)
#define POM_COMPILER "g++ " POM_TEXT(__GNUC__) "." POM_TEXT(__GNUC_MINOR__) "." POM_TEXT(__GNUC_PATCHLEVEL__)
#else
#define POM_COMPILER "unknown compiler"
#endif

namespace pom {

const BuildInfo& build_info() {
  static constexpr BuildInfo info{POM_VERSION, POM_GIT, POM_COMPILER, POM_BUILD_TYPE};
  return info;
}

std::string build_line() {
  const BuildInfo& info = build_info();
  std::string line = "libpom " + std::string(info.version) + " (";
  if (!info.git.empty()) line += std::string(info.git) + ", ";
  line += info.compiler;
  if (!info.build_type.empty()) line += ", " + std::string(info.build_type);
  return line + ")";
}

}  // namespace pom
