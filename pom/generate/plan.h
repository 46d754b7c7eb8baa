// Private to the room: how a run is cut into batches, and what memory it takes.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>

#include "pom/codecs/codec.h"
#include "pom/generate/engine.h"

namespace pom::generate {

at::ScalarType dtype_of(const Request& request);
// In which the codec runs beside it: 8 bits are for the network alone.
at::ScalarType codec_dtype(const Request& request);
std::int64_t rows_of(const Request& request);  // that the network sees of one item: 2 where it is guided

// A run as work: items whole, with all of their blocks at once, or as streams, one block after the other.
struct Work {
  std::int64_t items = 1;
  std::int64_t blocks = 1;  // of each; 0: without end
  bool clip = false;        // written to a file of its own as a whole
  bool stream = false;
  bool on_gpu = false;  // whose memory is not counted; that of the host is

  std::int64_t blocks_at_once() const { return stream ? 1 : blocks; }
};

// Bytes of a run beyond what the process has anyway.
struct RunMemory {
  std::int64_t weights = 0;       // while they are read and made ready, and then
  std::int64_t fixed = 0;         // once
  std::int64_t per_item = 0;      // of a batch
  std::int64_t decode = 0;        // while an item is decoded, one after another
  std::int64_t least_decode = 0;  // where it is done in strips

  std::int64_t of(std::int64_t batch) const { return weights + fixed + decode + batch * per_item; }
  // Decoding takes what is left of so many bytes where the whole does not fit, but no less than it must.
  // Gives CodecOptions.memory: 0 where it need not be bound.
  std::int64_t decode_within(std::int64_t bytes);
};
// request is complete; `stored`: bytes of the weights' file, 0 where the network of this dtype is in memory
// already.
RunMemory run_memory(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
                     const Work& work, std::int64_t stored);

struct Plan {
  std::int64_t items = 0, batch = 0, batches = 0;
  std::int64_t peak_bytes = 0, free_bytes = 0;  // as in Forecast, from counting alone
  std::int64_t decode_memory = 0;               // CodecOptions.memory
  bool fits = true;

  // Batches of nearly one size: where batch i begins.
  std::int64_t begin(std::int64_t i) const { return i * items / batches; }
};
// Items at a time below which the device is short of work.
std::int64_t batch_for_speed(const ModelConfig& config, std::int64_t factor, const Request& request,
                             const Work& work);
Plan make_plan(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
               const Work& work, const Limits& limits, std::int64_t stored);

// Which flag would make a single item of the request fit; empty where none would.
std::string advice(const ModelConfig& config, const codecs::Codec& codec, const Request& request,
                   const Work& work, const Plan& plan, std::int64_t stored);

// "sample: memory: …", for a run that does not fit.
std::string refusal(const Work& work, const Plan& plan, const std::string& advice);

}  // namespace pom::generate
