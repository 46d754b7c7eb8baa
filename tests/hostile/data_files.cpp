// What training reads of others: recipes, captions, clips, tars, arrays and lists of shards. Each hostile
// file is refused, for its own reason.
#include "tests/hostile/judge.h"

#include "pom/data/clips.h"
#include "pom/data/shard_format.h"
#include "pom/io/clip.h"
#include "pom/io/json_labels.h"
#include "pom/io/npz.h"
#include "pom/io/toml_fields.h"
#include "pom/io/webdataset.h"
#include "pom/train/recipe.h"

namespace pom::hostile {
namespace {

TEST(HostileRecipes, EachIsRefusedForItsReason) {
  Table table("recipes");
  const Folder folder;
  const fs::path good = folder_of_tests / "recipes" / "good.toml";
  const auto judge = [&](const fs::path& file) {
    table.judge(file.filename(), file.parent_path(), [&] {
      if (file.extension() == ".toml") {
        train::read_recipe(file);
      } else {
        const std::string assignment = bytes_in(file);
        train::read_recipe(good, std::span(&assignment, 1));
      }
    });
  };
  for (const fs::path& file : files_of("recipes")) judge(file);
  const std::string much(1'000'000, '7'), brackets(1'000'000, '['), nothing(io::max_toml_bytes + 1, '\n');
  std::string dots = "a";
  for (int i = 0; i < 100'000; ++i) dots += ".a";
  const std::map<std::string, std::string> large = {
      {"large_number.toml", detail::concat("run.seed = ", much, "\n")},
      {"large_fraction.toml", detail::concat("optimizer.lr = 0.", much, "\n")},
      {"large_text.toml", detail::concat("data.kind = \"", much, "\"\n")},
      {"large_key.toml", detail::concat(much, " = 1\n")},
      {"large_variant.toml", detail::concat("network.variant = \"", much, "\"\n")},
      {"large_path.toml", detail::concat("data.path = \"", much, "\"\n")},
      {"large_depth.toml", detail::concat("data.size = ", brackets, "\n")},
      {"large_dots.toml", detail::concat(dots, " = 1\n")},
      {"large_file.toml", nothing},
      {"large_assignment.set", detail::concat("run.seed=x", much)},
      {"large_assignment_name.set", detail::concat(much, "=1")}};
  for (const auto& [name, text] : large) {
    put_bytes(folder.path() / name, text);
    judge(folder.path() / name);
  }
  table.finish();
}

// A folder with a clip in it, a folder, and links that lead out of it.
void furnish(const fs::path& outside) {
  const fs::path inside = outside / "data";
  fs::create_directories(inside / "folder");
  put_bytes(outside / "secret.mp4", "");
  put_bytes(inside / "clip.mp4", "");
  fs::create_symlink(outside / "secret.mp4", inside / "link.mp4");
  fs::create_symlink(outside, inside / "links");
}

TEST(HostileCaptions, EachIsRefusedForItsReason) {
  Table table("captions");
  const Folder folder;
  furnish(folder.path());
  const fs::path data = folder.path() / "data";
  const auto judge = [&](const std::string& name, std::string_view text) {
    put_bytes(data / "captions.csv", text);
    table.judge(name, folder.path(), [&] { data::find_clips(data.string()); });
  };
  for (const fs::path& file : files_of("captions")) judge(file.filename(), bytes_in(file));
  const std::string much(1'000'000, 'x');
  judge("large_head.csv", detail::concat(much, ",", much, "\n"));
  judge("large_quote.csv", detail::concat("file,caption\nclip.mp4,\"", much));
  judge("large_name.csv", detail::concat("file,caption\n", much, ",a star\n"));
  table.finish();
}

// What FFmpeg complained of last stands in parentheses.
std::string without_complaint(const std::string& message, const fs::path& file) {
  const std::size_t end = message.find(file.string()) + file.string().size();
  return message.substr(0, message.find(" (", end));
}

// Reasons are FFmpeg's own, so they are held against the table with the version that it was made with.
TEST(HostileClips, EachIsRefusedForItsReason) {
  const std::string libraries = io::clip_libraries();
  if (libraries.empty()) GTEST_SKIP() << "this build has no FFmpeg";
  const bool same_version = libraries.starts_with("libavformat 59.");
  Table table("clips");
  for (const fs::path& file : files_of("clips"))
    table.judge(file.filename(), file.parent_path(), [&] {
      try {
        io::ClipReader reader(file, {.width = 16, .height = 16});
        for (io::Image frame; reader.next(frame);) continue;
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find("clip read: " + file.string() + ": "), 0u) << error.what();
        throw Error(without_complaint(error.what(), file));
      }
    });
  if (same_version) table.finish();
}

TEST(HostileTars, EachIsRefusedForItsReason) {
  Table table("tars");
  for (const fs::path& file : files_of("tars"))
    table.judge(file.filename(), file.parent_path(), [&] {
      io::WebShard shard(file);
      for (io::WebSample sample; shard.next(sample);)
        for (const io::WebField& field : sample.fields) shard.read(field, 1 << 20);
    });
  table.finish();
}

TEST(HostileArrays, EachIsRefusedForItsReason) {
  Table table("arrays");
  for (const fs::path& file : files_of("arrays"))
    table.judge(file.filename(), file.parent_path(), [&] {
      const std::string bytes = bytes_in(file), site = file.string();
      if (file.extension() == ".npz")
        io::Npz(bytes, site, 1 << 20).read("arr_0");
      else
        io::read_npy(bytes, site);
    });
  if (io::npz_inflates()) table.finish();
}

TEST(HostileShards, EachIsRefusedForItsReason) {
  Table table("shards");
  for (const fs::path& file : files_of("shards"))
    table.judge(file.filename(), file.parent_path(), [&] {
      if (file.filename().string().starts_with("set_"))
        data::read_shard_set(file);
      else
        io::read_json_labels(io::read_labels_text(file), file.string(), [](std::string&, std::int64_t) {});
    });
  table.finish();
}

}  // namespace
}  // namespace pom::hostile
