#include "pom/codecs/cogvideox_codec.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/isfinite.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/base/shown.h"
#include "pom/codecs/cogvideox_clips.h"

namespace pom::codecs {
namespace {

CogVideoX cogvideox_of(const std::shared_ptr<WeightFolder>& folder, const CogVideoXConfig& config,
                       at::ScalarType dtype, at::Device device) {
  const auto source = [folder, dtype, device](const std::string& name) {
    return folder->read(name, dtype).to(device);
  };
  return {config, source, at::TensorOptions(device).dtype(dtype)};
}

CogVideoX opened_cogvideox(const std::shared_ptr<WeightFolder>& folder, const CogVideoXConfig& config,
                           const CogVideoXOptions& options) {
  const at::ScalarType dtype = options.dtype;
  check(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
        "codec: dtype: expected fp32, bf16, fp16 or fp64, got ", dtype);
  check(options.chunks == "cached" || options.chunks == "alone",
        "codec: chunks: expected cached or alone, got \"", shown(options.chunks), "\"");
  return cogvideox_of(folder, config, dtype, options.device);
}

CogVideoXConfig checked_config(WeightFolder& folder) {
  const CogVideoXConfig config = read_cogvideox_config(folder.config_text(), folder.config_source());
  folder.expect(cogvideox_tensors(config), cogvideox_rules());
  return config;
}

void check_clip_sides(const at::Tensor& clips, std::int64_t factor) {
  check(clips.dim() == 5, "encode: clips: expected shape (B, C, T, H, W), got ", clips.sizes());
  check(clips.size(3) % factor == 0 && clips.size(4) % factor == 0,
        "encode: clips: expected sides that are multiples of ", factor, ", got ", clips.size(4), "x",
        clips.size(3));
}

// ---- memory ----

// What a decoder holds at most while so many latents go through it, in values: two frames of each causal
// convolution, and around one of them its input, that input normed behind two frames, and its result.
struct VideoDecoderMemory {
  std::int64_t kept = 0, most = 0;

  VideoDecoderMemory(const CogVideoXConfig& c, std::int64_t latents, std::int64_t height,
                     std::int64_t width) {
    std::int64_t in = c.block_out_channels.back();
    frames_ = latents, pixels_ = height * width;
    convolution(c.latent_channels);
    for (int j = 0; j < 2; ++j) resnet(in, in);
    for (std::int64_t i = 0; i < c.levels(); ++i) {
      const std::int64_t out = c.channels_at(c.levels() - 1 - i);
      for (std::int64_t j = 0; j <= c.layers_per_block; ++j) resnet(j == 0 ? in : out, out);
      in = out;
      if (i + 1 == c.levels()) break;
      // Before and after it is put into place, and where frames come twice.
      pixels_ *= 4;
      most = std::max(most, (2 * frames_ + frames_ / 4 + 1) * out * pixels_);
      if (i < c.time_levels() && frames_ > 1) {
        most = std::max(most, 3 * frames_ * out * pixels_);
        frames_ = 2 * frames_ - frames_ % 2;
      }
    }
    convolution(in);
  }

 private:
  void convolution(std::int64_t channels) { kept += 2 * channels * pixels_; }
  void resnet(std::int64_t in, std::int64_t out) {
    convolution(in), convolution(out);
    const std::int64_t t = frames_, room = frames_ + 2;
    const std::int64_t first = in * (t + room) + std::max(in, 2 * out) * t;
    const std::int64_t second = in * t + out * (2 * t + room);
    most = std::max(most, std::max(first, second) * pixels_);
  }

  std::int64_t frames_ = 0, pixels_ = 0;
};

}  // namespace

CogVideoXCodec::CogVideoXCodec(std::shared_ptr<WeightFolder> folder, const CodecConfig& codec,
                               CogVideoXOptions options)
    : folder_(std::move(folder)),
      codec_(codec),
      options_(std::move(options)),
      network_(opened_cogvideox(folder_, checked_config(*folder_), options_)) {}

void CogVideoXCodec::set_options(const CodecOptions& options) {
  if (options.device == options_.device && options.dtype == options_.dtype &&
      options.chunks == options_.chunks)
    return;
  CogVideoXOptions wanted = options_;
  wanted.device = options.device, wanted.dtype = options.dtype, wanted.chunks = options.chunks;
  network_ = opened_cogvideox(folder_, config(), wanted);
  options_ = std::move(wanted);
  const std::lock_guard lock(mutex_);
  wide_.reset();
  told_ = false;
}

std::int64_t CogVideoXCodec::weight_bytes() const {
  std::int64_t values = 0;
  for (const TensorSpec& spec : cogvideox_tensors(config())) {
    std::int64_t count = 1;
    for (const std::int64_t side : spec.shape) count *= side;
    values += count;
  }
  return values * static_cast<std::int64_t>(at::elementSize(options_.dtype));
}

std::vector<std::string> CogVideoXCodec::take_remarks() {
  const std::lock_guard lock(mutex_);
  return std::exchange(remarks_, {});
}

// ---- where fp16 is not enough ----

bool CogVideoXCodec::narrow() const {
  return options_.dtype == at::kHalf || options_.dtype == at::kBFloat16;
}

const CogVideoX& CogVideoXCodec::wide() const {
  const std::lock_guard lock(mutex_);
  if (!wide_)
    wide_ =
        std::make_unique<CogVideoX>(cogvideox_of(folder_, config(), at::kFloat, network_.options().device()));
  return *wide_;
}

void CogVideoXCodec::tell_wide(const char* operation) const {
  const std::string remark = detail::concat(operation, ": values that are not finite in ",
                                            at::toString(options_.dtype), ": done again in fp32");
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(told_, true)) return;
    remarks_.push_back(remark);
  }
  if (options_.remark) options_.remark(remark);
}

