// Folders of pictures as a data set. Pictures are decoded when they are asked for, never before.
#include "pom/data/folder.h"

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/data/mirror.h"
#include "pom/data/resize.h"
#include "pom/io/picture.h"

namespace pom::data {
namespace {

class PictureFolder final : public Dataset {
 public:
  PictureFolder(std::shared_ptr<const FileTree> tree, const DataConfig& config, bool flip, std::uint64_t seed)
      : tree_(std::move(tree)), width_(config.size[0]), height_(config.size[1]), flip_(flip), seed_(seed) {}

  std::int64_t size() const override { return std::ssize(tree_->files); }
  const std::vector<std::string>& classes() const override { return tree_->classes; }
  std::vector<std::int64_t> shape() const override { return {3, height_, width_}; }

  Example get(std::int64_t index, std::int64_t visit) const override {
    const io::Image picture = io::to_rgb8(io::read_picture(tree_->path_of(index), max_data_pixels));
    Example example{at::empty({3, height_, width_}, at::kByte),
                    tree_->files[static_cast<std::size_t>(index)].label};
    const std::span<std::uint8_t> bytes(example.picture.data_ptr<std::uint8_t>(),
                                        static_cast<std::size_t>(3 * height_ * width_));
    resize_and_crop(picture, width_, height_, bytes);
    if (flip_ && is_mirrored(seed_, index, visit)) mirror(bytes, width_);
    return example;
  }

  std::string name_of(std::int64_t index) const override { return tree_->path_of(index).string(); }

 private:
  std::shared_ptr<const FileTree> tree_;
  std::int64_t width_, height_;
  bool flip_;
  std::uint64_t seed_;
};

}  // namespace

const std::vector<std::string_view>& picture_endings() {
  static const std::vector<std::string_view> endings = {".png", ".jpg", ".jpeg"};
  return endings;
}

FileSets open_picture_folder(const DataConfig& config, std::uint64_t seed) {
  check_picture_size(config);
  const auto tree = std::make_shared<FileTree>(find_files(config.path, picture_endings(), "images"));
  return {std::make_shared<PictureFolder>(tree, config, config.flip, seed),
          std::make_shared<PictureFolder>(tree, config, false, seed)};
}

}  // namespace pom::data
