#include "pom/train/encoders.h"

#include <system_error>

#include "pom/codecs/text.h"
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

}  // namespace

std::unique_ptr<codecs::Codec> open_codec(const Recipe& recipe) {
  if (recipe.codec.kind == "pixels") return codecs::make_codec(recipe.codec, recipe.network.channels);
  refuse_unless(!recipe.encoders.vae.empty(),
                "train: encoders.vae: expected the folder of the autoencoder, as codec.kind is ",
                recipe.codec.kind, ", got nothing");
  const io::OpenFolder folder(recipe.encoders.vae, "train: encoders.vae");
  return codecs::make_codec(recipe.codec, recipe.network.channels, &folder, "");
}

void add_encoders(const fs::path& folder, const fs::path& before, const Recipe& recipe) {
  if (!recipe.encoders.vae.empty() && !fs::exists(before / codecs::vae_folder))
    add_folder(recipe.encoders.vae, folder / codecs::vae_folder);
  if (!recipe.encoders.text.empty() && !fs::exists(before / codecs::text_folder))
    add_folder(recipe.encoders.text, folder / codecs::text_folder);
}

}  // namespace pom::train
