#include "cli/shard_folder.h"

#include <numeric>

#include "cli/help.h"
#include "cli/json.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/data/shard_format.h"
#include "pom/io/json_fields.h"

namespace pom::cli {
namespace {

namespace fs = std::filesystem;

// Ours have a format; EDM2's dataset.json has labels.
struct FormatOfJson {
  std::int64_t format = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "format", .help = "version"}, format);
  }
};

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

std::string latents_text(const data::ShardSetInfo& info) {
  return detail::concat(
      info.moments() ? "mean and log-variance" : "one draw each", ", ", info.channels, " channels, of ",
      info.size.at(0), "x", info.size.at(1), " pixels",
      info.clips() ? detail::concat(", ", info.frames, " frames at ", info.fps, " fps") : "");
}

std::string source_text(const data::ShardSetInfo& info) {
  return detail::concat("crop ", shown(info.crop), info.mirror ? ", mirrored images follow" : "");
}

std::string text_text(const data::ShardSetInfo& info) {
  if (info.text_hash.empty()) return info.clips() ? "captions" : "none";
  return detail::concat("captions and states of ", info.text_tokens, " tokens, ", info.text_width,
                        " wide, of the encoder ", info.text_hash);
}

void print_shards(const fs::path& folder, const data::ShardSetInfo& info,
                  const std::vector<std::string>* broken) {
  const auto line = [](std::string name, const std::string& text) {
    name.resize(14, ' ');
    print("  " + name + wrap(text, 16, 16));
  };
  print(bold("shards of " + info.kind, 1) + "  " + shown(folder.string()));
  line("samples", detail::concat(grouped(info.samples), " in ", grouped(std::ssize(info.shard_names)),
                                 " shards, ", bytes_text(static_cast<double>(sum_of(info.shard_bytes)))));
  line("stored", latents_text(info));
  line("codec", detail::concat(shown(info.codec), ", sha256 ", shown(info.codec_hash)));
  line("scale, shift",
       detail::concat(info.scale, ", ", info.shift, ": training sees (latent - shift) * scale"));
  line("source", source_text(info));
  line("text", text_text(info));
  if (!info.classes.empty()) line("classes", std::to_string(info.classes.size()));
  if (broken == nullptr) return;
  line("broken", std::to_string(broken->size()));
  for (const std::string& name : *broken) print("                " + shown(name));
}

}  // namespace

bool is_shard_folder(const fs::path& folder) {
  std::error_code ignored;
  const fs::path file = folder / data::shard_set_file;
  if (!fs::is_regular_file(file, ignored)) return false;
  FormatOfJson found;
  try {
    io::read_json(io::read_json_text(file), found, file.string(), io::JsonOrigin::foreign);
  } catch (const Error&) {
    return false;
  }
  return found.format > 0;
}

void tell_shards(const fs::path& folder, bool json, const std::vector<std::string>* broken) {
  data::ShardSetInfo info = data::read_shard_set(folder / data::shard_set_file);
  if (!json) return print_shards(folder, info, broken);
  JsonObject object;
  object.add("kind", info.clips() ? "clip_shards" : "shards")
      .add("samples", info.samples)
      .add("shards", std::ssize(info.shard_names))
      .add("bytes", sum_of(info.shard_bytes));
  if (broken != nullptr) object.add("broken", *broken);
  print(object.raw("dataset", io::write_json(info)).text());
}

}  // namespace pom::cli
