// Where `pom encode` finds pictures and clips: folders, WebDataset's tars, WebVid's tables. The order is a
// function of the source alone. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pom::data {

// What all items are brought to.
struct EncodeFormat {
  std::int64_t width = 256, height = 256;
  std::string crop = "adm";  // crop_names() of resample.h
  std::int64_t frames = 0;   // of clips, their first ones; 0: pictures
  // Of clips: at each 1/fps the frame that is on then; with homm-clips every n-th frame, where n is the whole
  // number that comes nearest to this rate, as the authors have it.
  double fps = 16;

  bool clips() const { return frames > 0; }
};

struct EncodeItem {
  std::vector<std::uint8_t> pixels = {};    // (3, H, W) or (3, T, H, W)
  std::optional<std::int64_t> label = {};   // a class
  std::optional<std::string> caption = {};  // or a caption
};

class EncodeSource {
 public:
  virtual ~EncodeSource() = default;

  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;
  // Within the source, wherever that lies: "cat/tabby.png".
  virtual std::string name_of(std::int64_t index) const = 0;
  // For any number of threads. What cannot be read is a pom::Error.
  virtual EncodeItem read(std::int64_t index, const EncodeFormat& format) const = 0;
  // What else of an item is known before it is read: another text, another item.
  virtual std::string said_of(std::int64_t index) const = 0;

  // SHA-256 of all that is said above: who goes on with another list would mix two data sets.
  std::string list_hash() const;
};

// Pictures: a folder with one subfolder for each class (folder.h), or tars: "data-{000..123}.tar", lists
// joined by "::", or a folder of them; their samples have jpg, jpeg or png, and cls (a number) or txt.
// Clips: a folder with captions (clips.h), a table in WebVid's form (.csv), or tars with mp4, webm, … and
// txt.
std::unique_ptr<EncodeSource> open_encode_source(const std::string& path, bool clips);

// The same of tars alone.
std::unique_ptr<EncodeSource> open_encode_tars(const std::vector<std::string>& tars, bool clips);

// A picture, or the frames of a clip, in the format; `name` is for messages.
void read_encode_picture(const std::string& bytes, const std::string& name, const EncodeFormat& format,
                         EncodeItem& item);
void read_encode_clip(const std::string& path, const EncodeFormat& format, EncodeItem& item);

}  // namespace pom::data