// A clip at a time, again in fp32 where that may help: what one becomes does not depend on those beside it.
template <class Run>
at::Tensor CogVideoXCodec::of_each(const at::Tensor& clips, const char* operation, const Run& run) const {
  std::vector<at::Tensor> all;
  for (std::int64_t b = 0; b < clips.size(0); ++b) {
    const at::Tensor clip = clips.narrow(0, b, 1);
    at::Tensor made = run(network_, clip);
    if (narrow() && !all_finite(made) && all_finite(clip)) {
      tell_wide(operation);
      made = run(wide(), clip);
    }
    all.push_back(made.to(clips.device(), options_.dtype == at::kDouble ? at::kDouble : at::kFloat));
  }
  check(!all.empty(), operation, ": expected at least one clip, got the shape ", clips.sizes());
  return all.size() == 1 ? all.front() : at::cat(all);
}

// ---- encoding ----

at::Tensor CogVideoXCodec::chunks_alone(const CogVideoX& network, const at::Tensor& clip) const {
  std::vector<at::Tensor> latents;
  for (std::int64_t first = 0; first < clip.size(2); first += CogVideoXConfig::frames_at_once)
    latents.push_back(network.encode_moments(clip.slice(2, first, first + CogVideoXConfig::frames_at_once)));
  return at::cat(latents, 2);
}

at::Tensor CogVideoXCodec::encoded(const at::Tensor& clips) const {
  check_clip_sides(clips, factor());
  const bool alone = options_.chunks == "alone";
  const std::int64_t frames = clips.size(2), at_once = CogVideoXConfig::frames_at_once;
  if (alone)
    check(frames == 1 || (frames > 0 && frames % at_once == 0), "encode: clips: expected a multiple of ",
          at_once, " frames, as each ", at_once, " are encoded alone, got ", frames);
  else
    check(config().returns(frames), "encode: clips: expected ", nearest_frames(config(), frames),
          " frames, as many as their latents are decoded to, got ", frames);
  return of_each(clips, "encode", [&](const CogVideoX& network, const at::Tensor& clip) {
    return alone ? chunks_alone(network, clip) : network.encode_moments(clip);
  });
}

at::Tensor CogVideoXCodec::encode_moments(const at::Tensor& clips) const {
  return encoded(clips);
}

// Means, or draws with noise whose positions count through a clip's latent.
at::Tensor CogVideoXCodec::latents_from(const at::Tensor& moments,
                                        std::span<const std::uint64_t> seeds) const {
  at::Tensor latents = moments.narrow(1, 0, channels());
  if (!seeds.empty()) {
    check(std::ssize(seeds) == latents.size(0), "encode: seeds: expected one for each of ", latents.size(0),
          " clips, got ", seeds.size());
    at::Tensor noise = at::empty(latents.sizes(), at::TensorOptions().dtype(at::kFloat));
    const std::int64_t each = noise.numel() / noise.size(0);
    for (std::size_t b = 0; b < seeds.size(); ++b)
      fill_normal(noise.data_ptr<float>() + static_cast<std::int64_t>(b) * each, each,
                  {seeds[b], noise_for::codec});
    constexpr double least = -30, most = 20;  // of the logarithm
    const at::Tensor deviation =
        moments.narrow(1, channels(), channels()).clamp(least, most).mul_(0.5).exp_();
    latents = latents.add(deviation.mul_(noise.to(moments.options())));
  }
  if (codec_.shift != 0) latents = latents.sub(codec_.shift);
  return codec_.scale != 1 ? latents.mul(codec_.scale) : latents.contiguous();
}

at::Tensor CogVideoXCodec::encode_clips(const at::Tensor& clips, std::span<const std::uint64_t> seeds) const {
  return latents_from(encoded(clips), seeds);
}

at::Tensor CogVideoXCodec::encode(const at::Tensor& pictures, std::span<const std::uint64_t> seeds) const {
  check(pictures.dim() == 4, "encode: pictures: expected shape (B, C, H, W), got ", pictures.sizes());
  return encode_clips(pictures.unsqueeze(2), seeds).squeeze(2);
}

// ---- decoding ----

at::Tensor CogVideoXCodec::decode_clips(const at::Tensor& latents) const {
  check(latents.dim() == 5, "decode: latents: expected shape (B, C, T, H, W), got ", latents.sizes());
  return of_each(latents, "decode",
                 [](const CogVideoX& network, const at::Tensor& clip) { return network.decode(clip); });
}

at::Tensor CogVideoXCodec::decode(const at::Tensor& latents) const {
  check(latents.dim() == 4, "decode: latents: expected shape (B, C, H, W), got ", latents.sizes());
  return decode_clips(latents.unsqueeze(2).div(codec_.scale).add_(codec_.shift)).squeeze(2);
}

std::unique_ptr<ClipDecoder> CogVideoXCodec::clip_decoder() const {
  return std::make_unique<CogVideoXClips>(*this);
}

std::int64_t CogVideoXCodec::decode_bytes(std::int64_t height, std::int64_t width,
                                          std::int64_t frames) const {
  const std::int64_t latents = std::max<std::int64_t>(1, (frames + time_factor() - 1) / time_factor());
  // Of more latents a chunk at a time.
  const std::int64_t chunk = std::min<std::int64_t>(latents, 2 + latents % 2);
  const VideoDecoderMemory memory(config(), chunk, height / factor(), width / factor());
  // In fp16 what was remembered before a chunk waits until that is known to be finite.
  const std::int64_t times = options_.dtype == at::kHalf ? 2 : 1;
  return (times * memory.kept + memory.most) * static_cast<std::int64_t>(at::elementSize(options_.dtype));
}

}  // namespace pom::codecs
