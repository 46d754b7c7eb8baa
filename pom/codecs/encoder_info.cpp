#include "pom/codecs/encoder_info.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ops/isfinite.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/codecs/autoencoder_codec.h"
#include "pom/codecs/cogvideox_codec.h"
#include "pom/codecs/t5.h"
#include "pom/io/json_fields.h"

namespace pom::codecs {
namespace {

// Enough of a config.json to know whose it is.
struct EncoderClass {
  std::string class_name = {}, model_type = {};

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "_class_name", .help = "class of diffusers"}, class_name);
    visit(Field{.name = "model_type", .help = "network of transformers"}, model_type);
  }
};

std::string file_within(const std::string& within, const std::string& name) {
  return within.empty() ? name : within + "/" + name;
}

EncoderClass encoder_class(const io::OpenFolder& folder, const std::string& within) {
  EncoderClass found;
  const std::string file = file_within(within, "config.json");
  io::read_json(io::read_json_text(folder, file), found, folder.path_of(file), io::JsonOrigin::foreign);
  return found;
}

// One of three networks, opened: headers are read, values are not.
struct OpenedEncoder {
  std::unique_ptr<AutoencoderFolder> pictures = {};
  std::unique_ptr<CogVideoXCodec> clips = {};
  std::unique_ptr<T5> text = {};

  const WeightFolder& weights() const {
    return pictures ? pictures->weights : clips ? clips->folder() : text->weights();
  }
  std::string hash() const { return text ? text->hash() : weights().hash(); }
};

OpenedEncoder open_encoder(const io::OpenFolder& folder, const std::string& within) {
  const EncoderClass found = encoder_class(folder, within);
  OpenedEncoder opened;
  if (found.class_name == "AutoencoderKL") {
    opened.pictures = std::make_unique<AutoencoderFolder>(open_autoencoder(folder, within));
  } else if (found.class_name == "AutoencoderKLCogVideoX") {
    auto weights = std::make_shared<WeightFolder>(folder, within, "diffusion_pytorch_model");
    opened.clips = std::make_unique<CogVideoXCodec>(std::move(weights), CodecConfig{.kind = "cogvideox"});
  } else if (found.model_type == "t5" || found.model_type == "mt5") {
    TextConfig config;
    config.kind = "t5";
    opened.text = std::make_unique<T5>(config, folder);
  } else {
    fail(folder.path_of(file_within(within, "config.json")),
         ": expected _class_name AutoencoderKL or AutoencoderKLCogVideoX, or model_type t5, got \"",
         shown(found.class_name.empty() ? found.model_type : found.class_name), "\"");
  }
  return opened;
}

std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

std::string levels_text(const std::vector<std::int64_t>& channels, std::int64_t layers) {
  return pom::detail::concat(channels.size(), channels.size() == 1 ? " level of " : " levels of ",
                             listed(channels), " channels, ", layers, layers == 1 ? " layer" : " layers",
                             " each");
}

// A side that people decode at and that the factor divides.
std::int64_t usual_side(std::int64_t side, std::int64_t factor) {
  return std::max<std::int64_t>(1, side / factor) * factor;
}

// Around a resnet of the first level, as it is run: its input, that input normed, and what comes out.
std::int64_t picture_encode_bytes(const AutoencoderConfig& c, std::int64_t side) {
  return 3 * c.block_out_channels.front() * side * side * std::int64_t{sizeof(float)};
}

// Likewise, with two frames that each causal convolution of the level keeps of the frames before.
std::int64_t clip_encode_bytes(const CogVideoXConfig& c, std::int64_t height, std::int64_t width) {
  std::int64_t kept = 0, most = 0, pixels = height * width, frames = CogVideoXConfig::frames_at_once,
               in = c.channels_at(0);
  for (std::int64_t level = 0; level < c.levels(); ++level, pixels /= 4) {
    const std::int64_t out = c.channels_at(level);
    for (std::int64_t layer = 0; layer < c.layers_per_block; ++layer, in = out) {
      kept += 2 * (in + out) * pixels;
      most = std::max(most, (in * (2 * frames + 2) + std::max(in, 2 * out) * frames) * pixels);
    }
    if (level < c.time_levels()) frames = (frames + 1) / 2;
  }
  return (kept + most) * std::int64_t{sizeof(float)};
}

