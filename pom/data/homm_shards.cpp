// The authors' own shards: tars of .npz beside a list of them. Nothing in them says which codec, and the list
// may say a quantisation that nobody applied.
#include <algorithm>
#include <cmath>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/latent_source.h"
#include "pom/data/shard_files.h"
#include "pom/io/json_fields.h"
#include "pom/io/npz.h"

namespace pom::data {
namespace {

constexpr std::int64_t homm_classes = 1000;
constexpr std::uint64_t most_npz_bytes = std::uint64_t{1} << 30;

// An element of index.json.
struct HommShard {
  std::string filename = {};
  std::int64_t count = -1;
  double quantization_scale = 0;  // 0: it says nothing

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "filename", .help = "path, as it was typed"}, filename);
    visit(Field{.name = "count", .help = "samples", .least = 0, .most = 1e12}, count);
    visit(Field{.name = "quantization_scale", .help = "what was multiplied"}, quantization_scale);
  }
};

std::vector<HommShard> read_homm_index(const std::filesystem::path& file) {
  const std::string site = file.string();
  std::vector<HommShard> shards = io::read_json_records<HommShard>(io::read_json_text(file), site);
  check(!shards.empty(), site, ": expected shards, got none");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    // The path is that of the machine where it was written: the file is beside the list.
    std::string& name = shards[i].filename;
    name = name.substr(name.rfind('/') + 1);
    check(!name.empty() && name != "." && name != ".." && name.find('\0') == std::string::npos, site, ": [",
          i, "]: filename: expected a file, got \"", shown(name), "\"");
    check(shards[i].count >= 0, site, ": [", i, "]: count: expected it, got none");
  }
  return shards;
}

std::vector<ShardFile> homm_files(const std::vector<HommShard>& shards) {
  std::vector<ShardFile> files;
  for (const HommShard& shard : shards) files.push_back({shard.filename, shard.count, 0});
  return files;
}

// The one .npz among the members of a sample.
class HommSample {
 public:
  HommSample(const ShardFiles& files, std::int64_t index) : found_(files.read(index)) {
    for (const io::TarMember& member : io::list_tar_range(found_.bytes, found_.begin, found_.site)) {
      if (!member.is_file()) continue;
      site_ = detail::concat(found_.site, ": member \"", shown(member.name), "\"");
      const auto from = static_cast<std::size_t>(member.data - found_.begin);
      npz_.emplace(std::string_view(found_.bytes).substr(from, static_cast<std::size_t>(member.size)), site_,
                   most_npz_bytes);
      return;
    }
    fail(found_.site, ": at byte ", found_.begin, ": expected a member, got none: the shard has changed");
  }

  const io::Npz& npz() const { return *npz_; }
  std::string of(std::string_view array) const { return detail::concat(site_, ": ", array); }
  const std::string& site() const { return site_; }

 private:
  ShardFiles::Bytes found_;
  std::string site_;
  std::optional<io::Npz> npz_;
};

class HommPictures final : public LatentSource {
 public:
  HommPictures(const std::filesystem::path& folder, const std::vector<HommShard>& shards,
               double override_scale)
      : files_(folder, homm_files(shards), ShardUnit::members) {
    for (const HommShard& shard : shards)
      quantization_.push_back(override_scale > 0 ? override_scale : shard.quantization_scale);
    for (std::int64_t i = 0; i < homm_classes; ++i) classes_.push_back(std::to_string(i));
  }

