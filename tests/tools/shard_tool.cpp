// Shards for the referees of python/tests/test_shards.py.
//
//   shard_tool write FOLDER COUNT PER_SHARD     pictures that are a function of their number, after those
//   that are
//                                               there; prints how many were
//   shard_tool read KIND FOLDER SEED VISIT SET [field=value ...]
//                                               every example of SET (training, validation): a line of JSON,
//                                               then the latents as fp32
//   shard_tool order FOLDER SEED BATCH START BATCHES   labels of what the loader gives, a line for each batch
//   shard_tool speed KIND FOLDER BATCH BATCHES WORKERS      examples a second
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <span>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/loader.h"
#include "pom/data/shard_writer.h"
#include "pom/io/json_header.h"

namespace {

using namespace pom::data;

std::int64_t number(const char* text) {
  return std::atoll(text);
}

std::string quote(std::string_view text) {
  std::string out;
  pom::io::detail::append_json_string(out, text);
  return out;
}

ShardSetInfo info_of_pictures() {
  ShardSetInfo info;
  info.codec = "kl";
  info.codec_hash = std::string(64, '0');
  info.scale = 0.18215;
  info.size = {256, 256};
  info.crop = "adm";
  info.mirror = true;
  for (int i = 0; i < 10; ++i) info.classes.push_back("class " + std::to_string(i));
  return info;
}

void write_pictures(const char* folder, std::int64_t count, std::int64_t per_shard) {
  ShardWriter writer(folder, "train", info_of_pictures(), per_shard);
  std::cout << writer.samples() << std::endl;
  const std::vector<std::int64_t> shape = {8, 32, 32};
  std::vector<float> noise(8 * 32 * 32);
  std::vector<std::uint16_t> halves(noise.size());
  for (std::int64_t i = writer.samples(); i < count; ++i) {
    pom::fill_normal(noise.data(), std::ssize(noise), {1, pom::noise_for::test, 0}, i * std::ssize(noise));
    // Some bits of a float that are a finite half.
    for (std::size_t j = 0; j < noise.size(); ++j)
      halves[j] = static_cast<std::uint16_t>(static_cast<int>(noise[j] * 1000.0f) & 0xbfff & ~0x4000);
    ShardSample sample;
    sample.key = std::to_string(1000000 + i);
    sample.latent = {pom::io::NpyType::half, shape, std::as_bytes(std::span(halves))};
    sample.label = i % 10;
    sample.source = "class/" + std::to_string(i / 2) + ".png";
    sample.mirrored = i % 2 == 1;
    writer.add(sample);
  }
  writer.finish();
}

template <class Sizes>
std::string list_of(const Sizes& sizes) {
  std::string text;
  for (const auto size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "[" + text + "]";
}

void print(const Example& example, const std::string& name) {
  std::cout << "{\"name\":" << quote(name) << ",\"label\":" << example.label
            << ",\"caption\":" << quote(example.caption) << ",\"shape\":" << list_of(example.picture.sizes());
  if (example.text.defined()) {
    std::cout << ",\"text_shape\":" << list_of(example.text.sizes()) << ",\"text\":[";
    const auto* bits = static_cast<const std::uint16_t*>(example.text.data_ptr());
    for (std::int64_t i = 0; i < example.text.numel(); ++i) std::cout << (i == 0 ? "" : ",") << bits[i];
    std::cout << "],\"mask\":[";
    for (std::int64_t i = 0; i < example.text_mask.numel(); ++i)
      std::cout << (i == 0 ? "" : ",") << static_cast<int>(example.text_mask.data_ptr<bool>()[i]);
    std::cout << "]";
  }
  std::cout << "}\n";
  std::cout.write(static_cast<const char*>(example.picture.data_ptr()),
                  static_cast<std::streamsize>(example.picture.nbytes()));
}

void set_field(DataConfig& config, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  const std::string value(assignment.substr(equals + 1));
  if (name == "layout")
    config.layout = value;
  else if (name == "quantization_scale")
    config.quantization_scale = std::atof(value.c_str());
  else if (name == "scale")
    config.scale = std::atof(value.c_str());
  else if (name == "shift")
    config.shift = std::atof(value.c_str());
  else if (name == "validation")
    config.validation = std::atoll(value.c_str());
  else if (name == "codec_hash")
    config.codec_hash = value;
  else
    pom::fail("field: ", name);
}

void read_all(std::span<char*> arguments) {
  DataConfig config{.kind = arguments[0], .path = arguments[1], .validation = 0};
  for (const char* assignment : arguments.subspan(5)) set_field(config, assignment);
  const Split split = open_dataset(config, static_cast<std::uint64_t>(number(arguments[2])));
  const bool training = std::string_view(arguments[4]) == "training";
  const Dataset& set = training ? *split.training : *split.validation;
  for (std::int64_t i = 0; i < set.size(); ++i) print(set.get(i, number(arguments[3])), set.name_of(i));
}

void print_order(std::span<char*> arguments) {
  const Split split = open_dataset({.kind = "shards", .path = arguments[0], .validation = 0}, 0);
  const auto tell = [](const std::string& name, const std::string& why) {
    std::cerr << "passed over " << name << ": " << why << "\n";
  };
  Loader loader(split.training, {.batch = number(arguments[2]),
                                 .workers = 2,
                                 .seed = static_cast<std::uint64_t>(number(arguments[1])),
                                 .start = number(arguments[3]),
                                 .on_broken = tell});
  for (std::int64_t i = 0; i < number(arguments[4]); ++i) {
    const Batch batch = loader.next();
    const auto* labels = batch.labels.data_ptr<std::int64_t>();
    for (std::int64_t b = 0; b < batch.labels.numel(); ++b) std::cout << labels[b] << " ";
    std::cout << batch.pictures.data_ptr<float>()[0] << "\n";
  }
}

void print_speed(std::span<char*> arguments) {
  const Split split = open_dataset({.kind = arguments[0], .path = arguments[1], .validation = 0}, 0);
  const std::int64_t batch = number(arguments[2]), batches = number(arguments[3]);
  Loader loader(split.training, {.batch = batch, .workers = number(arguments[4])});
  loader.next();
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < batches; ++i) loader.next();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << static_cast<double>(batch * batches) / seconds.count() << "\n";
}

int run(std::span<char*> arguments) {
  const std::string_view command = arguments.size() > 1 ? arguments[1] : "";
  const std::span<char*> rest = arguments.subspan(std::min<std::size_t>(arguments.size(), 2));
  if (command == "write" && rest.size() == 3)
    return write_pictures(rest[0], number(rest[1]), number(rest[2])), 0;
  if (command == "read" && rest.size() >= 5) return read_all(rest), 0;
  if (command == "order" && rest.size() == 5) return print_order(rest), 0;
  if (command == "speed" && rest.size() == 5) return print_speed(rest), 0;
  std::cerr << "usage: shard_tool write|read|order|speed ...\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) try {
  return run({argv, static_cast<std::size_t>(argc)});
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
