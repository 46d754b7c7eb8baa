#include "pom/codecs/autoencoder_kl.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/codecs/codec.h"
#include "pom/codecs/strips.h"
#include "pom/codecs/tiles.h"

namespace pom::codecs {
namespace {

std::string numbered(const std::string& list, std::int64_t i) {
  return list + "." + std::to_string(i);
}

// Collects the steps of a half; channels are those of the latest.
class StepReader {
 public:
  StepReader(const AutoencoderConfig& config, const TensorSource& source)
      : config_(config), source_(source) {}

  void conv(const std::string& name) { steps_.emplace_back(Conv::read_prepared(source_, name)); }
  void resnet(const std::string& name, std::int64_t out) {
    steps_.emplace_back(
        Resnet::read(source_, name, std::exchange(channels_, out), out, config_.norm_num_groups));
  }
  void middle(const std::string& name) {
    resnet(name + ".resnets.0", channels_);
    if (config_.mid_block_add_attention)
      steps_.emplace_back(PixelAttention::read(source_, name + ".attentions.0", config_.norm_num_groups));
    resnet(name + ".resnets.1", channels_);
  }
  void down(const std::string& name) {
    steps_.emplace_back(DownConv{Conv::read_prepared(source_, name, /*stride_1=*/false)});
  }
  void up(const std::string& name) { steps_.emplace_back(UpConv::read(source_, name)); }
  void out(const std::string& norm, const std::string& conv) {
    steps_.emplace_back(
        OutConv{GroupNorm::read(source_, norm, config_.norm_num_groups), Conv::read_prepared(source_, conv)});
  }
  void set_channels(std::int64_t channels) { channels_ = channels; }
  VaeSteps take() { return std::move(steps_); }

