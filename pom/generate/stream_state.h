// A stream between two blocks, as a safetensors file that any number of streams can go on from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "pom/generate/block_sampler.h"
#include "pom/io/safetensors.h"

namespace pom::generate {

// What the caller keeps in the file beside the stream itself: texts (the prompt), tensors (a decoder's
// state).
struct StateNotes {
  std::map<std::string, std::string> texts = {};
  std::map<std::string, at::Tensor> tensors = {};
};

inline const std::string state_notes_prefix = "beside.";  // of their names in the file
inline const std::string state_file_prefix = "file.";     // of tensors that are no decoder's

// That it is one, by its head: throws pom::Error that begins with `where`.
void check_stream_file(const io::safetensors::Header& header, const std::string& where);

// Which model a stream is of: hashes, and the most tokens of text that it takes.
struct StreamModel {
  std::string weights = {}, text_encoder = {};  // where the text encoder has none, nothing is said of it
  std::int64_t text_limit = 65536;
};

void save_stream(const std::filesystem::path& path, const BlockSampler& sampler, const StreamModel& model,
                 const StateNotes& notes = {});

// The sampler goes on where the file stands; what was told and the seeds come from the file. One that was
// made by another model, sampler, number of steps, size or precision, or guided elsewhere, is refused; of the
// text encoder an early state says nothing.
StateNotes restore_stream(const std::filesystem::path& path, BlockSampler& sampler, const StreamModel& model);

}  // namespace pom::generate
