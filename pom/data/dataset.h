// What training looks at: pictures or latents with a class each, or clips with a caption each, found by their
// number. C channels, F frames, H x W.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/base/fields.h"
#include "pom/data/scene_options.h"
#include "pom/data/sprite_options.h"

namespace pom::data {

// "data" of a recipe.
struct DataConfig {
  std::string kind = "shapes";
  std::string path = {};                      // of folder, latents and clips
  std::vector<std::int64_t> size = {64, 64};  // width, height in pixels, of what training sees
  std::int64_t frames = 16;                   // of sprites, scenes and clips
  double fps = 8;                             // likewise
  bool flip = false;                          // half of the pictures are mirrored
  std::int64_t validation = 512;              // examples held back from training, for the validation loss
  std::int64_t workers = 0;                   // threads that prepare batches; 0: by the cores
  std::string layout = "auto";                // of shards: what their files are like
  double quantization_scale = 0;              // of the authors' pictures; 0: as their list says
  double scale = 0, shift = 0;                // of latents whose files say none; 0: as the layout has it
  SpriteOptions sprites = {};                 // whose split is that of scenes too
  SceneOptions scenes = {};
  // No fields of a recipe: who opens the data set for a codec and a text encoder says which; empty: any will
  // do.
  std::string codec_hash = {}, text_hash = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(
        Field{.name = "kind",
              .help = "shapes (drawn here), folder (of images), latents, shards (of latents), sprites (clips "
                      "drawn here), scenes (several objects, drawn here), clips or clip_shards",
              .choices = {"shapes", "folder", "latents", "shards", "sprites", "scenes", "clips",
                          "clip_shards"}},
        kind);
    visit(Field{.name = "path",
                .help =
                    "folder with one subfolder per class; for clips, files with captions; for shards, their "
                    "dataset.json or index.json"},
          path);
    visit(Field{.name = "size", .help = "width and height in pixels", .least = 1, .most = 65536}, size);
    visit(
        Field{.name = "frames", .help = "frames per clip (sprites, scenes, clips)", .least = 1, .most = 1e6},
        frames);
    visit(
        Field{
            .name = "fps", .help = "frames per second (sprites, scenes, clips)", .least = 0.01, .most = 1000},
        fps);
    visit(Field{.name = "flip", .help = "mirror half of the images"}, flip);
    visit(Field{.name = "validation",
                .help = "examples held out for validation; of files at most a tenth",
                .least = 0,
                .most = 1e6},
          validation);
    visit(Field{.name = "workers", .help = "loader threads; 0: automatic", .least = 0, .most = 256}, workers);
    visit(Field{.name = "layout",
                .help = "shards: libpom, homm or homm-video (the authors'), edm2; auto: by the files",
                .choices = {"auto", "libpom", "homm", "homm-video", "edm2"}},
          layout);
    visit(Field{.name = "quantization_scale",
                .help = "shards, homm: what latents were multiplied by; 0: as index.json says",
                .least = 0,
                .most = 1e6},
          quantization_scale);
    visit(Field{.name = "scale",
                .help = "shards, homm and edm2: scale in (latent - shift) * scale; 0: that of the layout",
                .least = 0,
                .most = 1e6},
          scale);
    visit(Field{.name = "shift",
                .help = "shards, homm and edm2: shift in (latent - shift) * scale",
                .least = -1e6,
                .most = 1e6},
          shift);
    sprites.fields(visit);
    scenes.fields(visit);
  }

  // Frames, captions, no classes.
  bool moving() const {
    return kind == "sprites" || kind == "scenes" || kind == "clips" || kind == "clip_shards";
  }
  // By ourselves: there are no files.
  bool drawn() const { return kind == "shapes" || kind == "sprites" || kind == "scenes"; }
  // Latents and no pictures. Those of shards come scaled.
  bool encoded() const { return kind == "latents" || in_shards(); }
  bool in_shards() const { return kind == "shards" || kind == "clip_shards"; }
};

// That `size` is a width and a height of a picture that memory can hold; errors begin with "data: size".
void check_picture_size(const DataConfig& config);
// Likewise of `frames` and `fps`, and that a clip is not larger than a picture may be.
void check_clip_length(const DataConfig& config);

struct Example {
  at::Tensor picture;  // (C, H, W), or (C, F, H, W) of a clip: uint8 of a picture, fp32 of a latent
  std::int64_t label = 0;
  std::string caption = {};             // of a clip, or of its first part
  std::vector<std::string> later = {};  // of its other parts
  at::Tensor text = {};                 // its states (tokens, width) fp16, where the data set has them
  at::Tensor text_mask = {};            // (tokens) bool
};

// Item i is always the same, whoever asks and in whatever order. get() may be called from many threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Examples; 0: without end, every number gives one (or, of a validation that was not asked for, none).
  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;
  // (C, H, W) or (C, F, H, W) of every example, and whether they are latents (fp32) or pictures (uint8).
  virtual std::vector<std::int64_t> shape() const = 0;
  virtual bool latents() const { return false; }
  // (tokens, width) of the text states of every example; empty: there are none.
  virtual std::vector<std::int64_t> text_shape() const { return {}; }
  // A clip has so many parts of equal length with a caption each.
  virtual std::int64_t parts() const { return 1; }
  // Sizes of the runs of examples that are stored together, first to last: the loader keeps an epoch among
  // few of them at a time. Empty: any example is as near as any other.
  virtual std::vector<std::int64_t> groups() const { return {}; }

  // `visit` counts how often training has come by (the epoch): what is drawn anew each time (a mirrored
  // picture, the sample of a latent) depends on it and on the index alone. Throws pom::Error naming the file
  // where it cannot be read.
  virtual Example get(std::int64_t index, std::int64_t visit) const = 0;
  // What a person calls example i: a path, or "shapes item 17".
  virtual std::string name_of(std::int64_t index) const = 0;
};

struct Split {
  std::shared_ptr<const Dataset> training, validation;  // nothing is in both; validation may have size 0
};

// Opens what the config says. `seed` keys everything that is drawn (data_content). Validation examples are
// never mirrored. Everything that is wrong with a folder is an error here: no such folder, no classes, a
// class without pictures, a path that belongs to no kind.
Split open_dataset(const DataConfig& config, std::uint64_t seed);

// Pictures as the network takes them, uint8 (B, C, H, W) -> fp32 in [-1, 1]; latents as they are.
at::Tensor to_model_range(const at::Tensor& pictures);

}  // namespace pom::data
