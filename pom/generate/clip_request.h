// What a person asks for of a clip, beside what a Request says of any picture: the flags of `pom sample`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pom/base/fields.h"
#include "pom/generate/folder.h"

namespace pom::generate {

// What is left open, the model's own settings decide (config.json, "sample"), or the state that is continued.
struct ClipRequest {
  std::optional<std::string> prompt = {};   // empty: no text
  std::vector<std::string> prompt_at = {};  // "32:a blue star"; frames count from this clip's first
  std::optional<std::string> frames = {};   // a number, or "inf"
  std::optional<double> fps = {};
  bool stream = false;  // block by block; "inf" and states understand it
  std::string save_state = {}, continue_from = {};

  template <class Visit>
  void fields(Visit&& visit) {
    constexpr std::string_view clips = "Clips, of models that make them from text";
    visit(Field{.name = "prompt", .help = "what the clip shows", .value = "TEXT", .group = clips}, prompt);
    visit(Field{.name = "prompt_at",
                .help = "another prompt from the block of frame N on, which counts from this clip's "
                        "first; may be given again",
                .value = "N:TEXT",
                .group = clips},
          prompt_at);
    visit(Field{.name = "frames",
                .help = "of the clip, or inf: until stopped (default: the model's own)",
                .value = "N",
                .group = clips},
          frames);
    visit(Field{.name = "fps",
                .help = "frames a second (default: the model's own)",
                .value = "X",
                .group = clips,
                .least = 0.01,
                .most = 1000},
          fps);
    visit(Field{.name = "stream",
                .help = "make and write the clip block by block: the file plays while it grows, and memory "
                        "does not grow; needs a block-causal model",
                .group = clips},
          stream);
    visit(Field{.name = "save_state",
                .help = "at the end write where the stream stands, to go on from",
                .value = "FILE",
                .group = clips},
          save_state);
    visit(
        Field{.name = "continue",
              .help = "go on from such a file, with its prompt where none is given; what else is left open, "
                      "the file says too",
              .value = "FILE",
              .group = clips},
        continue_from);
  }
};

// A complete request: everything that can be known to be wrong has been found.
struct ClipJob {
  struct Prompt {
    std::int64_t block = 0;  // from which on, of this clip
    std::string text;
  };
  Request request;              // of the clip as if it were a picture; class "none"
  std::vector<Prompt> prompts;  // by block; the first is that of block 0, but where a state has its own
  std::int64_t frames = 0, blocks = 0;  // 0: without end. Frames may end within the last block
  double fps = 0;
  bool stream = false;
  std::filesystem::path save_state, continue_from;
  std::string saved_prompt;          // of the state that is continued
  std::vector<std::string> remarks;  // on what was rounded or moved
};

// `factor` is the codec's, `block_frames` how many frames of a clip a block is. A negative seed is drawn
// here.
ClipJob resolve_clip(const ClipRequest& clip, const Request& request, const ModelConfig& config,
                     std::int64_t factor, std::int64_t block_frames);

// Throws pom::Error where the file of a stream cannot be read, or does not say what resolve_clip wants of it:
// for callers who tell a damaged file from a mistake in the request.
void check_state(const std::filesystem::path& path);

// What resolve_clip reads in the file of a stream, and ClipEngine writes there, beside the stream itself.
namespace state_note {
inline constexpr const char *request = "request", *prompt = "prompt", *fps = "fps";
}

}  // namespace pom::generate
