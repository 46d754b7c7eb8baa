#include "pom/generate/model_files.h"

#include <utility>

#include "pom/base/error.h"
#include "pom/codecs/text.h"

namespace pom::generate {
namespace {

io::safetensors::Reader reader_of(const io::OpenFolder& folder, const char* name) {
  check(folder.has(name), "model folder: ", folder.path().string(), ": no ", name);
  return {folder, name};
}

}  // namespace

StoredWeights::StoredWeights(io::safetensors::Reader file, const models::NetworkConfig& network)
    : file_(std::move(file)), network_(network) {
  models::check_weights(file_.header(), network_, file_.file());
}

std::int64_t StoredWeights::bytes() const {
  return static_cast<std::int64_t>(file_.header().data_start() + file_.header().data_bytes());
}

// Another dtype reads again; a file that was written over meanwhile would give other weights.
models::Weights StoredWeights::read() {
  io::Sha256 hash;
  models::Weights weights = models::read_weights(file_, network_, std::nullopt, &hash);
  check(hash_.empty() || hash_ == hash.hex(), file_.file(),
        ": expected the bytes that were read before, got others: the file changed while it was in use");
  if (hash_.empty()) hash_ = hash.hex();  // once: other threads may be reading it
  return weights;
}

models::Weights StoredWeights::take() {
  if (!kept_) return read();
  models::Weights weights = std::move(*kept_);
  kept_.reset();
  return weights;
}

const std::string& StoredWeights::hash() {
  if (hash_.empty()) kept_ = read();
  return hash_;
}

ModelFiles open_model(const std::filesystem::path& path) {
  return io::read_folder(path, "model folder", [](const io::OpenFolder& folder) {
    ModelConfig config = read_config(folder);
    StoredWeights weights(reader_of(folder, weights_file), config.network);
    std::unique_ptr<codecs::Codec> codec = codecs::make_codec(config.codec, config.network.channels, &folder);
    std::optional<io::safetensors::Reader> text;
    std::unique_ptr<codecs::TextEncoder> encoder;
    if (config.network.video() && config.text.kind == "words")
      text = reader_of(folder, codecs::text_file);
    else if (config.network.video())
      encoder = codecs::open_text_encoder(config.text, folder);
    check(!encoder || encoder->width() == config.network.text_width, folder.path_of(config_file),
          ": network.text_width: expected ", encoder ? encoder->width() : 0,
          ", as the text encoder has, got ", config.network.text_width);
    return ModelFiles{std::move(config), std::move(weights), std::move(codec), std::move(text),
                      std::move(encoder)};
  });
}

}  // namespace pom::generate
