#include "pom/data/encode_source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <system_error>

#include "pom/base/error.h"
#include "pom/data/clips.h"
#include "pom/data/folder.h"
#include "pom/data/resample.h"
#include "pom/io/clip.h"
#include "pom/io/picture.h"
#include "pom/io/sha256.h"
#include "pom/io/webdataset.h"

namespace pom::data {
namespace {

namespace fs = std::filesystem;

std::size_t format_bytes(const EncodeFormat& format) {
  return static_cast<std::size_t>(3 * std::max<std::int64_t>(1, format.frames) * format.width *
                                  format.height);
}

void take_picture(io::Image&& picture, const EncodeFormat& format, EncodeItem& item) {
  item.pixels.resize(format_bytes(format));
  crop_picture(io::to_rgb8(std::move(picture)), format.crop, format.width, format.height, item.pixels.data());
}

class PictureTree final : public EncodeSource {
 public:
  explicit PictureTree(const std::string& root) : tree_(find_files(root, picture_endings(), "images")) {}

  std::int64_t size() const override { return std::ssize(tree_.files); }
  const std::vector<std::string>& classes() const override { return tree_.classes; }
  std::string name_of(std::int64_t index) const override { return entry(index).path; }
  std::string said_of(std::int64_t index) const override { return std::to_string(entry(index).label); }
  EncodeItem read(std::int64_t index, const EncodeFormat& format) const override {
    EncodeItem item;
    item.label = entry(index).label;
    take_picture(io::read_picture(tree_.path_of(index), max_data_pixels), format, item);
    return item;
  }

 private:
  const FileTree::Entry& entry(std::int64_t index) const {
    return tree_.files.at(static_cast<std::size_t>(index));
  }

  FileTree tree_;
};

class ClipList final : public EncodeSource {
 public:
  ClipList(fs::path root, std::vector<CaptionedClip> clips)
      : root_(std::move(root)), clips_(std::move(clips)) {}

  std::int64_t size() const override { return std::ssize(clips_); }
  const std::vector<std::string>& classes() const override { return none_; }
  std::string name_of(std::int64_t index) const override {
    return clip(index).path.lexically_relative(root_).generic_string();
  }
  std::string said_of(std::int64_t index) const override { return clip(index).caption; }
  EncodeItem read(std::int64_t index, const EncodeFormat& format) const override {
    const CaptionedClip& found = clip(index);
    check(!found.caption.empty(), "clip read: ", found.path.string(), ": expected a caption, got none");
    EncodeItem item;
    item.caption = found.caption;
    read_encode_clip(found.path.string(), format, item);
    return item;
  }

 private:
  const CaptionedClip& clip(std::int64_t index) const { return clips_.at(static_cast<std::size_t>(index)); }

  fs::path root_;
  std::vector<CaptionedClip> clips_;
  std::vector<std::string> none_;
};

// Names of tars in a folder without folders of classes, sorted.
std::vector<std::string> tars_in(const fs::path& folder) {
  std::vector<std::string> tars;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.extension() == ".tar" && !path.filename().string().starts_with('.'))
      tars.push_back(path.string());
  }
  std::ranges::sort(tars);
  return tars;
}

bool names_tars(const std::string& path) {
  return path.ends_with(".tar") || path.find(".tar::") != std::string::npos ||
         (path.find(".tar") != std::string::npos && path.find('{') != std::string::npos);
}

void put_frame(const io::Image& frame, const EncodeFormat& format, std::int64_t at,
               std::vector<std::uint8_t>& out, std::vector<std::uint8_t>& planes) {
  const auto pixels = static_cast<std::size_t>(format.width * format.height);
  crop_picture(frame, format.crop, format.width, format.height, planes.data());
  for (std::size_t c = 0; c < 3; ++c)
    std::copy_n(
        planes.data() + c * pixels, pixels,
        out.data() + (c * static_cast<std::size_t>(format.frames) + static_cast<std::size_t>(at)) * pixels);
}

}  // namespace

std::string EncodeSource::list_hash() const {
  io::Sha256 sum;
  const auto add = [&sum](const std::string& text) {
    sum.update(std::to_string(text.size()) + ":");
    sum.update(text);
  };
  for (const std::string& name : classes()) add(name);
  for (std::int64_t i = 0; i < size(); ++i) add(name_of(i)), add(said_of(i));
  return sum.hex();
}

void read_encode_picture(const std::string& bytes, const std::string& name, const EncodeFormat& format,
                         EncodeItem& item) {
  take_picture(io::parse_picture(std::as_bytes(std::span(bytes)), name, max_data_pixels), format, item);
}

void read_encode_clip(const std::string& path, const EncodeFormat& format, EncodeItem& item) {
  const bool whole_steps = format.crop == "homm-clips";
  io::ClipReader reader(path, {.fps = whole_steps ? 0 : format.fps});
  const double rate = reader.info().fps;
  const auto step = whole_steps && rate > 0 ? std::max<std::int64_t>(1, std::llround(rate / format.fps)) : 1;
  item.pixels.resize(format_bytes(format));
  std::vector<std::uint8_t> planes(static_cast<std::size_t>(3 * format.width * format.height));
  io::Image frame;
  for (std::int64_t taken = 0, seen = 0; taken < format.frames; ++seen) {
    check(reader.next(frame), "clip read: ", path, ": expected ", format.frames, " frames at ", format.fps,
          " a second, got ", taken);
    if (seen % step == 0) put_frame(frame, format, taken++, item.pixels, planes);
  }
}

std::unique_ptr<EncodeSource> open_encode_source(const std::string& path, bool clips) {
  check(!path.empty(), "encode: source: expected a folder, tars or a table, got nothing");
  if (names_tars(path)) return open_encode_tars(io::expand_webdataset(path), clips);
  std::error_code error;
  const bool table = fs::path(path).extension() == ".csv";
  check(clips || !table, "encode: source: expected a table (.csv) with clips alone, got ", path);
  check(table || fs::is_directory(path, error), "encode: source: ", path, ": expected a folder, tars",
        clips ? " or a table (.csv)" : "", ", got ",
        fs::exists(path, error) ? "another file" : "no such folder");
  if (!table)
    if (const auto tars = tars_in(path); !tars.empty()) return open_encode_tars(tars, clips);
  if (!clips) return std::make_unique<PictureTree>(path);
  if (table) return std::make_unique<ClipList>(fs::path(path).parent_path(), find_webvid_clips(path));
  return std::make_unique<ClipList>(path, find_clips(path));
}

}  // namespace pom::data
