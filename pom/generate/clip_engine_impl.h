// Private to the room: what a ClipEngine holds, for it and for ManyClips.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "pom/codecs/codec.h"
#include "pom/codecs/text.h"
#include "pom/generate/clip_engine.h"
#include "pom/generate/clip_sampling.h"
#include "pom/generate/model_files.h"
#include "pom/generate/plan.h"
#include "pom/models/weights.h"

namespace pom::generate {

struct ClipEngine::Impl {
  std::filesystem::path folder;
  c10::Device device;
  ModelFiles files;
  const ModelConfig& config;
  std::string name;
  std::unique_ptr<codecs::Codec> codec;
  std::unique_ptr<codecs::TextEncoder> encoder;

  Impl(const std::filesystem::path& where, c10::Device device);
  models::Weights weights();
  ClipSampling sampling(const Request& request, std::vector<std::uint64_t> seeds) const;
  codecs::EncodedText block_texts(const ClipJob& job) const;
  ClipWork work(const ClipJob& job) const;
  std::int64_t stored_bytes() const;        // of the weights
  double step_seconds(const ClipJob& job);  // of one block; samples for a moment
  void sample(const ClipJob& job, const ClipObserver& observer);
  void run_whole(const ClipJob& job, const ClipObserver& observer);
  void run_stream(const ClipJob& job, const ClipObserver& observer);
};

}  // namespace pom::generate
