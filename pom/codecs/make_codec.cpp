#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/autoencoder_codec.h"
#include "pom/codecs/codec.h"
#include "pom/codecs/cogvideox_codec.h"
#include "pom/codecs/pixels.h"

namespace pom::codecs {

std::unique_ptr<Codec> make_codec(const CodecConfig& config, std::int64_t channels,
                                  const io::OpenFolder* folder, const std::string& within) {
  if (config.kind == "pixels") return std::make_unique<Pixels>(config, channels);
  check(folder != nullptr, "codec: kind: expected pixels where there is no model folder, got ",
        shown(config.kind));
  if (config.kind == "autoencoder-kl")
    return std::make_unique<AutoencoderCodec>(config, channels, open_autoencoder(*folder, within));
  if (config.kind == "cogvideox") {
    auto opened = std::make_shared<WeightFolder>(*folder, within, "diffusion_pytorch_model");
    auto codec = std::make_unique<CogVideoXCodec>(std::move(opened), config);
    check(channels == codec->channels(), codec->folder().config_source(), ": latent_channels: expected ",
          channels, ", the network's channels, got ", codec->channels());
    return codec;
  }
  fail("codec: kind: expected pixels, autoencoder-kl or cogvideox, got \"", shown(config.kind), "\"");
}

}  // namespace pom::codecs
