// A pretrained T5 encoder with its tokenizer, from folders as transformers and diffusers write them. Folders
// open at once; the weights are read with the first prompt. Not for two threads at once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "pom/codecs/t5_network.h"
#include "pom/codecs/text.h"
#include "pom/codecs/weight_folder.h"
#include "pom/io/folder_swap.h"
#include "pom/io/sentence_pieces.h"

namespace pom::codecs {

class T5 : public TextEncoder {
 public:
  static constexpr std::int64_t padding = 0, end = 1;  // pieces <pad> and </s>

  // A model's folder with text_encoder/ and tokenizer/, or one with config.json, model.safetensors (or its
  // index) and spiece.model. Without a spiece.model there are only encode_ids. Of `config` limit and mask
  // count: with mask false the padding is as good as any token, to the encoder and in the mask that is given
  // back. In its stored dtype where none is given.
  T5(const TextConfig& config, const io::OpenFolder& folder,
     std::optional<at::ScalarType> dtype = std::nullopt);
  ~T5() override;

  std::int64_t width() const override { return config_.d_model; }
  std::int64_t limit() const override { return limit_; }
  // Every prompt padded to the limit; tokens in dtype().
  EncodedText encode(std::span<const std::string> prompts) const override;
  void to(const c10::Device& device) override;
  void unload() override;
  const std::string& hash() const override;  // reads all weights the first time
  std::string settings() const override;

  // The two halves of encode. Pieces are on the host.
  struct Ids {
    at::Tensor ids, mask;  // (B, limit) int64 and bool
    std::vector<std::string> warnings;
  };
  Ids ids(std::span<const std::string> prompts) const;
  // ids (B, L) int64, any L; mask (B, L), 0 where a token is hidden, or undefined where none is. The limit
  // and `mask` of the config do not matter here.
  at::Tensor encode_ids(const at::Tensor& ids, const at::Tensor& mask = {}) const;

  const T5Config& network_config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }
  std::int64_t weight_bytes() const;  // in dtype(), wherever they will be
  const std::string& where() const { return weights_.where(); }
  const WeightFolder& weights() const { return weights_; }
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const io::SentencePieces& tokenizer() const;  // an error where there is none

 private:
  const T5Network& network() const;

  WeightFolder weights_;
  T5Config config_;
  std::unique_ptr<io::SentencePieces> tokenizer_;
  std::string searched_;  // where a spiece.model was looked for
  std::int64_t limit_;
  bool mask_;
  at::ScalarType dtype_;
  c10::Device device_{c10::kCPU};
  mutable std::unique_ptr<T5Network> network_;
  mutable std::string hash_;
};

}  // namespace pom::codecs
