// The networks that benchmarks time: random weights, none of them zero, so that no block is the identity.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "cli/bench/timing.h"
#include "pom/models/config.h"

namespace pom::cli {

struct BatchSize {
  std::int64_t pictures = 1;
  std::int64_t side = 1;     // rows of tokens, and columns unless there are others
  std::int64_t columns = 0;  // 0: as many as rows
  std::int64_t blocks = 1;   // of clips
  std::int64_t words = 0;    // of clips: pieces of the text
  std::int64_t width() const { return columns > 0 ? columns : side; }
  std::int64_t tokens() const { return blocks * side * width(); }
};

struct BenchOptions;
// The network `named`, with what the options say of its sizes.
models::NetworkConfig sized(models::NetworkConfig named, const BenchOptions& options);

// An evaluation by models::Denoiser; of clips one that is guided, of the blocks after so many others.
Call evaluation(const models::NetworkConfig& config, at::ScalarType dtype, const at::Device& device,
                const BatchSize& size, std::int64_t before = 0);

// A network that is trained, made once and used for every length.
class Trainee {
 public:
  struct Options {
    std::string precision;  // "bf16" or "fp32", as recipes say it
    bool update = false;    // an AdamW step belongs to each step
    bool graphs = true;     // on a GPU
  };
  Trainee(const models::NetworkConfig& config, Options options, const at::Device& device);
  ~Trainee();
  Trainee(const Trainee&) = delete;
  Trainee& operator=(const Trainee&) = delete;

  // Forward, the mean of the squares, backward: as the learner does it in a CUDA graph, unless that cannot be
  // captured or would take so much of the GPU's memory that not all contenders' fit. Valid while this lives.
  Prepared step(const BatchSize& size);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::cli
