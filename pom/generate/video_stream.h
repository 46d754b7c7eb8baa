// Clips without end: each call makes the next block of frames, at the same cost and in the same memory
// however many came before. What it makes is what sample_clip would have made of all blocks at once.
#pragma once

#include <filesystem>
#include <map>

#include "pom/generate/clip_sampling.h"
#include "pom/models/denoiser.h"

namespace pom::generate {

// What the caller keeps beside a stream in its file: texts (the prompt), tensors (a decoder's state).
struct Beside {
  std::map<std::string, std::string> notes = {};
  std::map<std::string, at::Tensor> tensors = {};
};

// Which model a stream is of, for saved states: hashes, and the most tokens of text that it takes.
struct StreamModel {
  std::string weights = {}, text_encoder = {};  // where the text encoder has none, nothing is said of it
  std::int64_t text_limit = 65536;
};

class VideoStream {
 public:
  // Begins at block 0. The network is the stream's as long as it lasts: a plan for another one ends this one.
  VideoStream(models::Denoiser& network, ClipSampling sampling, StreamModel model = {});

  // From the next block on: text (B, L, width), mask (B, L) bool; or of each of the blocks that are made
  // together, (B, blocks, L, width) and (B, blocks, L). Needed before the first block.
  void tell(const at::Tensor& text, const at::Tensor& mask);

  // (B, C, pt, H, W), denoised. `on_step` may throw, which leaves the stream where it was before the block.
  at::Tensor next_block(const diffusion::OnStep& on_step = {}) { return next_blocks(1, on_step); }
  // So many blocks at once, (B, C, blocks * pt, H, W); the same as one after another, up to rounding.
  at::Tensor next_blocks(std::int64_t blocks, const diffusion::OnStep& on_step = {});
  std::int64_t block() const { return network_->block(); }  // the number of the next one
  const ClipSampling& sampling() const { return sampling_; }

  // The stream between two blocks, as a safetensors file that any number of streams can go on from. One that
  // was made by another model, sampler, number of steps, size or precision, or guided elsewhere, is refused;
  // of the text encoder an early state says nothing.
  // What was told and the seeds come from the file.
  void save(const std::filesystem::path& path, const Beside& beside = {}) const;
  Beside restore(const std::filesystem::path& path);

 private:
  std::vector<std::pair<std::string, std::string>> fingerprint() const;

  models::Denoiser* network_;
  ClipSampling sampling_;
  StreamModel model_;
  std::vector<models::Evaluation> evaluations_;
};

}  // namespace pom::generate
