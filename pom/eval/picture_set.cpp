#include "pom/eval/picture_set.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/eval/shapes_eval.h"
#include "pom/io/mapped_file.h"
#include "pom/io/npz.h"
#include "pom/io/picture.h"
#include "pom/io/webdataset.h"

namespace pom::eval {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> picture_endings = {"png", "jpg", "jpeg"};
constexpr std::uint64_t largest_picture = std::uint64_t{1} << 30;  // bytes of a file

bool ends_as_picture(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos) return false;
  std::string ending = name.substr(dot + 1);
  std::ranges::transform(ending, ending.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return std::ranges::find(picture_endings, ending) != picture_endings.end();
}

at::Tensor planes(const io::Image& image) {
  return stack_pictures(std::span(&image, 1))[0];
}

class PictureFolder final : public PictureSet {
 public:
  explicit PictureFolder(const std::string& path) {
    std::error_code error;
    for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code gone;
      if (entry->is_regular_file(gone) && ends_as_picture(entry->path().filename().string()))
        files_.push_back(entry->path());
    }
    check(!error, "eval: ", path, ": cannot list it: ", error.message());
    check(!files_.empty(), "eval: ", path, ": expected pictures (png, jpg) in it or below it, got none");
    std::ranges::sort(files_);
  }
  std::int64_t count() const override { return std::ssize(files_); }
  at::Tensor read(std::int64_t index) const override {
    return planes(io::read_picture(files_[static_cast<std::size_t>(index)]));
  }
  std::string format() const override { return "folder"; }

 private:
  std::vector<fs::path> files_;
};

class NpzPictures final : public PictureSet {
 public:
  explicit NpzPictures(const std::string& path)
      : file_(path, "eval"), npz_(file_.view(), "eval: " + path, ~std::uint64_t{0}) {
    const io::Npz::Entry* entry = npz_.find("arr_0");
    check(entry != nullptr, "eval: ", path, ": expected arr_0, pictures (N, H, W, 3), got a file without it");
    if (entry->deflated) {
      check(entry->size <= std::uint64_t{4} << 30, "eval: ", path,
            ": arr_0: expected it stored, or at most 4 GiB deflated, got ", entry->size, " bytes");
      held_ = npz_.bytes(*entry);
      bytes_ = held_;
    } else {
      bytes_ = npz_.stored(*entry);
    }
    header_ = io::parse_npy(bytes_, "eval: " + path + ": arr_0");
    check(header_.type == io::NpyType::uint8 && header_.shape.size() == 4 && header_.shape[3] == 3 &&
              !header_.fortran && header_.shape[0] > 0,
          "eval: ", path, ": arr_0: expected uint8 of shape (N, H, W, 3), got shape ",
          io::npy_shape_text(header_.shape));
  }
  std::int64_t count() const override { return header_.shape[0]; }
  at::Tensor read(std::int64_t index) const override {
    const std::int64_t H = header_.shape[1], W = header_.shape[2];
    at::Tensor rows = at::empty({H, W, 3}, at::kByte);
    const auto size = static_cast<std::size_t>(H * W * 3);
    std::memcpy(rows.data_ptr(), bytes_.data() + header_.data + size * static_cast<std::size_t>(index), size);
    return rows.permute({2, 0, 1}).contiguous();
  }
  std::string format() const override { return "npz"; }

 private:
  io::MappedFile file_;
  io::Npz npz_;
  std::string held_;
  std::string_view bytes_;
  io::NpyHeader header_;
};

class TarPictures final : public PictureSet {
 public:
  explicit TarPictures(const std::string& pattern) {
    for (const std::string& path : io::expand_webdataset(pattern)) {
      io::WebShard& shard = *shards_.emplace_back(std::make_unique<io::WebShard>(path));
      for (io::WebSample sample; shard.next(sample);) {
        const auto field = std::ranges::find_if(
            sample.fields, [](const io::WebField& f) { return ends_as_picture("." + f.name); });
        check(field != sample.fields.end(), shard.site(), ": ", sample.key,
              ": expected a picture (png, jpg) in each sample, got none");
        items_.push_back({&shard, *field, sample.key});
      }
    }
    check(!items_.empty(), "eval: ", pattern, ": expected pictures, got none");
  }
  std::int64_t count() const override { return std::ssize(items_); }
  at::Tensor read(std::int64_t index) const override {
    const Item& item = items_[static_cast<std::size_t>(index)];
    const std::string bytes = item.shard->read(item.field, largest_picture);
    return planes(io::parse_picture(std::as_bytes(std::span(bytes)), item.shard->site() + ": " + item.key));
  }
  std::string format() const override { return "tars"; }

 private:
  struct Item {
    const io::WebShard* shard;
    io::WebField field;
    std::string key;
  };
  std::vector<std::unique_ptr<io::WebShard>> shards_;
  std::vector<Item> items_;
};

}  // namespace

bool may_have_pictures(const std::string& path) {
  if (!path.ends_with(".npz")) return true;
  const io::MappedFile file(path, "eval");
  return io::Npz(file.view(), "eval: " + path, ~std::uint64_t{0}).find("arr_0") != nullptr;
}

std::unique_ptr<PictureSet> open_pictures(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return std::make_unique<PictureFolder>(path);
  if (path.ends_with(".npz")) return std::make_unique<NpzPictures>(path);
  if (path.ends_with(".tar")) return std::make_unique<TarPictures>(path);
  fail("eval: expected a folder of pictures, a .npz or .tar files, got ", path);
}

}  // namespace pom::eval
