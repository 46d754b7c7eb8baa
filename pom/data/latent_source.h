// Where encoded examples come from: one class for each form in which people keep latents on disk. Reading
// knows nothing of chance and scale; shards.cpp makes a data set of it. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pom/data/dataset.h"
#include "pom/data/latent_sample.h"

namespace pom::data {

class LatentSource {
 public:
  virtual ~LatentSource() = default;

  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;
  // From many threads; a pom::Error names the file where it cannot be read.
  virtual LatentSample read(std::int64_t index) const = 0;
  virtual std::string name_of(std::int64_t index) const = 0;
  // Sizes of the runs of examples that lie together, one file each; empty: each is a file of its own.
  virtual std::vector<std::int64_t> groups() const { return {}; }

  double scale = 1, shift = 0;  // training sees (latent - shift) * scale
};

using LatentSources = std::shared_ptr<const LatentSource>;

// Ours: a folder with dataset.json and shards (shard_format.h).
LatentSources open_own_shards(const DataConfig& config);

// The authors' pictures: index.json, tars of .npz with mean, 1000 · deviation and class, times 0.18215
// already. `index` is "index.json" or "val_index.json".
LatentSources open_homm_pictures(const DataConfig& config, std::string_view index);
// The authors' clips: tars of .npz with latents, text states, mask and caption, unscaled.
LatentSources open_homm_clips(const DataConfig& config, std::string_view index);

// EDM2's: a folder with dataset.json ({"labels": [[name, class], …]}) and a .npy (mean, deviation) for each.
LatentSources open_edm2(const DataConfig& config);

// "libpom", "homm", "homm-video" or "edm2": as the config says, else by the files.
std::string layout_of(const DataConfig& config);

// Of a layout that says nothing of scale and shift: the config's, or these.
void take_scale(const DataConfig& config, double scale, LatentSource& source);

}  // namespace pom::data
