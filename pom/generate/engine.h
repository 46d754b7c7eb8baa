// The one engine: opens a model folder, takes requests, gives pictures. One run at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pom/generate/folder.h"
#include "pom/generate/request.h"
#include "pom/io/image.h"

namespace pom::generate {

// How to work, which changes no pixel.
struct Limits {
  std::int64_t batch = 0;         // pictures at a time, at most; 0: as many as memory and speed suggest
  std::int64_t memory_bytes = 0;  // what the process may take in all, without a GPU's; 0: what is free
};

struct Picture {
  io::Image image;  // 8 bit, RGB or grey
  Request request;  // complete and for this one picture: its class, its seed, count 1, no field left open
  std::int64_t index = 0;  // within the run
};

// Called from the thread that runs. Throwing from any of them ends the run.
struct Observer {
  std::function<void(std::int64_t done, std::int64_t total)>
      on_evaluation;                          // of the network, over all batches
  std::function<void(Picture&&)> on_picture;  // in order of index
  std::int64_t preview_every = 0;             // steps; 0: never
  // The pictures that the network expects after `step` steps (counted from 1) of the batch now made.
  std::function<void(std::int64_t step, std::vector<Picture>&&)> on_preview;
  const std::atomic<bool>* stop =
      nullptr;  // set by a signal handler: the run ends with Stopped at the next step
};

struct Stopped {};  // thrown where Observer::stop was set

struct Forecast {
  std::int64_t pictures = 0, batch = 0, evaluations = 0;  // evaluations of the network, over all batches
  double macs = 0, seconds = 0;  // of the run; seconds from a short measurement on this machine
  std::int64_t peak_bytes = 0;   // of the process at its largest; 0 on a GPU, where it is not forecast
  std::int64_t free_bytes =
      0;  // what the process may take: the limit, or what it has and the machine has free
  bool fits = true;
  std::string advice;  // where it does not: which flag would make it fit
};

class Engine {
 public:
  // `device` is where the network runs (device.h): noise is made on the host and pictures come back to it.
  explicit Engine(const std::filesystem::path& folder, std::string_view device = "cpu");
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  const ModelConfig& config() const;
  const std::filesystem::path& folder() const;
  const std::string& name() const;
  std::string device() const;  // "cpu", "cuda:0"
  // SHA-256 of model.safetensors, of the very bytes that the network is made of.
  const std::string& weights_hash() const;

  // The single pictures a request stands for, complete, in the order they are made. Every mistake in a
  // request is found here. A negative seed is drawn here.
  std::vector<Request> resolve(const Request& request) const;
  // Measures for a moment; a negative seed need not be drawn before.
  Forecast forecast(const Request& request, const Limits& limits = {});
  void run(const Request& request, const Limits& limits, const Observer& observer);
  std::vector<Picture> run(const Request& request, const Limits& limits = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::generate
