#include "pom/generate/folder_parts.h"

#include <system_error>

#include "pom/base/error.h"
#include "pom/io/safetensors.h"
#include "pom/models/weights.h"

namespace pom::generate {

namespace fs = std::filesystem;

std::string folder_name(const fs::path& folder) {
  std::error_code error;
  const fs::path whole = fs::canonical(folder, error);
  return error ? folder.filename().string() : whole.filename().string();
}

void check_weights_file(const fs::path& path, const models::NetworkConfig& network) {
  std::error_code error;
  check(fs::exists(path, error), "model folder: ", path.parent_path().string(), ": there is no ",
        weights_file, " in it");
  const io::safetensors::Header header = io::safetensors::read_header(path);
  models::check_weights(header, network, path.string());
}

diffusion::Path path_of(const DiffusionConfig& config) {
  return diffusion::Path::named(config.path, config.path == "epsilon" ? config.variance : "");
}

}  // namespace pom::generate
