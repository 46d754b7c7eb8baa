#include "pom/generate/folder_parts.h"

#include <system_error>

namespace pom::generate {

namespace fs = std::filesystem;

std::string folder_name(const fs::path& folder) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  return error ? folder.filename().string() : whole.filename().string();
}

diffusion::Path path_of(const DiffusionConfig& config) {
  return diffusion::Path::named(config.path, config.path == "epsilon" ? config.variance : "");
}

}  // namespace pom::generate
