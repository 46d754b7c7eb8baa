// The one engine: opens any model folder, resolves requests into jobs, and runs them: batches of items, block
// after block, each item an image or a clip; an image is a clip of one block. One run at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/generate/folder.h"
#include "pom/generate/job.h"
#include "pom/generate/metadata.h"
#include "pom/generate/request.h"
#include "pom/io/image.h"
#include "pom/parallel/ranks.h"
#include "pom/parallel/share.h"

namespace pom::generate {

// How to work, which changes no pixel but by rounding.
struct Limits {
  std::int64_t batch = 0;         // items at a time, at most; 0: as many as memory and speed suggest
  std::int64_t memory_bytes = 0;  // what the process may take in all, without a GPU's; 0: what is free
  parallel::Share items = {};     // only these of a job; count 0: all
  // All of them run the same job, each on its rows of an image or blocks of a clip that is made whole; the
  // first one decodes and is told of frames. Pixels differ by rounding from those of one process.
  parallel::Ranks ranks = {};
};

// Frames of an item that are there: an image whole, of a clip those of a block.
struct Frames {
  std::int64_t item = 0;          // of Job::items
  std::int64_t first = 0;         // the number of the first one
  std::vector<io::Image> images;  // 8 bit; RGB, or of images of a model without colours grey
  bool last = false;              // nothing follows of this item
};

// Called from the thread that runs. Throwing from any of them ends the run.
struct Observer {
  // Evaluations of the network, over all batches and blocks; total is 0 where there is no end.
  std::function<void(std::int64_t done, std::int64_t total)> on_evaluation = {};
  std::function<void(Frames&&)> on_frames =
      {};                               // of every item in order, items in order where they are images
  std::function<void()> on_block = {};  // all frames of a block of all items of a batch were given
  std::int64_t preview_every = 0;       // steps; 0: never
  // What the network expects after `step` steps (counted from 1, over the blocks) of the batch now made.
  std::function<void(std::int64_t step, std::vector<Frames>&&)> on_preview = {};
  // The latents of the items from `item` on, as they were sampled and before they are decoded; of clips those
  // of some blocks.
  std::function<void(std::int64_t item, const at::Tensor& latents)> on_latents = {};
  // What a person should hear of the work, once known: a latent that was decoded again in fp32.
  std::function<void(const std::string& remark)> on_remark = {};
  // Whether nobody wants an item any more, asked before each evaluation: an image costs no more from then on,
  // on a CPU, and is not given. The others are what they would have been.
  std::function<bool(std::int64_t item)> left = {};
  // Set by a signal handler: the run ends with Stopped before the next evaluation.
  const std::atomic<bool>* stop = nullptr;
};

struct Stopped {};  // thrown where Observer::stop was set

// Tensors that a run begins with, in place of what its request says.
struct Inputs {
  at::Tensor noise = {};  // latents of pure noise, of every item: (N, C, H, W), of clips (N, C, T, H, W)
  // Pixels in place of the file that Request::init names, in [-1, 1]: one for all items or one for each,
  // shaped as above; the last frame of a clip stands for those that are missing.
  at::Tensor init = {};
};

struct Forecast {
  std::int64_t items = 0, batch = 0, evaluations = 0;  // evaluations of the network, over all batches
  double macs = 0, seconds = 0;  // of the run; seconds from a short measurement on this machine
  std::int64_t peak_bytes = 0;   // of the process at its largest; 0 on a GPU, where it is not forecast
  std::int64_t free_bytes =
      0;  // what the process may take: the limit, or what it has and the machine has free
  bool fits = true;
  std::string advice;  // where it does not: which flag would make it fit
};

class Engine {
 public:
  // `device` is where the network runs (device.h): noise is made on the host and images come back to it.
  explicit Engine(const std::filesystem::path& folder, std::string_view device = "cpu");
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  const ModelConfig& config() const;
  const std::filesystem::path& folder() const;
  const std::string& name() const;
  std::string device() const;  // "cpu", "cuda:0"
  // SHA-256 of model.safetensors and of the text encoder with its vocabulary (empty where there is none), of
  // the very bytes in use.
  const std::string& weights_hash() const;
  const std::string& text_hash() const;
  // Likewise of the autoencoder's config.json and weights; empty where images are their own latents.
  std::string codec_hash() const;
  std::int64_t block_frames() const;  // of a clip; 1 of a model for images

  // What a request stands for. Every mistake in it is found here, but for a state that belongs to something
  // else. A negative seed is drawn here. `inputs` are those of the run to come.
  Job resolve(const Request& request, const Inputs& inputs = {}) const;
  // The same without a word of the text encoder, which may be slow: in a moment, and from any thread.
  Job resolve_quickly(const Request& request) const;
  // By counting alone, and from any thread: multiply-adds of a job (of a clip without end: of a block), and
  // how many items at a time make good use of the device.
  double macs(const Job& job) const;
  std::int64_t good_batch(const Job& job) const;
  // Bytes that a run of so many items at once takes beyond what the process has; of a stream with weights of
  // its own, as a LiveClip has them. Those of a GPU are not counted.
  std::int64_t memory(const Job& job, std::int64_t items) const;
  // What made an item of a job, for its file.
  Origin origin(const Request& item) const;

  // Measures for a moment. Of a clip without end: one block of it.
  Forecast forecast(const Job& job, const Limits& limits = {});
  // What memory does not hold is refused before the weights are read. A stream that ends early (Stopped,
  // io::ClosedPipe from on_frames) still saves its state, after the last whole block.
  void run(const Job& job, const Limits& limits, const Observer& observer, const Inputs& inputs = {});

  // For images, all at once: the first frame of each item.
  std::vector<io::Image> images(const Job& job, const Limits& limits = {});

  struct Impl;  // private to the room
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::generate
