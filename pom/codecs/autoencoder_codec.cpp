#include "pom/codecs/autoencoder_codec.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/codecs/autoencoder_kl.h"
#include "pom/codecs/autoencoder_memory.h"

namespace pom::codecs {
namespace {

constexpr double least_log_variance = -30, most_log_variance = 20;

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kHalf       ? "fp16"
         : dtype == at::kBFloat16 ? "bf16"
         : dtype == at::kDouble   ? "fp64"
                                  : "fp32";
}

bool finite_values(const at::Tensor& x) {
  return at::isfinite(x).all().item<bool>();
}

}  // namespace

AutoencoderFolder open_autoencoder(const io::OpenFolder& folder, const std::string& within) {
  WeightFolder weights(folder, within, "diffusion_pytorch_model");
  AutoencoderConfig config = read_autoencoder_config(weights.config_text(), weights.config_source());
  weights.expect(autoencoder_tensors(config), autoencoder_rules());
  return {std::move(config), std::move(weights)};
}

std::unique_ptr<AutoencoderKL> read_autoencoder(const AutoencoderFolder& folder, c10::Device device,
                                                at::ScalarType dtype) {
  return std::make_unique<AutoencoderKL>(folder.config, [&](const std::string& name) {
    const at::Tensor values = folder.weights.read(name, dtype).to(device);
    return values.dim() == 4 ? values.contiguous(at::MemoryFormat::ChannelsLast) : values;
  });
}

at::Tensor drawn_latents(const at::Tensor& moments, std::span<const std::uint64_t> seeds) {
  const std::int64_t channels = moments.size(1) / 2;
  const at::Tensor mean = moments.narrow(1, 0, channels);
  if (seeds.empty()) return mean.contiguous();
  check(static_cast<std::int64_t>(seeds.size()) == moments.size(0),
        "encode: seeds: expected one for each of ", moments.size(0), " items, got ", seeds.size());
  at::Tensor noise = at::empty(mean.sizes(), at::kFloat);
  const std::int64_t each = noise.numel() / std::max<std::int64_t>(1, noise.size(0));
  for (std::size_t i = 0; i < seeds.size(); ++i)
    fill_normal(noise.data_ptr<float>() + static_cast<std::int64_t>(i) * each, each,
                {seeds[i], noise_for::codec});
  const at::Tensor deviation =
      moments.narrow(1, channels, channels).clamp(least_log_variance, most_log_variance).mul_(0.5).exp_();
  return deviation.mul_(noise.to(moments.options())).add_(mean);
}

AutoencoderCodec::AutoencoderCodec(const CodecConfig& config, std::int64_t channels, AutoencoderFolder folder)
    : config_(config), folder_(std::move(folder)) {
  const AutoencoderConfig& c = folder_.config;
  check(channels == c.latent_channels, folder_.weights.config_source(), ": latent_channels: expected ",
        channels, ", the network's channels, got ", c.latent_channels);
  check(c.in_channels == 3 && c.out_channels == 3, folder_.weights.config_source(),
        ": expected 3 channels in and out, got ", c.in_channels, " and ", c.out_channels);
}

AutoencoderCodec::~AutoencoderCodec() = default;

void AutoencoderCodec::set_options(const CodecOptions& options) {
  const std::lock_guard lock(mutex_);
  if (options.device != options_.device || options.dtype != options_.dtype) network_.reset(), exact_.reset();
  options_ = options;
}

std::int64_t AutoencoderCodec::weight_bytes() const {
  return autoencoder_weight_bytes(folder_.config, options_.device, options_.dtype);
}

std::vector<std::string> AutoencoderCodec::take_remarks() {
  const std::lock_guard lock(mutex_);
  return std::exchange(remarks_, {});
}

AutoencoderKL& AutoencoderCodec::network() const {
  const std::lock_guard lock(mutex_);
  if (!network_) network_ = read_autoencoder(folder_, options_.device, options_.dtype);
  return *network_;
}

// What run(network) gives, and once more in fp32 where 16 bits were not enough.
template <class Run>
at::Tensor AutoencoderCodec::checked(const char* what, Run&& run) const {
  const at::Tensor made = run(network());
  const bool short_values = options_.dtype == at::kHalf || options_.dtype == at::kBFloat16;
  if (!short_values || finite_values(made)) return made;
  {
    const std::lock_guard lock(mutex_);
    if (!exact_) exact_ = read_autoencoder(folder_, options_.device, at::kFloat);
    remarks_.push_back(pom::detail::concat(what, ": values that are not finite in ",
                                           dtype_name(options_.dtype), ": done again in fp32"));
  }
  return run(*exact_);
}

at::Tensor AutoencoderCodec::moments(const at::Tensor& pictures) const {
  return checked("encode", [&](const AutoencoderKL& net) {
    return options_.memory > 0 ? net.encode_within(pictures, options_.memory) : net.encode(pictures);
  });
}

at::Tensor AutoencoderCodec::encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds) const {
  return drawn_latents(moments(pictures), seeds).sub_(config_.shift).mul_(config_.scale);
}

at::Tensor AutoencoderCodec::decode(const at::Tensor& latents) const {
  const at::Tensor unscaled = latents.div(config_.scale).add_(config_.shift);
  return checked("decode", [&](const AutoencoderKL& net) {
    return options_.memory > 0 ? net.decode_within(unscaled, options_.memory) : net.decode(unscaled);
  });
}

at::Tensor AutoencoderCodec::encode_clips(const at::Tensor& clips,
                                          std::span<const std::uint64_t> seeds) const {
  return Codec::encode_clips(clips, seeds);
}

std::int64_t AutoencoderCodec::decode_bytes(std::int64_t height, std::int64_t width, std::int64_t) const {
  const DecoderMemory memory = decoder_memory(folder_.config, height, width, options_.device, options_.dtype);
  return options_.memory > 0 ? std::min(memory.whole, std::max(memory.least, options_.memory)) : memory.whole;
}

std::int64_t AutoencoderCodec::least_decode_bytes(std::int64_t height, std::int64_t width,
                                                  std::int64_t) const {
  return decoder_memory(folder_.config, height, width, options_.device, options_.dtype).least;
}

}  // namespace pom::codecs