 private:
  const AutoencoderConfig& config_;
  const TensorSource& source_;
  std::int64_t channels_ = 0;
  VaeSteps steps_;
};

VaeSteps encoder_steps(const AutoencoderConfig& c, const TensorSource& source) {
  StepReader read(c, source);
  read.conv("encoder.conv_in");
  read.set_channels(c.block_out_channels.front());
  for (std::int64_t i = 0; i < c.levels(); ++i) {
    const std::string level = numbered("encoder.down_blocks", i);
    for (std::int64_t j = 0; j < c.layers_per_block; ++j)
      read.resnet(numbered(level + ".resnets", j), c.block_out_channels[static_cast<std::size_t>(i)]);
    if (i + 1 < c.levels()) read.down(level + ".downsamplers.0.conv");
  }
  read.middle("encoder.mid_block");
  read.out("encoder.conv_norm_out", "encoder.conv_out");
  if (c.use_quant_conv) read.conv("quant_conv");
  return read.take();
}

VaeSteps decoder_steps(const AutoencoderConfig& c, const TensorSource& source) {
  StepReader read(c, source);
  if (c.use_post_quant_conv) read.conv("post_quant_conv");
  read.conv("decoder.conv_in");
  read.set_channels(c.block_out_channels.back());
  read.middle("decoder.mid_block");
  for (std::int64_t i = 0; i < c.levels(); ++i) {
    const std::string level = numbered("decoder.up_blocks", i);
    for (std::int64_t j = 0; j <= c.layers_per_block; ++j)
      read.resnet(numbered(level + ".resnets", j),
                  c.block_out_channels[static_cast<std::size_t>(c.levels() - 1 - i)]);
    if (i + 1 < c.levels()) read.up(level + ".upsamplers.0.conv");
  }
  read.out("decoder.conv_norm_out", "decoder.conv_out");
  return read.take();
}

// So many items at a time that a GPU is busy and what lies there at once stays small. On a CPU one after
// another: an item must not depend on those beside it, and a product's last bit may depend on how many rows
// it has. Likewise where memory is short.
std::int64_t items_at_once(const VaeSteps& steps, const at::Tensor& x, std::int64_t memory) {
  if (!x.is_cuda() || memory > 0 || x.size(0) <= 1) return 1;
  const std::int64_t each = whole_bytes(steps, x.narrow(0, 0, 1)), items = x.size(0);
  const std::int64_t most = std::max<std::int64_t>(1, Codec::enough_at_once / each);
  const std::int64_t runs = (items + most - 1) / most;
  return (items + runs - 1) / runs;
}

// The result is as `like`, and plain in memory. Memory 0: as much as the whole takes.
at::Tensor run_items(const VaeSteps& steps, const at::Tensor& x, std::int64_t memory,
                     const at::Tensor& like) {
  const auto run = [&](const at::Tensor& part) {
    return memory > 0 ? run_within(steps, part, memory) : run_whole(steps, part);
  };
  const std::int64_t items = x.size(0), at_once = items_at_once(steps, x, memory);
  if (items <= at_once) return run(x).to(like.options()).contiguous();
  at::Tensor all;
  for (std::int64_t first = 0; first < items; first += at_once) {
    const at::Tensor made = run(x.narrow(0, first, std::min(at_once, items - first)));
    if (!all.defined()) all = at::empty({items, made.size(1), made.size(2), made.size(3)}, like.options());
    all.narrow(0, first, made.size(0)).copy_(made);
  }
  return all;
}

}  // namespace

AutoencoderKL::AutoencoderKL(AutoencoderConfig config, const TensorSource& source)
    : config_(std::move(config)) {
  const TensorSource noted = [&](const std::string& name) {
    at::Tensor values = source(name);
    dtype_ = values.scalar_type(), device_ = values.device();
    return values;
  };
  encoder_ = encoder_steps(config_, noted);
  decoder_ = decoder_steps(config_, noted);
}

void AutoencoderKL::check_pictures(const at::Tensor& pictures) const {
  const std::int64_t least = config_.factor();
  check(pictures.dim() == 4 && pictures.size(1) == config_.in_channels && pictures.is_floating_point(),
        "encode: pictures: expected floating point (B, ", config_.in_channels, ", H, W), got ",
        pictures.scalar_type(), " of shape ", pictures.sizes());
  check(pictures.size(2) >= least && pictures.size(3) >= least,
        "encode: pictures: expected sides of at least ", least, ", got ", pictures.size(2), " x ",
        pictures.size(3));
}

void AutoencoderKL::check_latents(const at::Tensor& latents) const {
  check(latents.dim() == 4 && latents.size(1) == config_.latent_channels && latents.is_floating_point(),
        "decode: latents: expected floating point (B, ", config_.latent_channels, ", h, w), got ",
        latents.scalar_type(), " of shape ", latents.sizes());
  check(latents.size(2) >= 1 && latents.size(3) >= 1, "decode: latents: expected sides of at least 1, got ",
        latents.size(2), " x ", latents.size(3));
}

at::Tensor AutoencoderKL::as_input(const at::Tensor& x) const {
  return x.to(x.options().dtype(dtype_).device(device_)).contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor AutoencoderKL::encode(const at::Tensor& pictures) const {
  const c10::NoGradGuard no_gradients;
  check_pictures(pictures);
  return run_items(encoder_, as_input(pictures), 0, pictures);
}

at::Tensor AutoencoderKL::decode(const at::Tensor& latents) const {
  const c10::NoGradGuard no_gradients;
  check_latents(latents);
  return run_items(decoder_, as_input(latents), 0, latents);
}

at::Tensor AutoencoderKL::encode_within(const at::Tensor& pictures, std::int64_t memory) const {
  const c10::NoGradGuard no_gradients;
  check_pictures(pictures);
  return run_items(encoder_, as_input(pictures), std::max<std::int64_t>(1, memory), pictures);
}

at::Tensor AutoencoderKL::decode_within(const at::Tensor& latents, std::int64_t memory) const {
  const c10::NoGradGuard no_gradients;
  check_latents(latents);
  return run_items(decoder_, as_input(latents), std::max<std::int64_t>(1, memory), latents);
}

at::Tensor AutoencoderKL::encode_tiled(const at::Tensor& pictures) const {
  check_pictures(pictures);
  const std::int64_t side = config_.sample_size.front(), latent = side / config_.factor();
  return blended_tiles(
      pictures, [&](const at::Tensor& tile) { return encode(tile); }, TileRule::quarters(side, latent));
}

at::Tensor AutoencoderKL::decode_tiled(const at::Tensor& latents) const {
  check_latents(latents);
  const std::int64_t side = config_.sample_size.front(), latent = side / config_.factor();
  return blended_tiles(
      latents, [&](const at::Tensor& tile) { return decode(tile); }, TileRule::quarters(latent, side));
}

}  // namespace pom::codecs
