#include "pom/train/vocabulary.h"

#include "pom/base/error.h"
#include "pom/data/clips.h"
#include "pom/data/scenes.h"
#include "pom/data/sprites.h"

namespace pom::train {
namespace {

constexpr std::size_t most_words = 8192;
constexpr std::int64_t captions_read =
    8192;  // of what is drawn, which says everything it can say much sooner

}  // namespace

codecs::WordPieces vocabulary_of(const Recipe& recipe) {
  check(recipe.data.moving(), "train: text: expected data with captions, got ", recipe.data.kind);
  const auto seed = static_cast<std::uint64_t>(recipe.run.seed);
  std::vector<std::string> captions;
  if (recipe.data.kind == "sprites") {
    for (std::int64_t i = 0; i < captions_read; ++i)
      captions.push_back(data::caption_of(data::sprite_clip_at(recipe.data.sprites, seed, i)));
  } else if (recipe.data.kind == "scenes") {
    const data::SceneOptions options = data::scene_options_of(recipe.data);
    for (std::int64_t i = 0; i < captions_read; ++i)
      captions.push_back(data::scene_caption(data::scene_at(options, seed, i)));
  } else {
    for (const data::CaptionedClip& clip : data::find_clips(recipe.data.path))
      captions.push_back(clip.caption);
  }
  return codecs::WordPieces::of(captions, most_words);
}

}  // namespace pom::train
