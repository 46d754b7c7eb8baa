// The text encoder that needs no download: a table of pieces, learned with the network that listens to it.
// A token is its piece, its place in the prompt, and, layer by layer, its two neighbours: the mixer has no
// other way to tell "a red star over blue" from "a blue star over red". Mixers after these layers, if there
// are any, tell a token of all tokens before it: that it belongs to the second thing of a prompt, say.
// B prompts, L pieces, w width.
#pragma once

#include <filesystem>
#include <map>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "pom/codecs/text.h"
#include "pom/codecs/word_pieces.h"

namespace pom::codecs {

class WordsNetworkImpl : public torch::nn::Module {
 public:
  // Values before training are functions of the seed alone.
  WordsNetworkImpl(const TextConfig& config, std::int64_t pieces, std::uint64_t seed);

  // pieces (B, L) int64, mask (B, L) bool -> (B, L, w), 0 where nothing counts.
  at::Tensor forward(const at::Tensor& pieces, const at::Tensor& mask);

  torch::nn::Embedding pieces{nullptr};
  at::Tensor places;                    // (limit, w)
  torch::nn::ModuleList near{nullptr};  // Linear(3 w, w) each: the left neighbour, the piece, the right one
  torch::nn::ModuleList far{nullptr};   // PoM(w) each, causal, behind a layer norm without weights

 private:
  void set_first_values(std::uint64_t seed);
  at::Tensor rows_of(const at::Tensor& numbers);
};
TORCH_MODULE(WordsNetwork);

class Words : public TextEncoder {
 public:
  // Untrained, for these words.
  Words(const TextConfig& config, WordPieces pieces, std::uint64_t seed = 0);
  static Words open(const TextConfig& config, const std::filesystem::path& folder);
  static Words open(const TextConfig& config, const io::safetensors::Reader& file);
  // Into a folder that is made where it is missing: model.safetensors, with the words in it.
  void save(const std::filesystem::path& folder) const;

  std::int64_t width() const override { return config_.width; }
  std::int64_t limit() const override { return config_.limit; }
  EncodedText encode(std::span<const std::string> prompts) const override;
  void to(const c10::Device& device) override;
  const std::string& hash() const override { return hash_; }

  // The two halves of encode, for training: pieces on the host, padded to at least `length` (so that shapes
  // stay what they are), then tokens with gradients.
  struct Pieces {
    at::Tensor pieces, mask;  // (B, L) int64 and bool
    std::vector<std::string> warnings;
  };
  Pieces pieces(std::span<const std::string> prompts, std::int64_t length = 1) const;
  WordsNetwork& network() { return network_; }

  // Copies of all parameters by name, and back.
  std::map<std::string, at::Tensor> weights() const;
  void set_weights(const std::map<std::string, at::Tensor>& weights);
  const WordPieces& vocabulary() const { return vocabulary_; }

 private:
  TextConfig config_;
  WordPieces vocabulary_;
  WordsNetwork network_;
  std::string hash_;
};

}  // namespace pom::codecs
