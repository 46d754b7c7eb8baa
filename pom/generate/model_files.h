// What a model folder holds, opened at one moment: whatever replaces the folder or a file in it afterwards,
// all that is read belongs together, and the hash is that of the bytes that were read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "pom/codecs/codec.h"
#include "pom/codecs/text.h"
#include "pom/generate/folder.h"
#include "pom/io/safetensors.h"
#include "pom/models/weights.h"

namespace pom::generate {

// model.safetensors, open. Its header accounts for every tensor, so that a folder opens at once; the values
// are read when they are asked for.
class StoredWeights {
 public:
  StoredWeights(io::safetensors::Reader file, const models::NetworkConfig& network);

  std::int64_t bytes() const;
  bool in_memory() const { return kept_.has_value(); }

  // On the host, as stored.
  models::Weights take();
  // SHA-256 of the bytes that take() gives, in hexadecimal digits: asked for before, it reads them too, and
  // they are kept until they are taken.
  const std::string& hash();

 private:
  models::Weights read();

  io::safetensors::Reader file_;
  models::NetworkConfig network_;
  std::optional<models::Weights> kept_;
  std::string hash_;
};

struct ModelFiles {
  ModelConfig config;
  StoredWeights weights;
  std::unique_ptr<codecs::Codec> codec;
  std::optional<io::safetensors::Reader> text;   // the text encoder of words, of a model for clips
  std::unique_ptr<codecs::TextEncoder> encoder;  // another one, whose weights are read with the first prompt
};

ModelFiles open_model(const std::filesystem::path& folder);

}  // namespace pom::generate
