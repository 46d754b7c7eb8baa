// A build without nlohmann-json, which reads config.json of autoencoders.
#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/codec.h"
#include "pom/codecs/pixels.h"

namespace pom::codecs {

std::unique_ptr<Codec> make_codec(const CodecConfig& config, std::int64_t channels, const io::OpenFolder*,
                                  const std::string&) {
  check(config.kind == "pixels",
        "codec: kind: expected pixels, as this build of libpom has no nlohmann-json, got ",
        shown(config.kind));
  return std::make_unique<Pixels>(config, channels);
}

}  // namespace pom::codecs
