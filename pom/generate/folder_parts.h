// Private to the room: what the engine takes from a model folder.
#pragma once

#include <filesystem>
#include <string>

#include "pom/diffusion/path.h"
#include "pom/generate/folder.h"

namespace pom::generate {

std::string folder_name(const std::filesystem::path& folder);

diffusion::Path path_of(const DiffusionConfig& config);

}  // namespace pom::generate
