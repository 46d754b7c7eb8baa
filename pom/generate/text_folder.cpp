#include "pom/generate/text_folder.h"

#include "pom/base/error.h"

namespace pom::generate {

codecs::TextConfig stored_text_config(const io::safetensors::Reader& file) {
  codecs::TextConfig config;
  config.layers = 0;
  bool found = false;
  for (const io::safetensors::TensorInfo& tensor : file.header().tensors()) {
    if (tensor.name == "places" && tensor.shape.size() == 2) {
      config.limit = tensor.shape[0], config.width = tensor.shape[1];
      found = true;
    }
    if (tensor.name.starts_with("near.") && tensor.name.ends_with(".weight")) ++config.layers;
    if (tensor.name.starts_with("far.") && tensor.name.ends_with(".ho_proj.weight")) ++config.mixers;
  }
  check(found && config.limit >= 1 && config.width >= 1, file.file(),
        ": expected a text encoder of kind words, got another file");
  return config;
}

std::unique_ptr<codecs::TextEncoder> open_text(const io::safetensors::Reader& file,
                                               const ModelConfig& config) {
  codecs::TextConfig stored = stored_text_config(file);
  stored.kind = config.text.kind;
  check(stored.width == config.network.text_width, file.file(), ": expected tokens of width ",
        config.network.text_width, ", as network.text_width says, got ", stored.width);
  const auto same = [&](const char* name, std::int64_t said, std::int64_t has) {
    check(said == has || !config.text_given.contains(name), file.file(), ": ", name, ": expected ", said,
          ", as text.", name, " of ", config_file, " says, got ", has);
  };
  same("width", config.text.width, stored.width);
  same("limit", config.text.limit, stored.limit);
  same("layers", config.text.layers, stored.layers);
  same("mixers", config.text.mixers, stored.mixers);
  return codecs::open_text_encoder(stored, file);
}

}  // namespace pom::generate
