#include "pom/codecs/autoencoder_memory.h"

#include <algorithm>

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
  const double resnet = l.in == l.out ? 3 * l.out : std::max(l.in + 2 * l.out, exact ? 2 * l.in + l.out : 0);
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
    constexpr double wide_values = 1 << 22;  // of a convolution that runs in fp32 for 16 bits: see vae_layers
    if (of_two_bytes(dtype)) scratch += 2 * wide_values * sizeof(float);
  }
  const double strips =
      deepest.pixels() * deepest.out * element + strip_values(c, height, width) * element + picture;
  const double whole = std::max(most * element + picture, attention) + scratch;
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
