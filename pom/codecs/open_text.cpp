// Apart from text.cpp, which a build without JSON has too.
#include "pom/base/error.h"
#include "pom/codecs/t5.h"
#include "pom/codecs/words.h"

namespace pom::codecs {

std::unique_ptr<TextEncoder> open_text_encoder(const TextConfig& config, const io::OpenFolder& folder,
                                               std::optional<at::ScalarType> dtype) {
  if (config.kind != "t5") {
    check(folder.has(text_file), folder.path().string(), ": no ", text_file);
    return open_text_encoder(config, io::safetensors::Reader(folder, text_file));
  }
  auto encoder = std::make_unique<T5>(config, folder, dtype);
  check(config.width == encoder->width(), encoder->where(), ": d_model: expected ", config.width,
        ", as text.width says, got ", encoder->width());
  return encoder;
}

}  // namespace pom::codecs
