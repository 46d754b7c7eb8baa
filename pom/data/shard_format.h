// Our own shards of latents, which `pom encode` writes: a folder with dataset.json and NAME-000000.tar, …,
// which WebDataset reads too. A sample is the members of one key:
//
//   KEY.moments.npy  fp16 or fp32 (2C, h, w) or (2C, t, h, w): mean, then log-variance, as the encoder gave
//   them; KEY.latent.npy   or one latent (C, …), where dataset.json says so KEY.cls          the class, in
//   decimal digits; or KEY.txt          the caption, UTF-8 KEY.text.npy     perhaps: states of a text
//   encoder, fp16 (l, width), l at most text_tokens KEY.mask.npy     perhaps: which of them count, bool (l)
//   KEY.json         {"source": …, "mirrored": …, "crc32": {"moments.npy": "8 digits", …}}
//
// The last member of a tar is __index__, which WebDataset passes over: where each sample begins and the last
// one ends, 64 bits each, then the CRC-32 of these. No torch, so that it fuzzes fast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"
#include "pom/data/latent_sample.h"
#include "pom/io/npy.h"

namespace pom::data {

// dataset.json
struct ShardSetInfo {
  std::int64_t format = 1;
  std::string kind = "pictures";
  std::string stored = "moments";
  std::string codec = {};       // its kind
  std::string codec_hash = {};  // SHA-256 of its files
  double scale = 1, shift = 0;  // what training sees is (latent - shift) * scale
  std::int64_t channels = 4;
  std::vector<std::int64_t> size = {};  // width, height in pixels
  std::int64_t frames = 0;
  double fps = 0;
  std::string crop = {};
  bool mirror = false;
  std::string text_hash = {};  // SHA-256 of the text encoder; empty: no states are stored
  std::int64_t text_tokens = 0, text_width = 0;
  std::vector<std::string> classes = {};
  std::int64_t samples = 0;
  std::vector<std::string> shard_names = {};  // of each shard
  std::vector<std::int64_t> shard_counts = {}, shard_bytes = {};

  template <class Visit>
  void fields(Visit&& visit) {
    const double most = 1e15;
    visit(Field{.name = "format", .help = "version of the format", .least = 1, .most = 1}, format);
    visit(Field{.name = "kind", .help = "what was encoded", .choices = {"pictures", "clips"}}, kind);
    visit(Field{.name = "stored", .help = "moments, or one latent", .choices = {"moments", "latent"}},
          stored);
    visit(Field{.name = "codec", .help = "kind of the codec"}, codec);
    visit(Field{.name = "codec_hash", .help = "SHA-256 of the codec"}, codec_hash);
    visit(Field{.name = "scale", .help = "scale in (latent - shift) * scale", .least = 1e-9, .most = 1e9},
          scale);
    visit(Field{.name = "shift", .help = "shift in (latent - shift) * scale", .least = -1e9, .most = 1e9},
          shift);
    visit(Field{.name = "channels", .help = "of a latent", .least = 1, .most = 65536}, channels);
    visit(Field{.name = "size", .help = "width and height in pixels", .least = 1, .most = 65536}, size);
    visit(Field{.name = "frames", .help = "of a clip", .least = 0, .most = 1e9}, frames);
    visit(Field{.name = "fps", .help = "frames per second", .least = 0, .most = 1e6}, fps);
    visit(Field{.name = "crop", .help = "how images were cropped"}, crop);
    visit(Field{.name = "mirror", .help = "mirrored images follow"}, mirror);
    visit(Field{.name = "text_hash", .help = "SHA-256 of the text encoder"}, text_hash);
    visit(Field{.name = "text_tokens", .help = "most tokens of a text", .least = 0, .most = 65536},
          text_tokens);
    visit(Field{.name = "text_width", .help = "width of its states", .least = 0, .most = 65536}, text_width);
    visit(Field{.name = "classes", .help = "names of the classes"}, classes);
    visit(Field{.name = "samples", .help = "in all shards", .least = 0, .most = most}, samples);
    visit(Field{.name = "shard_names", .help = "files"}, shard_names);
    visit(Field{.name = "shard_counts", .help = "samples of each", .least = 0, .most = most}, shard_counts);
    visit(Field{.name = "shard_bytes", .help = "bytes of each", .least = 0, .most = most}, shard_bytes);
  }

  bool clips() const { return kind == "clips"; }
  bool moments() const { return stored == "moments"; }
};

inline constexpr std::string_view shard_set_file = "dataset.json";

// Reads a folder's dataset.json, or another file of that form. Numbers that contradict each other and names
// that lead out of the folder are errors.
ShardSetInfo read_shard_set(const std::filesystem::path& file);
void write_shard_set(const std::filesystem::path& file, ShardSetInfo info);

// Several data sets in one folder, as machines that share the work leave them, as one; they must agree in all
// but their shards.
ShardSetInfo join_shard_sets(std::span<const ShardSetInfo> parts);

// That latents are of this codec and texts of this encoder; an empty hash is not looked at.
void check_shard_codec(const ShardSetInfo& info, std::string_view codec_hash, std::string_view text_hash,
                       std::string_view site);

// An array in memory that somebody else owns.
struct ShardArray {
  io::NpyType type = io::NpyType::half;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> elements = {};
};

struct ShardSample {
  std::string key = {};                     // unique, without a dot in its last part
  ShardArray latent = {};                   // moments or a latent, as dataset.json says
  std::optional<std::int64_t> label = {};   // class
  std::optional<std::string> caption = {};  // or caption
  std::optional<ShardArray> text = {}, mask = {};
  std::string source = {};  // the path it came from
  bool mirrored = false;
};

// The members of a sample, one after the other, as they are in a tar. Everything that contradicts `info` is
// an error.
std::string shard_sample_bytes(const ShardSample& sample, const ShardSetInfo& info);

// A sample of these bytes, which begin at byte `begin` of a shard; every CRC is checked. Errors begin with
// `site`.
LatentSample parse_shard_sample(std::string_view bytes, std::uint64_t begin, const ShardSetInfo& info,
                                std::string_view site);

// The data of __index__, and back; nothing where it is none.
inline constexpr std::string_view shard_index_member = "__index__";
std::string shard_index_bytes(std::span<const std::uint64_t> offsets);
std::optional<std::vector<std::uint64_t>> parse_shard_index(std::string_view bytes);

}  // namespace pom::data
