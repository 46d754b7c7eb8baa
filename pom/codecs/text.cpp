#include "pom/codecs/text.h"

#include "pom/base/error.h"
#include "pom/codecs/words.h"

namespace pom::codecs {

std::unique_ptr<TextEncoder> open_text_encoder(const TextConfig& config,
                                               const std::filesystem::path& model_folder) {
  if (config.kind == "words") return std::make_unique<Words>(Words::open(config, model_folder / text_folder));
  fail("text: kind: expected words, got \"", config.kind, "\"");
}

}  // namespace pom::codecs
