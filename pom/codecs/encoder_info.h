// What a folder of an autoencoder or a text encoder holds, for people who ask what it is and whether it is
// well: folders as diffusers and transformers write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pom/io/folder_swap.h"

namespace pom::codecs {

// Bytes that an autoencoder in fp32 takes beyond its weights for a picture, or 8 frames, of this size.
struct EncoderMemory {
  std::int64_t width = 0, height = 0, frames = 0;  // 0 frames: a picture
  std::int64_t encode = 0, decode = 0;
};

struct EncoderInfo {
  std::string kind;                        // "autoencoder-kl", "cogvideox" or "t5"
  std::string network;                     // in words
  std::string where;                       // the folder
  std::vector<std::string> files, dtypes;  // of the weights, as stored
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
  // Of autoencoders. Networks see (encoded - shift) * scale.
  std::int64_t channels = 0, factor = 0, time_factor = 0;
  double scale = 1, shift = 0;
  std::optional<EncoderMemory> memory = {};
  // Of text encoders.
  std::int64_t width = 0, vocabulary = 0;
  std::optional<std::int64_t> pieces = {};  // of spiece.model, where there is one
};

// Where an encoder lies in a folder: "" in the folder itself, "vae", "text_encoder". Empty where there is
// none, as in a model's folder of our own with pixels. A config.json of our own is none.
std::vector<std::string> encoders_in(const io::OpenFolder& folder);

// Opens it and accounts for every tensor. A class that is not known is an error that says which are.
EncoderInfo describe_encoder(const io::OpenFolder& folder, const std::string& within);

// SHA-256 as data sets and pictures have it; reads all weights.
std::string encoder_hash(const io::OpenFolder& folder, const std::string& within);

// That every value of every tensor is finite; reads all weights, one tensor at a time. The number of values.
std::int64_t check_finite_encoder(const io::OpenFolder& folder, const std::string& within);

}  // namespace pom::codecs
