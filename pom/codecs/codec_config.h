// Which codec a model has, as its config.json says it. Apart from codec.h, which knows torch.
#pragma once

#include <string>
#include <vector>

#include "pom/base/fields.h"

namespace pom::codecs {

// "pixels"; "autoencoder-kl" (pictures: SD, SDXL, SD3, FLUX) and "cogvideox" (clips), whose networks lie in
// vae/ within the model's folder as diffusers writes them.
inline const std::vector<std::string>& codec_kinds() {
  static const std::vector<std::string> kinds = {"pixels", "autoencoder-kl", "cogvideox"};
  return kinds;
}

// The "codec" of config.json.
struct CodecConfig {
  std::string kind = "pixels";
  double scale = 1;  // latent = (encoded - shift) * scale
  double shift = 0;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "kind", .help = "codec between images and latents", .choices = codec_kinds()}, kind);
    visit(
        Field{
            .name = "scale", .help = "scale in latent = (image - shift) * scale", .least = 1e-6, .most = 1e6},
        scale);
    visit(
        Field{
            .name = "shift", .help = "shift in latent = (image - shift) * scale", .least = -1e6, .most = 1e6},
        shift);
  }
};

}  // namespace pom::codecs
