// Fuzzes what is read of shards of latents: dataset.json of ours, which comes back equal when it is written
// and read again; that of EDM2; and samples, whose latent is the input, under a CRC that is right.
#include "tests/fuzz/fuzz.h"
#include <cstdint>

#include "pom/data/shard_format.h"
#include "pom/io/crc32.h"
#include "pom/io/json_fields.h"
#include "pom/io/json_labels.h"
#include "pom/io/tar.h"

namespace {

using namespace pom;

data::ShardSetInfo info_of(bool moments) {
  data::ShardSetInfo info;
  info.stored = moments ? "moments" : "latent";
  info.channels = 1;
  info.size = {8, 8};
  info.classes = {"one", "two"};
  return info;
}

void parse_set(std::string_view text) {
  static fuzz::MemoryFile file;
  data::ShardSetInfo info;
  if (!fuzz::accepted([&] { info = data::read_shard_set(file.put(std::as_bytes(std::span(text)))); })) return;
  fuzz::require(info.shard_names.size() == info.shard_counts.size(), "a count for each shard");
  const std::string written = io::write_json(info);
  const data::ShardSetInfo again = data::read_shard_set(file.put(std::as_bytes(std::span(written))));
  fuzz::require(again.shard_names == info.shard_names && again.samples == info.samples, "the same shards");
}

void parse_labels(std::string_view text) {
  fuzz::accepted([&] {
    io::read_json_labels(text, "fuzz", [](std::string&, std::int64_t label) {
      fuzz::require(label >= 0, "classes are numbered from 0");
    });
  });
}

std::string member(std::string_view name, std::string_view data) {
  return io::tar_member(name, std::as_bytes(std::span(data)));
}

void parse_sample(std::string_view latent, bool moments) {
  const std::string field = moments ? "moments.npy" : "latent.npy";
  const std::string json = "{\"crc32\": {\"" + field + "\": \"" + io::crc32_hex(io::crc32(latent)) +
                           "\", \"cls\": \"" + io::crc32_hex(io::crc32("1")) + "\"}}";
  const std::string bytes = member("k." + field, latent) + member("k.cls", "1") + member("k.json", json);
  fuzz::accepted([&] {
    const data::LatentSample sample = data::parse_shard_sample(bytes, 0, info_of(moments), "fuzz");
    std::uint64_t count = 1;
    for (const std::int64_t side : sample.shape) count *= static_cast<std::uint64_t>(side);
    fuzz::require(sample.mean.size() == count && sample.label == 1, "as many numbers as its shape has");
    fuzz::require(sample.spread.size() == (moments ? count : 0), "a deviation for each mean");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  parse_set(text);
  parse_labels(text);
  parse_sample(text, true);
  parse_sample(text, false);
  fuzz::accepted([&] { data::parse_shard_sample(text, 0, info_of(true), "fuzz"); });
  if (const auto offsets = data::parse_shard_index(text))
    fuzz::require(std::is_sorted(offsets->begin(), offsets->end()), "samples follow each other");
  return 0;
}