void describe_pictures(AutoencoderFolder folder, EncoderInfo& info) {
  const AutoencoderConfig c = folder.config;
  info.kind = "autoencoder-kl";
  info.network = levels_text(c.block_out_channels, c.layers_per_block) +
                 (c.mid_block_add_attention ? ", attention in the middle" : ", no attention") +
                 (c.use_quant_conv || c.use_post_quant_conv ? "" : ", no quant convolutions");
  info.channels = c.latent_channels, info.factor = c.factor(), info.time_factor = 1;
  info.scale = c.scaling_factor, info.shift = c.shift_factor;
  constexpr std::int64_t usual = 512;
  const std::int64_t side = usual_side(std::max(usual, c.sample_size.front()), c.factor());
  const AutoencoderCodec codec({.kind = "autoencoder-kl"}, c.latent_channels, std::move(folder));
  info.memory = {side, side, 0, picture_encode_bytes(c, side), codec.decode_bytes(side, side, 1)};
}

void describe_clips(const CogVideoXCodec& codec, EncoderInfo& info) {
  const CogVideoXConfig& c = codec.config();
  info.kind = "cogvideox";
  info.network = levels_text(c.block_out_channels, c.layers_per_block);
  info.channels = c.latent_channels, info.factor = c.factor(), info.time_factor = c.time_factor();
  info.scale = c.scaling_factor, info.shift = c.shift_factor.value_or(0);
  const std::int64_t height = usual_side(c.sample_height, c.factor()),
                     width = usual_side(c.sample_width, c.factor()), frames = CogVideoXConfig::frames_at_once;
  info.memory = {width, height, frames, clip_encode_bytes(c, height, width),
                 codec.decode_bytes(height, width, frames)};
}

void describe_text(const T5& text, EncoderInfo& info) {
  const T5Config& c = text.network_config();
  info.kind = "t5";
  info.network = pom::detail::concat(c.num_layers, c.num_layers == 1 ? " layer" : " layers", " of width ",
                                     c.d_model, ", ", c.num_heads, " heads of ", c.d_kv, ", feed-forward ",
                                     c.d_ff, c.gated() ? ", gated (v1.1)" : ", relu (v1.0)");
  info.width = c.d_model, info.vocabulary = c.vocab_size;
  if (text.has_tokenizer()) info.pieces = text.tokenizer().size();
}

}  // namespace

std::vector<std::string> encoders_in(const io::OpenFolder& folder) {
  if (folder.has("config.json")) {
    const EncoderClass found = encoder_class(folder, "");
    if (!found.class_name.empty() || !found.model_type.empty()) return {""};
  }
  std::vector<std::string> found;
  for (const char* within : {vae_folder, text_folder})
    if (folder.has(file_within(within, "config.json"))) found.push_back(within);
  return found;
}

EncoderInfo describe_encoder(const io::OpenFolder& folder, const std::string& within) {
  OpenedEncoder opened = open_encoder(folder, within);
  const WeightFolder& weights = opened.weights();
  EncoderInfo info;
  info.where = weights.where();
  info.files = weights.files(), info.dtypes = weights.dtypes();
  const std::vector<TensorSpec> tensors = weights.tensors();
  info.tensors = std::ssize(tensors);
  for (const TensorSpec& tensor : tensors) {
    std::int64_t values = 1;
    for (const std::int64_t side : tensor.shape) values *= side;
    info.parameters += values;
  }
  info.bytes = weights.bytes();
  if (opened.pictures)
    describe_pictures(std::move(*opened.pictures), info);
  else if (opened.clips)
    describe_clips(*opened.clips, info);
  else
    describe_text(*opened.text, info);
  return info;
}

std::string encoder_hash(const io::OpenFolder& folder, const std::string& within) {
  return open_encoder(folder, within).hash();
}

std::int64_t check_finite_encoder(const io::OpenFolder& folder, const std::string& within) {
  const OpenedEncoder opened = open_encoder(folder, within);
  const WeightFolder& weights = opened.weights();
  std::int64_t values = 0;
  for (const TensorSpec& tensor : weights.tensors()) {
    const at::Tensor read = weights.read(tensor.name, weights.stored_dtype(tensor.name));
    check(at::isfinite(read).all().item<bool>(), weights.where(), ": ", tensor.name,
          ": expected finite values, got infinite ones or NaN");
    values += read.numel();
  }
  return values;
}

}  // namespace pom::codecs
