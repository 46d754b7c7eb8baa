// What turns a prompt into tokens that a network can mix into a clip: the small trainable encoder of words
// (words.h), or a pretrained T5 (t5.h). B prompts, L tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "pom/base/fields.h"
#include "pom/io/safetensors.h"

namespace pom::codecs {

// The "text" of config.json. What else an encoder is lies in its folder within the model's.
struct TextConfig {
  std::string kind = "words";
  std::int64_t width = 128;  // of a token
  std::int64_t limit = 64;   // most tokens of a prompt; what comes after them is cut
  std::int64_t layers = 2;   // of words: in which a word learns of its neighbours
  std::int64_t mixers = 0;   // of words: after those, in which it learns of all words before it
  bool mask = true;          // of t5: whether what fills a prompt up to the limit is hidden

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind", .help = "text encoder", .choices = {"words", "t5"}}, kind);
    visit(Field{.name = "width", .help = "width of a text token", .least = 1, .most = 65536}, width);
    visit(Field{.name = "limit", .help = "most tokens in a prompt", .least = 1, .most = 65536}, limit);
    visit(Field{.name = "layers",
                .help = "layers that mix neighbouring words",
                .least = 0,
                .most = 64,
                .saved = kind != "t5"},
          layers);
    visit(Field{.name = "mixers",
                .help = "layers after these that mix in all words before a word",
                .least = 0,
                .most = 64,
                .saved = kind != "t5" && mixers > 0},
          mixers);
    visit(Field{.name = "mask", .help = "hide the padding of prompts", .saved = kind == "t5"}, mask);
  }
};

struct EncodedText {
  at::Tensor tokens;                  // (B, L, width), L at least 1
  at::Tensor mask;                    // (B, L) bool, 1 where a token counts
  std::vector<std::string> warnings;  // of prompts that were cut, and of words that are not known
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  virtual std::int64_t width() const = 0;
  virtual std::int64_t limit() const = 0;  // most tokens of a prompt
  // Without gradients, where the encoder's weights are. What a prompt gives does not depend on the others but
  // for the padding.
  virtual EncodedText encode(std::span<const std::string> prompts) const = 0;
  virtual void to(const c10::Device& device) = 0;
  // Frees the memory of a large encoder's weights, on a GPU too; the next prompt reads them again.
  virtual void unload() {}
  // SHA-256 of the files it was read from, weights and vocabulary, in hexadecimal digits; empty of one that
  // was made here.
  virtual const std::string& hash() const = 0;
  // What else tokens depend on, in a few words: dtype, masks.
  virtual std::string settings() const { return {}; }
};

// A text encoder within a model's folder.
inline constexpr const char *text_folder = "text_encoder", *text_file = "text_encoder/model.safetensors";

std::unique_ptr<TextEncoder> open_text_encoder(const TextConfig& config, const io::safetensors::Reader& file);
// Of any kind, from a model's folder or the encoder's own. `dtype` is for encoders with large weights: as
// stored where it is not given.
std::unique_ptr<TextEncoder> open_text_encoder(const TextConfig& config, const io::OpenFolder& folder,
                                               std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace pom::codecs
