#include "pom/generate/folder.h"

#include <algorithm>
#include <cctype>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/diffusion/sampler.h"
#include "pom/io/atomic_file.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

// Names go into file names, pictures' text and onto terminals.
bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

constexpr std::size_t longest_name = 255;  // as of a file

// A number as the name of another class could never be told from that class.
void check_class_names(const ModelConfig& config, std::string_view where) {
  check(!has_control_character(config.name), where, "name: expected a name without control characters");
  check(config.name.size() <= longest_name, where, "name: expected at most ", longest_name, " bytes, got ",
        config.name.size());
  const auto count = static_cast<std::int64_t>(config.classes.size());
  check(count == 0 || count == config.network.classes, where, "classes: expected ", config.network.classes,
        " names, as many as network.classes, got ", count);
  for (std::size_t i = 0; i < config.classes.size(); ++i) {
    const std::string& name = config.classes[i];
    check(!name.empty() && std::isspace(static_cast<unsigned char>(name.front())) == 0 &&
              std::isspace(static_cast<unsigned char>(name.back())) == 0,
          where, "classes[", i, "]: expected a name without spaces at its ends, got \"", shown(name), "\"");
    check(!has_control_character(name), where, "classes[", i,
          "]: expected a name without control characters");
    const bool number = name.find_first_not_of("0123456789") == std::string::npos;
    check(!number || name == std::to_string(i), where, "classes[", i,
          "]: expected a name, or its own index, got the number ", shown(name));
  }
}

void check_sample(const ModelConfig& config, std::string_view where) {
  const SampleDefaults& sample = config.sample;
  check(sample.size.size() == 2, where, "sample.size: expected [width, height], got ", sample.size.size(),
        " numbers");
  for (const std::int64_t side : sample.size)
    check(side >= 1 && side <= 65536 && side % config.network.patch == 0, where,
          "sample.size: expected sides from 1 to 65536 that the patch (", config.network.patch,
          ") divides, got [", sample.size[0], ", ", sample.size[1], "]");
  check(sample.cfg_from <= sample.cfg_to, where, "sample.cfg_from: expected at most cfg_to, ", sample.cfg_to,
        ", got ", sample.cfg_from);
  try {
    const std::string sampler = diffusion::canonical_sampler(sample.sampler);
    diffusion::evaluation_times(
        sampler, {.steps = static_cast<int>(sample.steps), .eta = sample.eta, .shift = sample.shift});
  } catch (const Error& error) {
    const std::string_view said = error.what();  // which begins with its own "sample: "
    fail(where, said.starts_with("sample: ") ? "" : "sample: ", said);
  }
}

}  // namespace

ModelConfig read_config(const fs::path& folder) {
  return io::read_folder(folder, "model folder",
                         [](const io::OpenFolder& opened) { return read_config(opened); });
}

ModelConfig read_config(const io::OpenFolder& folder) {
  check(folder.has(config_file), "model folder: ", folder.path().string(), ": no ", config_file);
  const std::string text = io::read_json_text(folder, config_file), source = folder.path_of(config_file);
  ModelConfig config;
  const std::set<std::string> given = io::read_json(text, config, source);
  for (const char* needed : {"format", "network"})
    check(given.contains(needed), source, ": missing field ", needed);
  if (!config.network.variant.empty()) {  // the variant first, then what the file says
    try {
      config.network = models::variant(config.network.variant);
    } catch (const Error& error) {
      fail(source, ": ", error.what());
    }
    io::read_json(text, config, source);
  }
  if (!given.contains("network.classes") && !config.classes.empty())
    config.network.classes = static_cast<std::int64_t>(config.classes.size());
  for (const std::string& field : given)
    if (field.starts_with("text.")) config.text_given.insert(field.substr(5));
  check_config(config, source + ": ");
  return config;
}

void write_config(const fs::path& folder, const ModelConfig& config) {
  const fs::path path = folder / config_file;
  check_config(config, path.string() + ": ");
  ModelConfig copy = config;
  io::write_file_atomically(path, io::write_json(copy, io::JsonStyle::pages));
}

void check_config(const ModelConfig& config, std::string_view where) {
  models::check_config(config.network, std::string(where) + "network.");
  check_class_names(config, where);
  check_sample(config, where);
  // An odd number of latent frames is one frame and pairs, which a clip begins with at most: with blocks of
  // an odd number, neither would a stream be the whole clip, nor have a clip the frames that were asked for.
  check(config.codec.kind != "cogvideox" || !config.network.video() || config.network.patch_time % 2 == 0,
        where,
        "network.patch_time: expected an even number, as codec cogvideox decodes latent frames two by ",
        "two, got ", config.network.patch_time);
}

}  // namespace pom::generate
