#include "pom/train/encoders.h"

#include <system_error>

#include "pom/codecs/moments.h"
#include "pom/codecs/text.h"
#include "pom/codecs/weight_folder.h"
#include "pom/data/shards.h"
#include "pom/io/folder_swap.h"
#include "pom/train/refusal.h"

namespace pom::train {
namespace {

namespace fs = std::filesystem;

bool belongs(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "config.json" || name == "spiece.model" || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json");
}

// A tokenizer may lie beside its encoder: text_encoder/ and tokenizer/.
fs::path tokenizer_of(const fs::path& text) {
  return fs::canonical(text).parent_path() / "tokenizer" / "spiece.model";
}

// A link costs nothing, and neither side ever writes into the file.
void put(const fs::path& from, const fs::path& to) {
  const fs::path file = fs::canonical(from);
  std::error_code error;
  fs::create_hard_link(file, to, error);
  if (error) fs::copy_file(file, to);
}

void add_folder(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from))
    if (entry.is_regular_file() && belongs(entry.path())) put(entry.path(), to / entry.path().filename());
}

// What our own shards say, which go into the model's folder from the recipe.
void compare_shards(const Recipe& recipe, const data::ShardSetInfo& info) {
  const data::DataConfig& data = recipe.data;
  refuse_unless(info.scale == recipe.codec.scale && info.shift == recipe.codec.shift,
                "train: codec.scale, codec.shift: expected ", info.scale, " and ", info.shift, ", as ",
                data.path, " says, got ", recipe.codec.scale, " and ", recipe.codec.shift);
  if (!data.moving()) return;
  refuse_unless(info.frames == data.frames && info.fps == data.fps, "train: data.frames, data.fps: expected ",
                info.frames, " and ", info.fps, ", as ", data.path, " says, got ", data.frames, " and ",
                data.fps);
}

// That the autoencoder makes as many latent frames of data.frames as the data's clips have.
void compare_frames(const Recipe& recipe, const data::Dataset& clips) {
  const std::int64_t found = clips.shape().at(1);
  std::int64_t made = 0;
  try {
    made = codecs::open_moment_encoder(recipe.encoders.vae, {})->latent_frames(recipe.data.frames);
  } catch (const Error& error) {
    throw Refusal(std::string("train: data.frames: ") + error.what());
  }
  refuse_unless(made == found, "train: data.frames: expected a number of which encoders.vae makes ", found,
                " latent frames, as ", recipe.data.path, " has, got ", recipe.data.frames, ", which make ",
                made);
}

}  // namespace

std::unique_ptr<codecs::Codec> open_codec(const Recipe& recipe) {
  if (recipe.codec.kind == "pixels") return codecs::make_codec(recipe.codec, recipe.network.channels);
  refuse_unless(!recipe.encoders.vae.empty(),
                "train: encoders.vae: expected the folder of the autoencoder, as codec.kind is ",
                recipe.codec.kind, ", got nothing");
  const io::OpenFolder folder(recipe.encoders.vae, "train: encoders.vae");
  return codecs::make_codec(recipe.codec, recipe.network.channels, &folder, "");
}

std::int64_t latent_factor(const Recipe& recipe) {
  if (recipe.encoders.vae.empty() || recipe.codec.kind == "pixels") return 1;
  return codecs::open_moment_encoder(recipe.encoders.vae, {})->factor();
}

data::Split open_data(const Recipe& recipe) {
  data::DataConfig config = recipe.data;
  if (config.in_shards()) {
    const std::optional<data::ShardSetInfo> info =
        data::own_shard_set(config);  // first what is wrong with the data
    if (!recipe.encoders.vae.empty())
      config.codec_hash = codecs::WeightFolder(io::OpenFolder(recipe.encoders.vae, "train: encoders.vae"), "",
                                               "diffusion_pytorch_model")
                              .hash();
    if (!recipe.encoders.text.empty() && recipe.text.kind == "t5")
      config.text_hash =
          codecs::open_text_encoder(recipe.text, io::OpenFolder(recipe.encoders.text, "train: encoders.text"))
              ->hash();
    if (info) compare_shards(recipe, *info);
  }
  data::Split split = data::open_dataset(config, static_cast<std::uint64_t>(recipe.run.seed));
  if (config.kind == "clip_shards" && !recipe.encoders.vae.empty()) compare_frames(recipe, *split.training);
  return split;
}

void add_encoders(const fs::path& folder, const fs::path& before, const Recipe& recipe) {
  if (!recipe.encoders.vae.empty() && !fs::exists(before / codecs::vae_folder))
    add_folder(recipe.encoders.vae, folder / codecs::vae_folder);
  if (!recipe.encoders.text.empty() && !fs::exists(before / codecs::text_folder))
    add_folder(recipe.encoders.text, folder / codecs::text_folder);
  const fs::path pieces = folder / codecs::text_folder / "spiece.model";
  if (fs::exists(folder / codecs::text_folder / "config.json") && !fs::exists(pieces))
    if (const fs::path beside = tokenizer_of(recipe.encoders.text); fs::exists(beside)) put(beside, pieces);
}

}  // namespace pom::train
