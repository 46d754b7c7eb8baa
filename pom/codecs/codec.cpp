#include "pom/codecs/codec.h"

#include "pom/base/error.h"
#include "pom/codecs/pixels.h"

namespace pom::codecs {

std::unique_ptr<Codec> make_codec(const CodecConfig& config, std::int64_t channels) {
  if (config.kind == "pixels") return std::make_unique<Pixels>(config, channels);
  fail("codec: kind: expected pixels, got \"", config.kind, "\"");
}

}  // namespace pom::codecs
