// The text encoder within a model folder, and what it is as its file says it.
#pragma once

#include <filesystem>
#include <memory>

#include "pom/codecs/text.h"
#include "pom/generate/folder.h"

namespace pom::generate {

// Width, limit and layers are those of the tensors in the encoder's file.
codecs::TextConfig stored_text_config(const std::filesystem::path& folder);

// Throws pom::Error where it does not go with the network.
std::unique_ptr<codecs::TextEncoder> open_text(const std::filesystem::path& folder,
                                               const ModelConfig& config);

}  // namespace pom::generate
