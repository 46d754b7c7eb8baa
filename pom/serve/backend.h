// What makes things for the server: models with names, and how to run them. One on the engines; a scripted
// one in tests, which goes a step when it is told to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pom/generate/engine.h"
#include "pom/generate/live_clip.h"
#include "pom/io/png.h"

namespace pom::serve {

struct ModelInfo {
  std::string id;      // what requests call it
  bool clips = false;  // else it makes images
  bool text = false;   // it reads prompts; else it has classes
  bool streams = false;
  std::int64_t width = 0, height = 0;  // its own
  std::int64_t class_count = 0;
  std::vector<std::string> classes;  // names; empty: numbers
  std::int64_t frames = 0, block_frames = 1;
  double fps = 0;
  std::string sha256;
  std::vector<std::string> examples;  // of prompts
};

// A clip without end, block by block (generate::LiveClip).
class LiveSource {
 public:
  virtual ~LiveSource() = default;
  virtual void tell(const std::string& prompt) = 0;
  virtual generate::Frames next(const std::atomic<bool>& stop,
                                const std::function<void()>& on_evaluation) = 0;
  virtual bool save(const std::filesystem::path& path, const generate::BesideStream& beside) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // From any thread, in a moment.
  virtual const std::vector<ModelInfo>& models() const = 0;
  virtual std::string device() const = 0;
  // Throws pom::Error for every mistake in a request.
  virtual generate::Job resolve(std::size_t model, const generate::Request& request) const = 0;
  virtual double macs(std::size_t model, const generate::Job& job) const = 0;
  virtual std::int64_t good_batch(std::size_t model, const generate::Job& job) const = 0;
  // What the file of an item says of itself.
  // `batch`: of how many it was made, where bits depend on that (batch_sizes); else 0.
  virtual std::vector<io::TextEntry> text_of(std::size_t model, const generate::Request& item,
                                             std::int64_t batch) const = 0;
  // The request that a model's own settings make of an empty one: defaults of the schema.
  virtual generate::Request defaults(std::size_t model) const = 0;

  // Bytes that making so many items of the job at once takes beyond what the process has anyway, by counting;
  // of a stream, what it takes as long as it lives.
  virtual std::int64_t memory(std::size_t model, const generate::Job& job, std::int64_t items) const = 0;

  // From one thread at a time, that of the device.
  // Seconds of a multiply-add of this model, from a short run; 0 where it cannot be said.
  virtual double measure(std::size_t model) = 0;
  virtual void run(std::size_t model, const generate::Job& job, std::int64_t batch,
                   const generate::Observer& observer) = 0;
  virtual std::unique_ptr<LiveSource> open(std::size_t model, const generate::Job& job) = 0;
};

// Engines of these model folders on one device; their names are the folders' or configurations', and have to
// differ. Weights are read here, so that the first request does not wait for them. `dtype`: empty for the
// models' own; requests that want another are refused.
std::unique_ptr<Backend> engine_backend(const std::vector<std::filesystem::path>& folders,
                                        const std::string& device, const std::string& dtype);

}  // namespace pom::serve
