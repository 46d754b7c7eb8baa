// The text encoder within a model folder, and what it is as its file says it.
#pragma once

#include <memory>

#include "pom/codecs/text.h"
#include "pom/generate/folder.h"
#include "pom/io/safetensors.h"

namespace pom::generate {

// Width, limit and layers are those of the tensors in the encoder's file.
codecs::TextConfig stored_text_config(const io::safetensors::Reader& file);

// Throws pom::Error where the file does not go with the network, or is not what config.json says of it.
std::unique_ptr<codecs::TextEncoder> open_text(const io::safetensors::Reader& file,
                                               const ModelConfig& config);

}  // namespace pom::generate
