// A clip that is made block by block, on demand, and may be told something else at any time: what a live view
// shows. Its frames are those that Engine::run would give for the same prompts at the same blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pom/generate/engine.h"

namespace pom::generate {

// What a caller keeps beside a stream in its file: a text, and files.
struct BesideStream {
  std::string text;
  std::vector<std::string> files;
};
// Of a file that LiveClip::save wrote, without a look at the stream itself. Throws pom::Error that names the
// path where it is damaged or another file.
BesideStream read_beside(const std::filesystem::path& path);

class LiveClip {
 public:
  // A job of one item that streams (frames "inf", or stream). The network is its own: other runs of the
  // engine and other clips leave it alone. Not for two threads at once, nor beside a run of the engine in
  // another thread. The engine lives as long as this.
  LiveClip(Engine& engine, Job job);
  ~LiveClip();
  LiveClip(LiveClip&&) noexcept;
  LiveClip& operator=(LiveClip&&) noexcept;

  // From the next block on.
  void tell(const std::string& prompt);
  // The frames of the next block. `stop` is looked at before each evaluation, `on_evaluation` called after
  // it: where it throws, or Stopped is thrown, the clip is where it was before the block.
  Frames next(const std::atomic<bool>* stop = nullptr, const std::function<void()>& on_evaluation = {});

  std::int64_t block() const;  // the number of the next one, from where this clip began
  double fps() const;
  const std::string& prompt() const;  // of the next block
  // Between two blocks, as Request::save_state has it; before the first one there is nothing to save: false.
  bool save(const std::filesystem::path& path, const BesideStream& beside = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::generate
