#include "pom/codecs/text.h"

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/words.h"

namespace pom::codecs {

std::unique_ptr<TextEncoder> open_text_encoder(const TextConfig& config,
                                               const io::safetensors::Reader& file) {
  if (config.kind == "words") return std::make_unique<Words>(Words::open(config, file));
  fail("text: kind: expected words, got \"", shown(config.kind), "\"");
}

}  // namespace pom::codecs
