// Latents of any layout as a data set: draws, scales, and checks that all examples are of one shape.
#include "pom/data/shards.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <system_error>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/base/suggest.h"
#include "pom/data/latent_source.h"
#include "pom/data/shard_format.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

class ShardedLatents final : public Dataset {
 public:
  ShardedLatents(LatentSources source, bool sampled, std::uint64_t seed)
      : source_(std::move(source)), sampled_(sampled), seed_(seed) {
    const LatentSample first = first_sample();
    shape_ = first.shape;
    text_shape_ = first.text_shape;
  }

  std::int64_t size() const override { return source_->size(); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  std::vector<std::int64_t> shape() const override { return shape_; }
  std::vector<std::int64_t> text_shape() const override { return text_shape_; }
  std::vector<std::int64_t> groups() const override { return source_->groups(); }
  bool latents() const override { return true; }
  std::string name_of(std::int64_t index) const override { return source_->name_of(index); }

  Example get(std::int64_t index, std::int64_t visit) const override {
    LatentSample sample = source_->read(index);
    check_shape(sample.shape, shape_, "a latent", index);
    check_shape(sample.text_shape, text_shape_, "text states", index);
    Example example{at::empty(shape_, at::kFloat), sample.label, std::move(sample.caption)};
    const std::span<float> values(example.picture.data_ptr<float>(), sample.mean.size());
    std::memcpy(values.data(), sample.mean.data(), values.size_bytes());
    if (sampled_ && !sample.spread.empty()) add_noise(index, visit, sample.spread, values);
    scale_and_check(values, index);
    if (!text_shape_.empty()) take_text(sample, example);
    return example;
  }

 private:
  // The first that can be read says what all are like.
  LatentSample first_sample() const {
    std::string error;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(size(), 16); ++i) {
      try {
        return source_->read(i);
      } catch (const Error& broken) {
        if (error.empty()) error = broken.what();
      }
    }
    fail(error.empty() ? "data: path: expected examples, got none" : error);
  }

  void check_shape(std::span<const std::int64_t> shape, std::span<const std::int64_t> expected,
                   std::string_view what, std::int64_t index) const {
    check(std::ranges::equal(shape, expected), "latents: ", name_of(index), ": expected ", what, " ",
          io::npy_shape_text(expected), " as the first has, got ", io::npy_shape_text(shape));
  }

  // Keyed as in latents.cpp: a function of seed, visit and index.
  void add_noise(std::int64_t index, std::int64_t visit, std::span<const float> spread,
                 std::span<float> values) const {
    std::vector<float> noise(values.size());
    const NoiseKey key{seed_, noise_for::codec, static_cast<std::uint32_t>(visit)};
    fill_normal(noise.data(), std::ssize(noise), key, index * std::ssize(noise));
    add_drawn(values, spread, noise);
  }

  void scale_and_check(std::span<float> values, std::int64_t index) const {
    const auto scale = static_cast<float>(source_->scale), shift = static_cast<float>(source_->shift);
    check(scale_latent(values, shift, scale), "latents: ", name_of(index),
          ": expected finite numbers, got others");
  }

  void take_text(const LatentSample& sample, Example& example) const {
    example.text = at::empty(text_shape_, at::kHalf);
    std::memcpy(example.text.data_ptr(), sample.text.data(), sample.text.size() * sizeof(std::uint16_t));
    example.text_mask = at::empty({text_shape_[0]}, at::kBool);
    std::memcpy(example.text_mask.data_ptr(), sample.mask.data(), sample.mask.size());
  }

  LatentSources source_;
  std::vector<std::int64_t> shape_, text_shape_;
  bool sampled_;
  std::uint64_t seed_;
};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Ours begins with its format; EDM2's has labels and is long: only the beginning is looked at.
bool says_labels(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string head(4096, '\0');
  stream.read(head.data(), std::ssize(head));
  return head.find("\"labels\"") != std::string::npos && head.find("\"format\"") == std::string::npos;
}

LatentSources open_layout(const DataConfig& config, const std::string& layout, const char* homm_index) {
  if (layout == "libpom") return open_own_shards(config);
  if (layout == "homm") return open_homm_pictures(config, homm_index);
  if (layout == "homm-video") return open_homm_clips(config, homm_index);
  return open_edm2(config);
}

}  // namespace

void take_scale(const DataConfig& config, double scale, LatentSource& source) {
  source.scale = config.scale != 0 ? config.scale : scale;
  source.shift = config.shift;
}

std::string layout_of(const DataConfig& config) {
  const fs::path folder = config.path;
  const bool clips = config.kind == "clip_shards";
  check(!config.path.empty(), "data: path: expected the folder of the shards, got nothing");
  std::error_code error;
  check(fs::is_directory(folder, error), "data: path: ", config.path, ": expected a folder of shards, got ",
        fs::exists(folder, error) ? "a file" : "no such folder");
  if (config.layout != "auto") {
    const std::vector<std::string> fitting = clips ? std::vector<std::string>{"libpom", "homm-video"}
                                                   : std::vector<std::string>{"libpom", "homm", "edm2"};
    check(std::ranges::find(fitting, config.layout) != fitting.end(), "data: layout: expected auto, ",
          clips ? "libpom or homm-video" : "libpom, homm or edm2", " with data.kind ", config.kind,
          ", got \"", config.layout, "\"", suggestion(config.layout, fitting));
    return config.layout;
  }
  const fs::path own = folder / shard_set_file;
  if (is_file(own)) return !clips && says_labels(own) ? "edm2" : "libpom";
  check(is_file(folder / "index.json"), "data: path: ", config.path,
        ": expected dataset.json (libpom's shards, EDM2's latents) or index.json (the authors' shards), got "
        "neither");
  return clips ? "homm-video" : "homm";
}

std::optional<ShardSetInfo> own_shard_set(const DataConfig& config) {
  if (layout_of(config) != "libpom") return {};
  return read_shard_set(fs::path(config.path) / shard_set_file);
}

ShardSets open_shards(const DataConfig& config, std::uint64_t seed) {
  check(!config.flip,
        "data: flip: expected false: latents cannot be mirrored; encode mirrored images instead");
  const std::string layout = layout_of(config);
  const LatentSources training = open_layout(config, layout, "index.json");
  const char* validation_index = "val_index.json";
  const bool apart = layout.starts_with("homm") && is_file(fs::path(config.path) / validation_index);
  const LatentSources validation = apart ? open_layout(config, layout, validation_index) : training;
  return {{std::make_shared<ShardedLatents>(training, true, seed),
           std::make_shared<ShardedLatents>(validation, false, seed)},
          apart};
}

}  // namespace pom::data
