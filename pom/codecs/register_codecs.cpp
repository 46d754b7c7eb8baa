// torch.classes.pom.Autoencoder: an autoencoder's folder as Python reaches it (python/libpom/codecs.py is its
// other half), so that libpom.so needs no Python to build.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/custom_class.h>

#include "pom/base/error.h"
#include "pom/codecs/autoencoder_codec.h"
#include "pom/codecs/autoencoder_kl.h"
#include "pom/codecs/cogvideox_codec.h"
#include "pom/codecs/cogvideox_tiles.h"
#include "pom/codecs/t5.h"

namespace pom::codecs {
namespace {

class PythonAutoencoder : public torch::CustomClassHolder {
 public:
  PythonAutoencoder(const std::string& folder, const std::string& device, at::ScalarType dtype)
      : folder_(open_autoencoder(io::OpenFolder(folder, "codec"), "")),
        network_(read_autoencoder(folder_, c10::Device(device), dtype)) {}

  at::Tensor encode(const at::Tensor& pictures, bool tiled) {
    return tiled ? network_->encode_tiled(pictures) : network_->encode(pictures);
  }
  at::Tensor decode(const at::Tensor& latents, bool tiled) {
    return tiled ? network_->decode_tiled(latents) : network_->decode(latents);
  }
  // In about so many bytes, whatever the size.
  at::Tensor encode_within(const at::Tensor& pictures, std::int64_t memory) {
    return network_->encode_within(pictures, memory);
  }
  at::Tensor decode_within(const at::Tensor& latents, std::int64_t memory) {
    return network_->decode_within(latents, memory);
  }
  std::string hash() { return folder_.weights.hash(); }
  double scaling_factor() { return folder_.config.scaling_factor; }
  double shift_factor() { return folder_.config.shift_factor; }
  std::int64_t factor() { return folder_.config.factor(); }
  std::int64_t latent_channels() { return folder_.config.latent_channels; }

 private:
  AutoencoderFolder folder_;
  std::unique_ptr<AutoencoderKL> network_;
};

class PythonVideoAutoencoder : public torch::CustomClassHolder {
 public:
  PythonVideoAutoencoder(const std::string& folder, const std::string& device, at::ScalarType dtype)
      : codec_(std::make_shared<WeightFolder>(io::OpenFolder(folder, "codec"), "", "diffusion_pytorch_model"),
               CodecConfig{.kind = "cogvideox"},
               CogVideoXOptions{.dtype = dtype, .device = c10::Device(device)}) {}

  at::Tensor encode(const at::Tensor& clips, bool tiled) {
    return as(clips,
              tiled ? encode_tiled(codec_.network(), clips, tile()) : codec_.network().encode_moments(clips));
  }
  at::Tensor decode(const at::Tensor& latents, bool tiled) {
    return as(latents,
              tiled ? decode_tiled(codec_.network(), latents, tile()) : codec_.network().decode(latents));
  }
  std::string hash() { return codec_.hash(); }
  double scaling_factor() { return codec_.config().scaling_factor; }
  double shift_factor() { return codec_.config().shift_factor.value_or(0); }
  std::int64_t factor() { return codec_.factor(); }
  std::int64_t time_factor() { return codec_.time_factor(); }
  std::int64_t latent_channels() { return codec_.channels(); }

 private:
  VideoTile tile() const { return VideoTile::of(codec_.config()); }
  static at::Tensor as(const at::Tensor& input, const at::Tensor& made) {
    return made.to(input.options()).contiguous();
  }

  CogVideoXCodec codec_;
};

class PythonTextEncoder : public torch::CustomClassHolder {
 public:
  PythonTextEncoder(const std::string& folder, const std::string& device, at::ScalarType dtype,
                    std::int64_t limit, bool mask)
      : encoder_(TextConfig{.kind = "t5", .limit = limit, .mask = mask}, io::OpenFolder(folder, "codec"),
                 dtype) {
    encoder_.to(c10::Device(device));
  }

  std::tuple<at::Tensor, at::Tensor> encode(const std::vector<std::string>& prompts) {
    const EncodedText text = encoder_.encode(prompts);
    return {text.tokens, text.mask};
  }
  at::Tensor encode_ids(const at::Tensor& ids, const std::optional<at::Tensor>& mask) {
    return encoder_.encode_ids(ids, mask.value_or(at::Tensor()));
  }
  std::tuple<at::Tensor, at::Tensor> ids(const std::vector<std::string>& prompts) {
    const T5::Ids made = encoder_.ids(prompts);
    return {made.ids, made.mask};
  }
  std::string hash() { return encoder_.hash(); }
  std::int64_t width() { return encoder_.width(); }

 private:
  T5 encoder_;
};

at::Tensor draw(const at::Tensor& moments, const std::vector<std::int64_t>& seeds) {
  check(moments.dim() >= 3 && moments.size(1) % 2 == 0 && moments.is_floating_point(),
        "draw: moments: expected floating point (B, 2 z, ...), got ", moments.scalar_type(), " of shape ",
        moments.sizes());
  const std::vector<std::uint64_t> unsigned_seeds(seeds.begin(), seeds.end());
  return drawn_latents(moments, unsigned_seeds);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.def("draw_latents(Tensor moments, int[] seeds) -> Tensor", draw);
  m.class_<PythonTextEncoder>("TextEncoder")
      .def(torch::init<std::string, std::string, at::ScalarType, std::int64_t, bool>())
      .def("encode", &PythonTextEncoder::encode)
      .def("encode_ids", &PythonTextEncoder::encode_ids)
      .def("ids", &PythonTextEncoder::ids)
      .def("hash", &PythonTextEncoder::hash)
      .def("width", &PythonTextEncoder::width);
  m.class_<PythonVideoAutoencoder>("VideoAutoencoder")
      .def(torch::init<std::string, std::string, at::ScalarType>())
      .def("encode", &PythonVideoAutoencoder::encode)
      .def("decode", &PythonVideoAutoencoder::decode)
      .def("hash", &PythonVideoAutoencoder::hash)
      .def("scaling_factor", &PythonVideoAutoencoder::scaling_factor)
      .def("shift_factor", &PythonVideoAutoencoder::shift_factor)
      .def("factor", &PythonVideoAutoencoder::factor)
      .def("time_factor", &PythonVideoAutoencoder::time_factor)
      .def("latent_channels", &PythonVideoAutoencoder::latent_channels);
  m.class_<PythonAutoencoder>("Autoencoder")
      .def(torch::init<std::string, std::string, at::ScalarType>())
      .def("encode", &PythonAutoencoder::encode)
      .def("decode", &PythonAutoencoder::decode)
      .def("encode_within", &PythonAutoencoder::encode_within)
      .def("decode_within", &PythonAutoencoder::decode_within)
      .def("hash", &PythonAutoencoder::hash)
      .def("scaling_factor", &PythonAutoencoder::scaling_factor)
      .def("shift_factor", &PythonAutoencoder::shift_factor)
      .def("factor", &PythonAutoencoder::factor)
      .def("latent_channels", &PythonAutoencoder::latent_channels);
}

}  // namespace pom::codecs
