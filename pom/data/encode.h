// Pictures and clips become data sets of latents (shard_format.h): `pom encode`. Shard k is made of the k-th
// run of the source's items, whichever of them are broken, so that machines can share the shards, and who was
// killed goes on after the last whole one: what lies there at the end is the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "pom/data/encode_source.h"

namespace pom::data {

struct EncodeOptions {
  std::string source, output;
  std::string vae;        // folder of an autoencoder, or a model's
  std::string text = {};  // likewise of a T5, for clips; empty: captions alone
  std::int64_t text_limit = 64;
  EncodeFormat format = {};
  bool mirror = false;                // the mirrored picture follows each
  std::string store = "moments";      // or "latent", drawn with `seed`
  std::string stored_dtype = "fp16";  // or "fp32"
  std::int64_t seed = 0;
  std::int64_t per_shard = 1000;                 // samples, mirrored ones too
  std::int64_t batch = 8;                        // samples
  std::int64_t workers = 0;                      // threads that decode; 0: by the cores
  std::int64_t part = 0, parts = 1;              // this machine's, of all
  std::optional<double> scale = {}, shift = {};  // for dataset.json; else as the autoencoder's config has
                                                 // them, of chunks alone 1 and 0
  c10::Device device = c10::kCPU;
  at::ScalarType dtype = at::kFloat;  // of the networks
  std::string chunks = "cached";      // of clips: CodecOptions
  bool overwrite = false;             // a data set that is finished, or was begun in another way
};

// Of the part, if nothing is broken.
struct EncodePlan {
  std::int64_t items = 0, samples = 0, shards = 0, bytes = 0;
  std::int64_t all_items = 0, all_shards = 0;
};

struct EncodeWatcher {
  std::function<void(std::int64_t items)> on_items = {};  // of the part, so far; at first those done before
  std::function<void(const std::string& name, const std::string& why)> on_broken = {};
  std::function<void(const std::string& text)> on_remark = {};
  std::function<bool()> stop = {};  // asked now and then: true ends the run after a batch
};

struct EncodeResult {
  std::int64_t samples = 0, shards = 0, bytes = 0;  // of the part, those before a restart too
  std::int64_t broken = 0;                          // items that are missing from it
  bool before = false;                              // nothing was left to be done
  bool stopped = false;
  bool whole = false;  // dataset.json is there: of all parts
};

class EncodeRun {
 public:
  // Opens source and networks. What is wrong with the options is found here; nothing is written.
  explicit EncodeRun(EncodeOptions options);
  ~EncodeRun();

  EncodePlan plan() const;
  // Goes on where a run before has ended. A run that finds nothing but broken items is an error.
  EncodeResult run(const EncodeWatcher& watcher = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::data
