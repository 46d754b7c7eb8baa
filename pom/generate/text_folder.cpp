#include "pom/generate/text_folder.h"

#include <system_error>

#include "pom/base/error.h"
#include "pom/io/safetensors.h"

namespace pom::generate {

namespace fs = std::filesystem;

codecs::TextConfig stored_text_config(const fs::path& folder) {
  const fs::path path = folder / codecs::text_folder / weights_file;
  std::error_code error;
  check(fs::exists(path, error), "model folder: ", folder.string(), ": there is no ", codecs::text_folder,
        "/", weights_file, " in it");
  const io::safetensors::Header header = io::safetensors::read_header(path);
  codecs::TextConfig config;
  config.layers = 0;
  bool found = false;
  for (const io::safetensors::TensorInfo& tensor : header.tensors()) {
    if (tensor.name == "places" && tensor.shape.size() == 2) {
      config.limit = tensor.shape[0], config.width = tensor.shape[1];
      found = true;
    }
    if (tensor.name.starts_with("near.") && tensor.name.ends_with(".weight")) ++config.layers;
  }
  check(found && config.limit >= 1 && config.width >= 1, path.string(),
        ": expected a text encoder of kind words, got another file");
  return config;
}

std::unique_ptr<codecs::TextEncoder> open_text(const fs::path& folder, const ModelConfig& config) {
  codecs::TextConfig text = stored_text_config(folder);
  text.kind = config.text.kind;
  check(text.width == config.network.text_width, "model folder: ", folder.string(), ": ", codecs::text_folder,
        ": expected tokens of width ", config.network.text_width, ", as network.text_width says, got ",
        text.width);
  return codecs::open_text_encoder(text, folder);
}

}  // namespace pom::generate
