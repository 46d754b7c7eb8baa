#include "pom/codecs/moments.h"

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/autoencoder_codec.h"
#include "pom/codecs/cogvideox_codec.h"
#include "pom/io/json_fields.h"

namespace pom::codecs {
namespace {

class PictureMoments final : public MomentEncoder {
 public:
  PictureMoments(AutoencoderFolder folder, std::int64_t channels, const CodecOptions& options)
      : codec_({.kind = "autoencoder-kl"}, channels, std::move(folder)) {
    codec_.set_options(options);
  }

  std::string kind() const override { return "autoencoder-kl"; }
  bool of_clips() const override { return false; }
  std::int64_t channels() const override { return codec_.channels(); }
  std::int64_t factor() const override { return codec_.factor(); }
  std::int64_t latent_frames(std::int64_t) const override { return 1; }
  double scale() const override { return codec_.config().scaling_factor; }
  double shift() const override { return codec_.config().shift_factor; }
  std::string hash() const override { return codec_.hash(); }
  std::vector<std::string> take_remarks() override { return codec_.take_remarks(); }
  at::Tensor moments(const at::Tensor& pictures) const override { return codec_.moments(pictures); }

 private:
  AutoencoderCodec codec_;
};

class ClipMoments final : public MomentEncoder {
 public:
  ClipMoments(std::shared_ptr<WeightFolder> folder, const CodecOptions& options)
      : codec_(std::move(folder), {.kind = "cogvideox"},
               {.dtype = options.dtype, .device = options.device, .chunks = options.chunks}),
        alone_(options.chunks == "alone") {}

  std::string kind() const override { return "cogvideox"; }
  bool of_clips() const override { return true; }
  std::int64_t channels() const override { return codec_.channels(); }
  std::int64_t factor() const override { return codec_.factor(); }
  std::int64_t latent_frames(std::int64_t frames) const override {
    constexpr std::int64_t at_once = CogVideoXConfig::frames_at_once;
    check(frames > 0 && (!alone_ || frames % at_once == 0), "encode: frames: expected a multiple of ",
          at_once, " where chunks are encoded alone, got ", frames);
    check(codec_.config().returns(frames), "encode: frames: expected ",
          nearest_frames(codec_.config(), frames), ", got ", frames);
    return codec_.config().latents_of(frames);
  }
  double scale() const override { return codec_.config().scaling_factor; }
  double shift() const override { return codec_.config().shift_factor.value_or(0); }
  std::string hash() const override { return codec_.hash(); }
  std::vector<std::string> take_remarks() override { return codec_.take_remarks(); }
  at::Tensor moments(const at::Tensor& clips) const override { return codec_.encode_moments(clips); }

 private:
  CogVideoXCodec codec_;
  bool alone_;
};

struct VaeClass {
  std::string name = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "_class_name", .help = "class of diffusers"}, name);
  }
};

std::string class_in(const io::OpenFolder& folder, const std::string& file) {
  VaeClass found;
  io::read_json(io::read_json_text(folder, file), found, folder.path_of(file), io::JsonOrigin::foreign);
  return found.name;
}

}  // namespace

std::unique_ptr<MomentEncoder> open_moment_encoder(const std::string& path, const CodecOptions& options) {
  const io::OpenFolder folder(path, "encode: vae");
  const bool model = folder.has(std::string(vae_folder) + "/config.json");
  const std::string within = model ? vae_folder : "", file = model ? within + "/config.json" : "config.json";
  check(folder.has(file), "encode: vae: ", path,
        ": expected config.json of an autoencoder, or vae/, got neither");
  const std::string name = class_in(folder, file);
  if (name == "AutoencoderKL") {
    AutoencoderFolder opened = open_autoencoder(folder, within);
    const std::int64_t channels = opened.config.latent_channels;
    return std::make_unique<PictureMoments>(std::move(opened), channels, options);
  }
  check(name == "AutoencoderKLCogVideoX", folder.path_of(file),
        ": _class_name: expected AutoencoderKL or AutoencoderKLCogVideoX, got \"", shown(name), "\"");
  return std::make_unique<ClipMoments>(
      std::make_shared<WeightFolder>(folder, within, "diffusion_pytorch_model"), options);
}

}  // namespace pom::codecs
