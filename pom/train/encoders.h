// Private to the room: others' networks that a run uses as they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "pom/codecs/codec.h"
#include "pom/train/recipe.h"

namespace pom::train {

// The recipe's codec, from encoders.vae where it is an autoencoder.
std::unique_ptr<codecs::Codec> open_codec(const Recipe& recipe);

// Pixels along one side of a latent's pixel; 1 where no autoencoder is named.
std::int64_t latent_factor(const Recipe& recipe);

// The recipe's data, opened: shards must be of the recipe's autoencoder and text encoder, where it names
// them, scaled as codec.scale and codec.shift say, and clips as long as data.frames says.
data::Split open_data(const Recipe& recipe);

// Puts encoders.vae and encoders.text into a model folder that is being written, where `before`, the folder
// that it replaces, does not have them: config.json, safetensors with their index, and a tokenizer's file.
// Linked where the file system can, else copied.
void add_encoders(const std::filesystem::path& folder, const std::filesystem::path& before,
                  const Recipe& recipe);

}  // namespace pom::train
