// Pictures and clips in WebDataset's tars. Headers are read when the source is opened, files when they are
// asked for.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/clips.h"
#include "pom/data/encode_source.h"
#include "pom/data/folder.h"
#include "pom/io/file_descriptor.h"
#include "pom/io/json_header.h"
#include "pom/io/webdataset.h"

namespace pom::data {
namespace {

constexpr std::int64_t most_classes = 65536;
constexpr std::uint64_t most_picture_bytes = std::uint64_t{1} << 30, most_clip_bytes = std::uint64_t{1} << 34,
                        most_text_bytes = std::uint64_t{1} << 20;

// A sample that has no file, or a class that is none, is kept: it counts as broken when it is read.
struct TarItem {
  std::uint32_t tar = 0;
  std::int32_t label = -1;
  std::string key;
  io::WebField file, text;  // without a name where there is none
  std::string mistake;
};

// A file in memory with a path of its own, for readers that take nothing else.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : file_(::memfd_create("pom-clip", MFD_CLOEXEC)) {
    check(file_.get() >= 0, "encode: cannot make a file in memory");
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
      check(count > 0, "encode: cannot write a file in memory");
      done += static_cast<std::size_t>(count);
    }
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  io::detail::FileDescriptor file_;
};

// Fields of the endings that folders take: ".png" is the field "png".
const io::WebField* field_with(const io::WebSample& sample, const std::vector<std::string_view>& endings) {
  for (const io::WebField& field : sample.fields)
    if (std::ranges::find(endings, "." + field.name) != endings.end()) return &field;
  return nullptr;
}

class TarItems final : public EncodeSource {
 public:
  TarItems(std::vector<std::string> tars, bool clips) : tars_(std::move(tars)), clips_(clips) {
    for (std::size_t i = 0; i < tars_.size(); ++i) add_tar(i);
    check(!items_.empty(), "encode: source: expected samples in ", tars_.front(), ", …, got none");
    for (std::int64_t i = 0; i <= most_label_; ++i) classes_.push_back(std::to_string(i));
  }

  std::int64_t size() const override { return std::ssize(items_); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::string name_of(std::int64_t index) const override {
    const TarItem& item = at(index);
    return std::filesystem::path(tars_[item.tar]).filename().string() + "/" + item.key +
           (item.file.name.empty() ? "" : "." + item.file.name);
  }
  std::string said_of(std::int64_t index) const override {
    const TarItem& item = at(index);
    return pom::detail::concat(item.label, " ", item.file.member.data, " ", item.file.member.size);
  }
  EncodeItem read(std::int64_t index, const EncodeFormat& format) const override {
    const TarItem& found = at(index);
    check(found.mistake.empty(), found.mistake);
    const io::WebShard shard(tars_[found.tar]);
    EncodeItem item;
    if (found.label >= 0)
      item.label = found.label;
    else
      item.caption = caption_of(shard, found);
    const std::string bytes = shard.read(found.file, clips_ ? most_clip_bytes : most_picture_bytes);
    if (clips_)
      read_encode_clip(MemoryFile(bytes).path(), format, item);
    else
      read_encode_picture(bytes, name_of(index), format, item);
    return item;
  }

 private:
  const TarItem& at(std::int64_t index) const { return items_.at(static_cast<std::size_t>(index)); }

  void add_tar(std::size_t tar) {
    io::WebShard shard(tars_[tar]);
    for (io::WebSample sample; shard.next(sample);) {
      TarItem item{
          .tar = static_cast<std::uint32_t>(tar), .key = sample.key, .file = {}, .text = {}, .mistake = {}};
      try {
        take_fields(shard, sample, item);
      } catch (const Error& error) {
        item.mistake = error.what();
      }
      items_.push_back(std::move(item));
    }
  }

  void take_fields(const io::WebShard& shard, const io::WebSample& sample, TarItem& item) {
    const std::string where = pom::detail::concat(shard.site(), ": \"", shown(sample.key), "\"");
    const io::WebField* file = field_with(sample, clips_ ? clip_endings() : picture_endings());
    check(file, where,
          clips_ ? ": expected a clip (mp4, webm, …), got none" : ": expected jpg, jpeg or png, got none");
    item.file = *file;
    const io::WebField* label = clips_ ? nullptr : sample.find("cls");
    const io::WebField* text = sample.find("txt");
    check(label || text, where, clips_ ? ": expected txt, got none" : ": expected cls or txt, got neither");
    if (!label) return void(item.text = *text);
    const std::string digits = shard.read(*label, most_text_bytes);
    const std::size_t end = digits.find_last_not_of(" \r\n\t") + 1;
    std::int64_t value = -1;
    const auto parsed = std::from_chars(digits.data(), digits.data() + end, value);
    check(parsed.ec == std::errc() && parsed.ptr == digits.data() + end && value >= 0 && value < most_classes,
          where, ": cls: expected a number below ", most_classes, ", got \"", shown(digits, 40), "\"");
    item.label = static_cast<std::int32_t>(value);
    most_label_ = std::max(most_label_, value);
  }

  std::string caption_of(const io::WebShard& shard, const TarItem& item) const {
    std::string text = shard.read(item.text, most_text_bytes);
    while (!text.empty() && std::string_view(" \r\n\t").find(text.back()) != std::string_view::npos)
      text.pop_back();
    check(!text.empty() && io::detail::find_invalid_utf8(text) == text.size(), shard.site(), ": \"",
          shown(item.key), "\": txt: expected a caption in UTF-8, got ",
          text.empty() ? "nothing" : "other bytes");
    return text;
  }

  std::vector<std::string> tars_, classes_;
  std::vector<TarItem> items_;
  std::int64_t most_label_ = -1;
  bool clips_;
};

}  // namespace

std::unique_ptr<EncodeSource> open_encode_tars(const std::vector<std::string>& tars, bool clips) {
  check(!tars.empty(), "encode: source: expected tars, got none");
  return std::make_unique<TarItems>(tars, clips);
}

}  // namespace pom::data
