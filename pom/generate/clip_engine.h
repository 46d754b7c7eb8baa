// The engine for clips: opens the folder of a model that makes them from text, takes requests, gives frames.
// A clip is sampled whole, or block by block as a stream; the frames are the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "pom/generate/clip_request.h"
#include "pom/generate/engine.h"
#include "pom/io/image.h"

namespace pom::generate {

// Called from the thread that runs. Throwing from any of them ends the run.
struct ClipObserver {
  // Of the sampler, over all blocks; total is 0 where there is no end.
  std::function<void(std::int64_t done, std::int64_t total)> on_step;
  std::function<void(io::Image&&)> on_frame;  // 8-bit RGB, in order
  std::function<void()> on_block;             // all frames of a block have been given
  const std::atomic<bool>* stop = nullptr;    // the run ends with Stopped (engine.h) at the next step
};

class ClipEngine {
 public:
  explicit ClipEngine(const std::filesystem::path& folder, std::string_view device = "cpu");
  ~ClipEngine();
  ClipEngine(ClipEngine&&) noexcept;
  ClipEngine& operator=(ClipEngine&&) noexcept;

  const ModelConfig& config() const;
  const std::filesystem::path& folder() const;
  const std::string& name() const;
  std::string device() const;
  // SHA-256 of model.safetensors and of the text encoder with its vocabulary, of the very bytes in use.
  const std::string& weights_hash() const;
  const std::string& text_hash() const;
  std::int64_t block_frames() const;  // of a clip

  // Every mistake in a request is found here, but for a state that belongs to something else. A prompt longer
  // than the encoder takes is a remark.
  ClipJob resolve(const ClipRequest& clip, const Request& request) const;

  // Measures for a moment. Of a clip without end: one block of it.
  Forecast forecast(const ClipJob& job, const Limits& limits = {});

  // A stream that ends early (Stopped, io::ClosedPipe from on_frame) still saves its state, after the last
  // whole block. What memory does not hold is refused before the weights are read.
  void run(const ClipJob& job, const ClipObserver& observer, const Limits& limits = {});

 private:
  friend class ManyClips;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::generate
