// Private to the room: what an Engine holds, and the one way in which a batch is sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/codec.h"
#include "pom/codecs/text.h"
#include "pom/generate/block_sampler.h"
#include "pom/generate/engine.h"
#include "pom/generate/model_files.h"
#include "pom/generate/plan.h"
#include "pom/generate/stream_state.h"
#include "pom/models/denoiser.h"

namespace pom::generate {

struct Engine::Impl {
  Impl(const std::filesystem::path& folder, c10::Device device);

  std::filesystem::path folder;
  c10::Device device;
  ModelFiles files;
  const ModelConfig& config;
  std::string name;
  codecs::Codec* codec;                          // of the files
  mutable std::mutex codec_options;              // set by the thread that runs, read by those that count
  std::unique_ptr<codecs::TextEncoder> encoder;  // of a network that reads text
  // Made when first needed, one for each dtype and window.
  std::map<std::pair<at::ScalarType, std::int64_t>, std::unique_ptr<models::Denoiser>> denoisers;

  // Tokens of a prompt, on the device. Prompts of the latest requests are kept.
  const codecs::EncodedText& encoded(const std::string& prompt);
  std::map<std::string, codecs::EncodedText> texts;

  ModelShape shape() const;
  // Of the weights that a run of this request reads first; 0 where its network is in memory already, and next
  // to nothing where they are.
  std::int64_t stored_bytes(const Request& request) const;
  models::Denoiser& denoiser(const Request& request);
  // One that nobody else uses, for a clip that goes on while others are made.
  std::unique_ptr<models::Denoiser> new_denoiser(const Request& request);
  Work work(const Job& job) const;
  // Sets the codec's options for the job, with the memory that is left for decoding.
  Plan plan(const Job& job, const Limits& limits) const;
  // On a GPU, whose memory is looked at when so many pictures are about to be decoded: in strips where the
  // whole does not fit.
  void make_room(const Request& request, std::int64_t items) const;
  // Of some items of a job.
  BatchSampling sampling(const Job& job, std::span<const Request> items,
                         const parallel::Ranks& ranks = {}) const;
  // The plan of a run: that of all its ranks, whose memory may differ.
  Plan plan_of_run(const Job& job, const Limits& limits) const;
  // Pixels (1, C, H, W) or (1, C, T, H, W) of the file that a job begins with; undefined where there is none.
  at::Tensor read_init(const Job& job) const;
  // What a run begins with, as latents.
  Inputs prepared(const Job& job, const Inputs& inputs) const;

  struct Speed {
    double setup = 0;      // seconds of a batch before its first evaluation
    double first = 0;      // what the very first evaluation takes beyond the others
    double per_mac = 0;    // with what the sampler does between evaluations
    double decode = 0;     // of one block of one item
    bool decoded = false;  // whether there was time for that
  };
  Speed measure(const Job& probe);  // samples for a moment
};

// A batch of a job, from noise to frames.
class BatchRun {
 public:
  // Items first … first + count - 1. `network`, job and observer live as long as this.
  BatchRun(Engine::Impl& engine, models::Denoiser& network, const Job& job, std::int64_t first,
           std::int64_t count, const Observer& observer, const Inputs& inputs, const parallel::Ranks& ranks);

  void run(const SamplingHooks& hooks);

  // The parts of a run, for a clip that is made on demand: where it begins; so many blocks from `block` on;
  // another prompt for all items, from the next block on; and its state, as Request::save_state has it.
  void begin();
  void pass(std::int64_t block, std::int64_t blocks, const SamplingHooks& hooks);
  void tell(const std::string& prompt);
  bool save_to(const std::filesystem::path& path,
               const StateNotes& more = {}) const;  // false before the first block

 private:
  std::span<const Request> items() const;
  models::Condition condition(std::span<const std::string> prompts) const;
  models::Condition class_condition() const;
  bool apply(const Job::Change& change);
  void tell_blocks(std::int64_t block, std::int64_t blocks);
  BlockStart start(std::int64_t block, std::int64_t blocks) const;
  at::Tensor make(std::int64_t block, std::int64_t blocks, const SamplingHooks& hooks);
  void run_blocks(const SamplingHooks& hooks);
  void give(const at::Tensor& latents, std::int64_t block);
  // Those of the batch that somebody wants.
  std::vector<std::int64_t> wanted() const;
  std::vector<Frames> frames_of(const at::Tensor& decoded, std::int64_t block,
                                std::span<const std::int64_t> rows) const;
  void preview(const diffusion::StepInfo& info, std::int64_t block);
  void save() const;

  Engine::Impl& engine_;
  const Job& job_;
  std::int64_t first_, count_;
  const Observer& observer_;
  parallel::Ranks ranks_;                         // who make it together
  Inputs inputs_;                                 // this batch's, on the device
  std::unique_ptr<codecs::ClipDecoder> decoder_;  // of a codec for clips
  std::vector<std::string> prompts_;              // of now
  bool told_ = false;                             // since the last block
  BlockSampler sampler_;
  std::int64_t passed_ = 0;  // blocks of this run
};

}  // namespace pom::generate