  std::int64_t size() const override { return files_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::vector<std::int64_t> groups() const override { return files_.counts(); }
  std::string name_of(std::int64_t index) const override { return files_.name_of(index); }

  LatentSample read(std::int64_t index) const override {
    const HommSample file(files_, index);
    const io::NpyArray mean = file.npz().read("arr_0"), spread = file.npz().read("arr_1");
    const std::vector<std::int64_t>& shape = mean.header.shape;
    check(shape.size() == 3 && mean.header.count > 0, file.of("arr_0"),
          ": expected a mean (channels, height, width), got ", io::npy_shape_text(shape));
    check(spread.header.shape == shape, file.of("arr_1"), ": expected the shape of the mean, ",
          io::npy_shape_text(shape), ", got ", io::npy_shape_text(spread.header.shape));
    LatentSample sample;
    sample.shape = shape;
    sample.mean = floats_of(mean, file.of("arr_0"));
    sample.spread = floats_of(spread, file.of("arr_1"));
    const auto q = static_cast<float>(quantization_[files_.place_of(index).shard]);
    for (float& value : sample.mean) value /= q;
    for (float& value : sample.spread) value /= 1000 * q;
    check(std::ranges::none_of(sample.spread, [](float s) { return s < 0; }), file.of("arr_1"),
          ": expected deviations of 0 or more, got negative ones");
    sample.label = integer_of(file.npz().read("arr_2"), file.of("arr_2"));
    check(sample.label >= 0 && sample.label < homm_classes, file.of("arr_2"), ": expected a class below ",
          homm_classes, ", got ", sample.label);
    return sample;
  }

  double quantization(std::int64_t index) const { return quantization_[files_.place_of(index).shard]; }
  bool stored_as_integers(std::int64_t index) const {
    return HommSample(files_, index).npz().read("arr_0").header.type == io::NpyType::int8;
  }

 private:
  ShardFiles files_;
  std::vector<double> quantization_;
  std::vector<std::string> classes_;
};

// fp16 shards were never multiplied by the scale that their list has; their reader divides all the same, so
// that latents are eight times too small and training fails slowly.
void check_trap(const HommPictures& pictures, const std::string& site) {
  std::vector<float> values;
  const std::int64_t count = std::min<std::int64_t>(pictures.size(), 16);
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      const std::vector<float> mean = pictures.read(i).mean;
      values.insert(values.end(), mean.begin(), mean.end());
    } catch (const Error&) {  // which the loader passes over and names
    }
  }
  const double q = pictures.quantization(0), deviation = deviation_of(values);
  const bool trap = !values.empty() && !pictures.stored_as_integers(0) && q > 1.5 && deviation < 0.4 &&
                    deviation * q > 0.5 && deviation * q < 2;
  check(!trap, site, ": quantization_scale: expected latents whose deviation is near 1, got ", deviation,
        " after dividing by ", q,
        ": in fp16 nothing is multiplied when shards are written, whatever the list says; set "
        "data.quantization_scale = 1, or = ",
        q, " if these latents are really so small");
}

class HommClips final : public LatentSource {
 public:
  HommClips(const std::filesystem::path& folder, const std::vector<HommShard>& shards)
      : files_(folder, homm_files(shards), ShardUnit::members) {}

  std::int64_t size() const override { return files_.size(); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::vector<std::int64_t> groups() const override { return files_.counts(); }
  std::string name_of(std::int64_t index) const override { return files_.name_of(index); }

  LatentSample read(std::int64_t index) const override {
    const HommSample file(files_, index);
    const io::NpyArray latent = file.npz().read("arr_0"), text = file.npz().read("arr_1"),
                       mask = file.npz().read("arr_2");
    LatentSample sample;
    sample.shape = latent.header.shape;
    check(sample.shape.size() == 4 && latent.header.count > 0, file.of("arr_0"),
          ": expected latents (channels, frames, height, width), got ", io::npy_shape_text(sample.shape));
    sample.mean = floats_of(latent, file.of("arr_0"));
    sample.text_shape = text.header.shape;
    check(sample.text_shape.size() == 2, file.of("arr_1"), ": expected states (tokens, width), got ",
          io::npy_shape_text(sample.text_shape));
    sample.text = halves_of(text, file.of("arr_1"));
    sample.mask = flags_of(mask, file.of("arr_2"));
    check(std::ssize(sample.mask) == sample.text_shape[0], file.of("arr_2"), ": expected ",
          sample.text_shape[0], " flags, got ", sample.mask.size());
    if (file.npz().find("arr_3") != nullptr)
      sample.caption = io::npy_text(file.npz().read("arr_3"), file.of("arr_3"));
    return sample;
  }

 private:
  ShardFiles files_;
  std::vector<std::string> classes_;
};

}  // namespace

LatentSources open_homm_pictures(const DataConfig& config, std::string_view index) {
  const std::filesystem::path file = std::filesystem::path(config.path) / index;
  const std::string site = file.string();
  const std::vector<HommShard> shards = read_homm_index(file);
  for (std::size_t i = 0; i < shards.size(); ++i)
    check(config.quantization_scale > 0 || shards[i].quantization_scale > 0, site, ": [", i,
          "]: quantization_scale: expected above 0, got ",
          shards[i].quantization_scale == 0 ? "none; data.quantization_scale can say it" : "another number");
  const auto pictures = std::make_shared<HommPictures>(config.path, shards, config.quantization_scale);
  check(pictures->size() > 0, site, ": expected samples, got none");
  if (config.quantization_scale == 0) check_trap(*pictures, site);
  take_scale(config, 1, *pictures);
  return pictures;
}

LatentSources open_homm_clips(const DataConfig& config, std::string_view index) {
  const std::filesystem::path file = std::filesystem::path(config.path) / index;
  const auto clips = std::make_shared<HommClips>(config.path, read_homm_index(file));
  check(clips->size() > 0, file.string(), ": expected samples, got none");
  check(config.quantization_scale == 0,
        "data: quantization_scale: expected none with clips, which are not quantised, got ",
        config.quantization_scale);
  take_scale(config, 1, *clips);
  return clips;
}

}  // namespace pom::data
