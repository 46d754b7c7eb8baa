// What `pom info` and `pom doctor` say of folders as diffusers and transformers write them: autoencoders,
// text encoders, tokenizers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/checks.h"
#include "cli/json.h"

namespace pom::cli {

// Whether a folder is one of an encoder, or holds encoders or a tokenizer and no model of ours.
bool is_encoder_folder(const std::filesystem::path& folder);

int encoder_folder_info(const std::filesystem::path& folder, bool json);

// Of the encoders in a model's folder: lines below those of the model, and objects of JSON.
void print_encoders(const std::filesystem::path& folder);
std::vector<JsonObject> encoders_json(const std::filesystem::path& folder);

// Each encoder in the folder: every tensor there, of its shape and finite; a tokenizer that goes with it.
std::vector<Check> check_encoders(const std::filesystem::path& folder);

}  // namespace pom::cli
