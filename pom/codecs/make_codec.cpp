#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/autoencoder_codec.h"
#include "pom/codecs/codec.h"
#include "pom/codecs/pixels.h"

namespace pom::codecs {

std::unique_ptr<Codec> make_codec(const CodecConfig& config, std::int64_t channels,
                                  const io::OpenFolder* folder, const std::string& within) {
  if (config.kind == "pixels") return std::make_unique<Pixels>(config, channels);
  check(folder != nullptr, "codec: kind: expected pixels where there is no model folder, got ",
        shown(config.kind));
  if (config.kind == "autoencoder-kl")
    return std::make_unique<AutoencoderCodec>(config, channels, open_autoencoder(*folder, within));
  fail("codec: kind: expected pixels or autoencoder-kl, got \"", shown(config.kind), "\"");
}

}  // namespace pom::codecs
