// What a request stands for, complete: the images or clips of a run, and how they are made. Every mistake in
// a request is found on the way here, before anything is computed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pom/diffusion/guidance.h"
#include "pom/diffusion/sampler.h"
#include "pom/generate/folder.h"
#include "pom/generate/request.h"

namespace pom::generate {

struct Job {
  struct Change {
    std::int64_t block = 0;  // from which on
    std::string prompt;
    std::int64_t item = -1;  // the only one that it is for; -1: for all
  };

  // Each complete and for one image or clip: no field left open, count 1. They differ in class, prompt and
  // seed alone.
  std::vector<Request> items;
  std::vector<Change> changes;          // of the prompt, by block; none at block 0
  std::int64_t frames = 1, blocks = 1;  // of each item; 0: without end. Frames may end within the last block
  bool clip = false;                    // else images: of a model for clips, the first frame of one block
  bool stream = false;                  // block by block, else all blocks at once
  bool keeps_text = false;              // the continued state says what the clip shows, and nothing else does
  double fps = 0;                       // of clips
  std::filesystem::path save_state, continue_from;
  std::vector<std::string> remarks;  // on what was rounded, moved or drawn

  const Request& first() const { return items.front(); }
};

// What resolving has to know beside config.json.
struct ModelShape {
  std::int64_t factor = 1;        // pixels along a side of a latent pixel
  std::int64_t block_frames = 1;  // frames of a block of a clip
};

// Of the file that a request begins with.
struct InitShape {
  std::int64_t width = 0, height = 0, frames = 1;
};

// See Engine::resolve. A negative seed is drawn here.
Job resolve(const Request& request, const ModelConfig& config, const ModelShape& shape,
            const std::optional<InitShape>& init = {});

// Throws pom::Error where the file of a stream cannot be read, or does not say what resolve wants of it: for
// callers who tell a damaged file from a mistake in the request.
void check_state(const std::filesystem::path& path);

// What resolve reads in the file of a stream, and the engine writes there, beside the stream itself.
namespace state_note {
inline constexpr const char *request = "request", *prompt = "prompt", *fps = "fps";
}

// What the diffusion room calls the settings of a complete request. With strength 0 there is nothing to
// sample (`samples` is false).
bool samples(const Request& request);
diffusion::SamplerOptions sampler_options(const Request& request);
diffusion::Guidance guidance_of(const Request& request);
std::int64_t evaluations_of(const Request& request);  // of one block

// The network with what a complete request changes in it.
models::NetworkConfig network_of(const ModelConfig& config, const Request& request);

}  // namespace pom::generate
