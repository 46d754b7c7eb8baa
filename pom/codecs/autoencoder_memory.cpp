#include "pom/codecs/autoencoder_memory.h"

#include <algorithm>

#include "pom/codecs/vae_layers.h"
#include "pom/ops/cpu_info.h"
#include "pom/ops/winograd.h"

namespace pom::codecs {
namespace {

// A level of the decoder: its channels, those that come up from the one below, its pixels.
struct Level {
  double in, out, height, width;
  bool deepest;
  double pixels() const { return height * width; }
};

Level level_of(const AutoencoderConfig& c, std::int64_t level, std::int64_t height, std::int64_t width) {
  const auto at = static_cast<std::size_t>(level);
  const auto side = static_cast<double>(std::int64_t{1} << level);
  const bool deepest = level + 1 == c.levels();
  const auto out = static_cast<double>(c.block_out_channels[at]);
  return {deepest ? out : static_cast<double>(c.block_out_channels[at + 1]), out,
          static_cast<double>(height) / side, static_cast<double>(width) / side, deepest};
}

// Values for each pixel of a level: on a GPU, with a convolution's workspace, the input of its widest resnet,
// that normed and what its convolution makes, or an upsampling's parities beside what they become.
double values_on_gpu(const Level& l) {
  return 2 * l.in + std::max(l.in, 2 * l.out);
}

// On a CPU: a resnet's input, or where channels change the shortcut's result beside it, the first norm and
// the first convolution; or an upsampling's two maps, four where it is not packed.
double values_on_cpu(const Level& l, bool packed, bool exact) {
  if (exact) return 11 * l.in + 2 * l.out;  // fp64 is convolved by products with nine copies
  const double resnet = l.in == l.out ? 3 * l.out : l.in + 2 * l.out;
  const double up = l.deepest ? 0 : l.in / 4 + (packed ? 1 : 2) * l.in;
  return std::max({resnet, up, 3 * l.out});
}

// In strips: rows of a level that eight rows of the picture need, and what each of its pixels takes.
double strip_values(const AutoencoderConfig& c, std::int64_t height, std::int64_t width) {
  constexpr double least_rows = 8, seen_by_resnet = 4;
  double rows = least_rows + 2, most = 0;
  for (std::int64_t i = 0; i < c.levels(); ++i) {
    const Level l = level_of(c, i, height, width);
    rows += seen_by_resnet * static_cast<double>(c.layers_per_block + 1);
    const double each = l.in + std::max(l.in, 2 * l.out) + l.out + 2 * l.in;
    most = std::max(most, std::min(rows, l.height) * l.width * each);
    rows = rows / 2 + 2;
  }
  return most;
}

bool of_two_bytes(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

bool all_packed(const AutoencoderConfig& c, at::ScalarType dtype) {
  return dtype != at::kDouble && !(dtype == at::kBFloat16 && ops::uses_amx()) &&
         std::ranges::all_of(c.block_out_channels,
                             [](std::int64_t n) { return n % ops::winograd_channels == 0; });
}

// Attention on a CPU: the map, keys and values, and some thousands of tokens on their way.
double attention_bytes(const Level& deepest, at::ScalarType dtype) {
  const double element = static_cast<double>(c10::elementSize(dtype));
  constexpr double tokens_at_once = 4096 + 1, passes = 8;
  if (dtype == at::kDouble) return 8 * deepest.pixels() * deepest.out * element;
  const double product = of_two_bytes(dtype) ? sizeof(float) : element;
  return deepest.pixels() * deepest.out * (element + 2 * product) +
         std::min(tokens_at_once, deepest.pixels()) * deepest.out * passes * sizeof(float);
}

// What a convolution of 16 bits takes that runs in fp32, some rows at a time (vae_layers.cpp): a shortcut, or
// the last one; all, where none is packed.
double widened_bytes(const AutoencoderConfig& c, std::int64_t height, std::int64_t width, bool packed) {
  constexpr double narrow = 2, at_once = widened_at_once;
  double most = 0;
  for (std::int64_t i = 0; i < c.levels(); ++i) {
    const Level l = level_of(c, i, height, width);
    const auto with = [&](double held, double in, double out) {
      most = std::max(most, l.pixels() * held * narrow +
                                std::min(at_once, l.pixels() * in) * (1 + out / in) * sizeof(float));
    };
    if (l.in != l.out) with(l.in + l.out, l.in, l.out);
    if (i == 0) with(l.out, l.out, static_cast<double>(c.out_channels));
    if (!packed) with(values_on_cpu(l, packed, false), l.in, l.out);
  }
  return most;
}

}  // namespace

DecoderMemory decoder_memory(const AutoencoderConfig& c, std::int64_t height, std::int64_t width,
                             c10::Device device, at::ScalarType dtype) {
  const bool packed = all_packed(c, dtype), exact = dtype == at::kDouble;
  const auto element = static_cast<double>(c10::elementSize(dtype));
  double most = 0;
  for (std::int64_t i = 0; i < c.levels(); ++i) {
    const Level l = level_of(c, i, height, width);
    most =
        std::max(most, l.pixels() * (device.is_cuda() ? values_on_gpu(l) : values_on_cpu(l, packed, exact)));
  }
  const Level deepest = level_of(c, c.levels() - 1, height, width);
  const double attention = c.mid_block_add_attention ? attention_bytes(deepest, dtype) : 0;
  const double picture = static_cast<double>(c.out_channels * height * width) * element;
  double scratch = 0;
  if (device.is_cpu()) {
    const std::int64_t widest = std::ranges::max(c.block_out_channels);
    if (packed) scratch += static_cast<double>(ops::winograd_scratch(widest, widest));
  }
  const double in_strips = of_two_bytes(dtype) && device.is_cpu() ? sizeof(float) : element;
  const double strips =
      deepest.pixels() * deepest.out * element + strip_values(c, height, width) * in_strips + picture;
  const double wide = device.is_cpu() && of_two_bytes(dtype) ? widened_bytes(c, height, width, packed) : 0;
  const double whole = std::max({most * element + picture, attention, wide + picture}) + scratch;
  return {static_cast<std::int64_t>(whole),
          static_cast<std::int64_t>(std::min(whole, std::max(strips, attention) + scratch))};
}

std::int64_t autoencoder_weight_bytes(const AutoencoderConfig& config, c10::Device device,
                                      at::ScalarType dtype) {
  double bytes = 0;
  for (const TensorSpec& spec : autoencoder_tensors(config)) {
    double count = 1;
    for (const std::int64_t side : spec.shape) count *= static_cast<double>(side);
    const bool square = spec.shape.size() == 4 && spec.shape[2] == 3;
    const bool packed = square && device.is_cpu() && all_packed(config, dtype) &&
                        spec.shape[0] % ops::winograd_channels == 0 &&
                        spec.shape[1] % ops::winograd_channels == 0 &&
                        spec.name.find("downsamplers") == std::string::npos;
    const bool doubled = packed && spec.name.find("upsamplers") != std::string::npos;
    if (packed && !doubled) count *= 16.0 / 9;
    const bool wide = device.is_cpu() && of_two_bytes(dtype);
    bytes += count * (packed || wide ? sizeof(float) : static_cast<double>(c10::elementSize(dtype)));
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace pom::codecs
