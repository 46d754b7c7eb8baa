// EDM2's latents (REPA's too): a .npy for each picture, mean and deviation of Stable Diffusion's encoder,
// unscaled. There are millions of names: they are kept as one text.
#include <algorithm>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/latent_source.h"
#include "pom/io/json_labels.h"

namespace pom::data {
namespace {

constexpr double stable_diffusion_scale = 0.18215;
constexpr std::uint64_t most_latent_bytes = std::uint64_t{1} << 28;

// Relative, and down only.
bool stays_within(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string_view::npos) return false;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..") return false;
    at = end + 1;
  }
  return true;
}

class Edm2Folder final : public LatentSource {
 public:
  Edm2Folder(std::filesystem::path folder, const std::filesystem::path& list) : folder_(std::move(folder)) {
    const std::string site = list.string();
    std::int64_t most = -1;
    const bool found =
        io::read_json_labels(io::read_labels_text(list), site, [&](std::string& name, std::int64_t label) {
          check(stays_within(name), site, ": labels: expected names of files in the folder, got \"",
                shown(name), "\"");
          check(label < 1'000'000, site, ": labels: ", shown(name), ": expected a class below 1000000, got ",
                label);
          if (!name.ends_with(".npy")) return;  // of a data set that has images too
          names_ += name;
          ends_.push_back(names_.size());
          labels_.push_back(static_cast<std::int32_t>(label));
          most = std::max(most, label);
        });
    check(found, site, ": labels: expected a list of [name, class], got none");
    check(!ends_.empty(), site, ": labels: expected .npy files of latents, got none");
    for (std::int64_t i = 0; i <= most; ++i) classes_.push_back(std::to_string(i));
  }

  std::int64_t size() const override { return std::ssize(ends_); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::string name_of(std::int64_t index) const override { return path_of(index).string(); }

  LatentSample read(std::int64_t index) const override {
    const std::filesystem::path path = path_of(index);
    const std::string site = "npy read: " + path.string();
    const io::NpyArray array = io::read_npy_file(path, most_latent_bytes);
    check(array.header.shape.size() == 3 && array.header.count > 0, site,
          ": expected mean and deviation (2 channels, height, width), got ",
          io::npy_shape_text(array.header.shape));
    LatentSample sample = split_moments(array, site);
    check(std::ranges::none_of(sample.spread, [](float s) { return s < 0; }), site,
          ": expected deviations of 0 or more in the second half of the channels, got negative numbers: "
          "log-variances, or one latent with twice the channels");
    sample.label = labels_[static_cast<std::size_t>(index)];
    return sample;
  }

 private:
  std::filesystem::path path_of(std::int64_t index) const {
    check(index >= 0 && index < size(), "data: index: expected below ", size(), ", got ", index);
    const auto i = static_cast<std::size_t>(index);
    const std::uint64_t begin = i == 0 ? 0 : ends_[i - 1];
    return folder_ / std::string_view(names_).substr(begin, ends_[i] - begin);
  }

  std::filesystem::path folder_;
  std::string names_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::int32_t> labels_;
  std::vector<std::string> classes_;
};

}  // namespace

LatentSources open_edm2(const DataConfig& config) {
  check(config.quantization_scale == 0, "data: quantization_scale: expected none with data.layout edm2, got ",
        config.quantization_scale);
  const std::filesystem::path folder = config.path;
  const auto latents = std::make_shared<Edm2Folder>(folder, folder / "dataset.json");
  take_scale(config, stable_diffusion_scale, *latents);
  return latents;
}

}  // namespace pom::data
