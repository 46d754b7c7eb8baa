// Latents in safetensors files: what a variational encoder made of pictures, mean and standard deviation.
// C channels of h x w.
#include <cstring>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/folder.h"
#include "pom/io/safetensors.h"

namespace pom::data {
namespace {

namespace st = io::safetensors;

std::string text(std::span<const std::int64_t> shape) {
  std::string list = "(";
  for (const std::int64_t side : shape) list += (list.size() > 1 ? ", " : "") + std::to_string(side);
  return list + ")";
}

template <class Element>
void widen(const st::Buffer& from, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Element element;
    std::memcpy(&element, from.data() + i * sizeof(Element), sizeof(Element));
    to[i] = static_cast<float>(element);
  }
}

void read_floats(const st::Reader& reader, const st::TensorInfo& tensor, std::span<float> to) {
  const st::Buffer bytes = reader.read(tensor.name);
  if (tensor.dtype == st::Dtype::F32) return widen<float>(bytes, to);
  if (tensor.dtype == st::Dtype::F16) return widen<c10::Half>(bytes, to);
  return widen<c10::BFloat16>(bytes, to);
}

void check_tensor(const std::string& file, const st::TensorInfo& tensor,
                  std::span<const std::int64_t> shape) {
  check(std::ranges::equal(tensor.shape, shape), "latents: ", file, ": ", tensor.name,
        ": expected the shape ", text(shape), " of the first file, got ", text(tensor.shape));
  const bool known =
      tensor.dtype == st::Dtype::F32 || tensor.dtype == st::Dtype::F16 || tensor.dtype == st::Dtype::BF16;
  check(known, "latents: ", file, ": ", tensor.name, ": expected F32, F16 or BF16, got ",
        st::name(tensor.dtype));
}

class Latents final : public Dataset {
 public:
  Latents(std::shared_ptr<const FileTree> tree, std::vector<std::int64_t> shape, bool sampled,
          std::uint64_t seed)
      : tree_(std::move(tree)), shape_(std::move(shape)), sampled_(sampled), seed_(seed) {}

  std::int64_t size() const override { return std::ssize(tree_->files); }
  const std::vector<std::string>& classes() const override { return tree_->classes; }
  std::vector<std::int64_t> shape() const override { return shape_; }
  bool latents() const override { return true; }

  Example get(std::int64_t index, std::int64_t visit) const override {
    const std::string file = name_of(index);
    const st::Reader reader(file);
    const st::TensorInfo& mean = reader.header().at("mean");
    const st::TensorInfo* spread = reader.header().find("std");
    check_tensor(file, mean, shape_);
    if (spread != nullptr) check_tensor(file, *spread, shape_);
    Example example{at::empty(shape_, at::kFloat), tree_->files[static_cast<std::size_t>(index)].label};
    const std::span<float> values(example.picture.data_ptr<float>(),
                                  static_cast<std::size_t>(example.picture.numel()));
    read_floats(reader, mean, values);
    if (sampled_ && spread != nullptr) {
      std::vector<float> width(values.size());
      read_floats(reader, *spread, width);
      add_noise(index, visit, width, values);
    }
    return example;
  }

  std::string name_of(std::int64_t index) const override { return tree_->path_of(index).string(); }

 private:
  void add_noise(std::int64_t index, std::int64_t visit, std::span<const float> width,
                 std::span<float> values) const {
    std::vector<float> noise(values.size());
    const NoiseKey key{seed_, noise_for::codec, static_cast<std::uint32_t>(visit)};
    fill_normal(noise.data(), std::ssize(noise), key, index * std::ssize(noise));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += width[i] * noise[i];
  }

  std::shared_ptr<const FileTree> tree_;
  std::vector<std::int64_t> shape_;
  bool sampled_;
  std::uint64_t seed_;
};

std::vector<std::int64_t> first_shape(const FileTree& tree) {
  const std::string file = tree.path_of(0).string();
  const st::Header header = st::read_header(file);
  const std::vector<std::int64_t>& shape = header.at("mean").shape;
  bool whole = shape.size() == 3;
  for (const std::int64_t side : shape) whole = whole && side > 0;
  check(whole, "latents: ", file, ": mean: expected a shape (channels, height, width), got ", text(shape));
  return shape;
}

}  // namespace

const std::vector<std::string_view>& latent_endings() {
  static const std::vector<std::string_view> endings = {".safetensors"};
  return endings;
}

FileSets open_latents(const DataConfig& config, std::uint64_t seed) {
  check(!config.flip,
        "data: flip: expected false: latents cannot be mirrored; encode mirrored images instead");
  const auto tree = std::make_shared<FileTree>(find_files(config.path, latent_endings(), "latents"));
  const std::vector<std::int64_t> shape = first_shape(*tree);
  return {std::make_shared<Latents>(tree, shape, true, seed),
          std::make_shared<Latents>(tree, shape, false, seed)};
}

}  // namespace pom::data
