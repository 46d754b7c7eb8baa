// Encoded prompts on disk: a text encoder that asks a folder first. One file for each prompt, named by what
// its tokens depend on: the encoder's files, its settings, the limit and the text.
//
//   DIGITS.safetensors   tokens (L, width) as the encoder gave them, mask (L) bool;
//                        metadata: format, sha256 of both, warnings, one a line
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pom/codecs/text.h"

namespace pom::codecs {

// The folder: what belongs to it is known by its name, all else in it is left alone. Several processes may
// use it at once.
class TextCache {
 public:
  static constexpr std::uint64_t usual_bytes = std::uint64_t{4} << 30;

  // Made where it is missing. Where it becomes larger than `most_bytes` the entries that were used last stay.
  explicit TextCache(std::filesystem::path folder, std::uint64_t most_bytes = usual_bytes);

  struct Entry {
    at::Tensor tokens, mask;  // (L, width) and (L) bool, on the host
    std::vector<std::string> warnings;
  };
  // Nothing where there is no such entry. One that is damaged is a pom::Error.
  std::optional<Entry> find(const std::string& key) const;
  void put(const std::string& key, const Entry& entry);

  std::filesystem::path path_of(const std::string& key) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void make_room();

  std::filesystem::path folder_;
  std::uint64_t most_bytes_, bytes_ = 0;
};

class CachedText : public TextEncoder {
 public:
  CachedText(std::unique_ptr<TextEncoder> encoder, TextCache cache);

  std::int64_t width() const override { return encoder_->width(); }
  std::int64_t limit() const override { return encoder_->limit(); }
  // What is not there is encoded, each prompt alone, so that an entry does not depend on what it was made
  // beside; then it is there. A damaged entry is made again, and a folder that cannot be written does
  // without: both are said in the warnings.
  EncodedText encode(std::span<const std::string> prompts) const override;
  void to(const c10::Device& device) override;
  void unload() override { encoder_->unload(); }
  const std::string& hash() const override { return encoder_->hash(); }
  std::string settings() const override { return encoder_->settings(); }

  // The name of a prompt's entry; empty where the encoder has no hash, and nothing is kept.
  std::string key_of(std::string_view prompt) const;
  TextEncoder& encoder() { return *encoder_; }

 private:
  TextCache::Entry made(const std::string& prompt, std::vector<std::string>& warnings) const;

  std::unique_ptr<TextEncoder> encoder_;
  mutable TextCache cache_;
  c10::Device device_{c10::kCPU};
};

}  // namespace pom::codecs
