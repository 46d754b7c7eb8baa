// Private to the room: what both engines, for pictures and for clips, take from a model folder.
#pragma once

#include <filesystem>
#include <string>

#include "pom/diffusion/path.h"
#include "pom/generate/folder.h"

namespace pom::generate {

std::string folder_name(const std::filesystem::path& folder);

// Every tensor accounted for by the file's header alone, so that a folder opens at once; the values are read
// when the network is made.
void check_weights_file(const std::filesystem::path& path, const models::NetworkConfig& network);

diffusion::Path path_of(const DiffusionConfig& config);

}  // namespace pom::generate
