// Data sets of our own shards. What is wrong with all of it is an error when it is opened.
#include "pom/base/error.h"
#include "pom/data/latent_source.h"
#include "pom/data/shard_files.h"
#include "pom/data/shard_format.h"

namespace pom::data {
namespace {

std::vector<ShardFile> files_of(const ShardSetInfo& info) {
  std::vector<ShardFile> files;
  for (std::size_t i = 0; i < info.shard_names.size(); ++i)
    files.push_back({info.shard_names[i], info.shard_counts[i], info.shard_bytes[i]});
  return files;
}

class OwnShards final : public LatentSource {
 public:
  OwnShards(const std::filesystem::path& folder, ShardSetInfo info)
      : info_(std::move(info)), files_(folder, files_of(info_), ShardUnit::samples) {
    scale = info_.scale;
    shift = info_.shift;
  }

  std::int64_t size() const override { return files_.size(); }
  const std::vector<std::string>& classes() const override { return info_.classes; }
  std::vector<std::int64_t> groups() const override { return files_.counts(); }
  std::string name_of(std::int64_t index) const override { return files_.name_of(index); }
  LatentSample read(std::int64_t index) const override {
    const ShardFiles::Bytes found = files_.read(index);
    return parse_shard_sample(found.bytes, found.begin, info_, found.site);
  }

 private:
  ShardSetInfo info_;
  ShardFiles files_;
};

}  // namespace

LatentSources open_own_shards(const DataConfig& config) {
  const std::filesystem::path file = std::filesystem::path(config.path) / shard_set_file;
  ShardSetInfo info = read_shard_set(file);
  const std::string site = file.string();
  const bool clips = config.kind == "clip_shards";
  check(info.clips() == clips, site, ": kind: expected ", clips ? "clips" : "pictures", " with data.kind ",
        config.kind, ", got ", info.kind);
  check(config.scale == 0 || config.scale == info.scale, site, ": scale: expected data.scale, ", config.scale,
        ", got ", info.scale);
  check(config.shift == 0 || config.shift == info.shift, site, ": shift: expected data.shift, ", config.shift,
        ", got ", info.shift);
  check(config.quantization_scale == 0, "data: quantization_scale: expected none: ", site,
        " needs none, got ", config.quantization_scale);
  check_shard_codec(info, config.codec_hash, config.text_hash, site);
  return std::make_shared<OwnShards>(config.path, std::move(info));
}

}  // namespace pom::data
