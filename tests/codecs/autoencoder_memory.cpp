// What decoding a picture takes: by counting beforehand, and by an allocator that counts while it runs.
#include "pom/codecs/autoencoder_memory.h"

#include "tests/cpu_meter.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <map>

#include <ATen/ATen.h>

#include "pom/codecs/autoencoder_kl.h"
#include "pom/ops/winograd.h"

namespace pom::codecs {
namespace {

using tests::Meter;

AutoencoderConfig small_config(std::vector<std::int64_t> channels, bool attention = true) {
  AutoencoderConfig config;
  config.block_out_channels = std::move(channels);
  config.layers_per_block = 1;
  config.norm_num_groups = 8;
  config.mid_block_add_attention = attention;
  return config;
}

AutoencoderKL random_network(const AutoencoderConfig& config, at::ScalarType dtype) {
  std::map<std::string, at::Tensor> weights;
  at::manual_seed(11);
  for (const TensorSpec& spec : autoencoder_tensors(config)) {
    const at::Tensor drawn = at::randn(spec.shape);
    weights[spec.name] =
        drawn.dim() > 1 ? drawn / std::sqrt(static_cast<double>(drawn[0].numel())) : drawn * 0.1 + 0.5;
  }
  return AutoencoderKL(config, [&](const std::string& name) {
    const at::Tensor w = weights.at(name).to(dtype);
    return w.dim() == 4 ? w.contiguous(at::MemoryFormat::ChannelsLast) : w;
  });
}

struct Sizes {
  std::int64_t height = 128, width = 96;
  at::Tensor latents(const AutoencoderConfig& c) const {
    at::manual_seed(12);
    return at::randn({1, c.latent_channels, height / c.factor(), width / c.factor()});
  }
};

// Beside what torch allocates there is the scratch of our kernels.
std::int64_t scratch_of(const AutoencoderConfig& c) {
  const std::int64_t widest = std::ranges::max(c.block_out_channels);
  return widest % ops::winograd_channels == 0 ? ops::winograd_scratch(widest, widest) : 0;
}

TEST(AutoencoderMemory, WholeIsWhatWasCounted) {
  const Sizes size;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
    for (const std::vector<std::int64_t>& channels :
         {std::vector<std::int64_t>{64, 128, 128}, {64, 64}, {40, 72, 72}}) {
      const AutoencoderConfig config = small_config(channels);
      const AutoencoderKL network = random_network(config, dtype);
      const at::Tensor latents = size.latents(config);
      const DecoderMemory forecast = decoder_memory(config, size.height, size.width, c10::kCPU, dtype);
      std::int64_t peak = 0;
      {
        const Meter meter;
        network.decode(latents);
        peak = meter.peak();
      }
      EXPECT_GE(forecast.whole, peak) << dtype << " " << channels[0];
      const bool packed = dtype != at::kDouble;
      const std::int64_t counted = forecast.whole - (packed ? scratch_of(config) : 0);
      // The count is for any processor. One that multiplies bf16 itself makes no copies in fp32.
      const double loose = dtype == at::kBFloat16 ? 2.4 : 1.6;
      EXPECT_LE(static_cast<double>(counted), loose * static_cast<double>(peak))
          << dtype << " " << channels[0];
    }
}

TEST(AutoencoderMemory, StripsStayWithinWhatTheyAreGiven) {
  const Sizes size{.height = 320, .width = 128};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const bool attention : {true, false}) {
      const AutoencoderConfig config = small_config({64, 64, 32}, attention);
      const AutoencoderKL network = random_network(config, dtype);
      const at::Tensor latents = size.latents(config);
      const DecoderMemory forecast = decoder_memory(config, size.height, size.width, c10::kCPU, dtype);
      ASSERT_LT(forecast.least, forecast.whole);
      const at::Tensor whole = network.decode(latents);
      for (const std::int64_t memory : {forecast.least, (forecast.least + forecast.whole) / 2}) {
        const Meter meter;
        const at::Tensor made = network.decode_within(latents, memory);
        EXPECT_LE(meter.peak(), memory + static_cast<std::int64_t>(made.nbytes())) << dtype;
        const double range = whole.abs().max().item<double>();
        EXPECT_LT((made - whole).abs().max().item<double>(), (dtype == at::kFloat ? 1e-5 : 0.05) * range);
      }
    }
}

TEST(AutoencoderMemory, WholeWhereItFitsChangesNoBit) {
  const AutoencoderConfig config = small_config({32, 64});
  const AutoencoderKL network = random_network(config, at::kFloat);
  at::manual_seed(13);
  const at::Tensor latents = at::randn({3, config.latent_channels, 9, 12});
  const at::Tensor all = network.decode(latents);
  EXPECT_TRUE(network.decode_within(latents, std::int64_t{1} << 40).equal(all));
  EXPECT_TRUE(network.decode(latents.narrow(0, 2, 1)).equal(all.narrow(0, 2, 1)));
}

TEST(AutoencoderMemory, WeightsAsTheyLie) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const AutoencoderConfig config = small_config({64, 128, 96});
    std::int64_t before = 0, peak = 0;
    {
      const Meter meter;
      const AutoencoderKL network = random_network(config, dtype);
      before = meter.now(), peak = meter.peak();
    }
    const auto counted = static_cast<double>(autoencoder_weight_bytes(config, c10::kCPU, dtype));
    EXPECT_NEAR(static_cast<double>(before) / counted, 1, 0.1) << dtype;
    EXPECT_GT(peak, before);
  }
}

}  // namespace
}  // namespace pom::codecs
