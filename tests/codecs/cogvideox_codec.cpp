// Tests of CogVideoX's autoencoder as a codec: folders, latents with their scale, clips as they come, and
// what happens where fp16 is not enough.
#include "pom/codecs/cogvideox_codec.h"

#include "tests/codecs/cogvideox_fixture.h"
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/io/safetensors.h"

namespace pom::codecs {
namespace {

namespace fs = std::filesystem;

// A folder with the small network, of which one tensor may be made larger.
class Folder {
 public:
  explicit Folder(const std::string& larger = {}, double times = 1) {
    static int number = 0;
    path_ = fs::temp_directory_path() / detail::concat("cogvideox_codec_", ::getpid(), "_", number++);
    fs::create_directories(path_);
    CogVideoXConfig config = small_config();
    std::ofstream(path_ / "config.json")
        << R"({"_class_name": "AutoencoderKLCogVideoX", "block_out_channels": [8, 16, 16, 24],
               "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4})";
    std::map<std::string, at::Tensor> weights = random_weights(config);
    if (!larger.empty()) weights.at(larger) = weights.at(larger) * times;
    std::vector<io::safetensors::TensorView> views;
    for (const auto& [name, tensor] : weights)
      views.push_back({name,
                       io::safetensors::Dtype::F32,
                       tensor.sizes(),
                       {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
    io::safetensors::write(path_ / "diffusion_pytorch_model.safetensors", views);
  }
  ~Folder() { fs::remove_all(path_); }

  CogVideoXCodec open(const CogVideoXOptions& options = {}, const CodecConfig& codec = {}) const {
    return {std::make_shared<WeightFolder>(io::OpenFolder(path_, "test"), "", "diffusion_pytorch_model"),
            codec, options};
  }

 private:
  fs::path path_;
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(CogVideoXCodec, MeansWithScaleAndShift) {
  const Folder folder;
  const CogVideoXCodec plain = folder.open(), scaled = folder.open({}, {.scale = 2, .shift = 0.25});
  EXPECT_EQ(plain.channels(), 4);
  EXPECT_EQ(plain.factor(), 8);
  EXPECT_EQ(plain.time_factor(), 4);
  const at::Tensor clips = some_clips({2, 3, 9, 16, 24});
  const at::Tensor mean = plain.network().encode_moments(clips).narrow(1, 0, 4);
  EXPECT_TRUE(at::equal(plain.encode_clips(clips, {}), mean));
  EXPECT_TRUE(at::equal(plain.encode_moments(clips), plain.network().encode_moments(clips)));
  const at::Tensor latents = scaled.encode_clips(clips, {});
  EXPECT_TRUE(at::equal(latents, (mean - 0.25) * 2));
  const at::Tensor frames = plain.network().decode(mean);
  EXPECT_TRUE(at::allclose(scaled.clip_decoder()->next(latents), frames, 1e-4, 1e-4));
  EXPECT_TRUE(at::equal(plain.clip_decoder()->next(mean), frames));
  EXPECT_TRUE(at::equal(plain.decode_clips(mean), frames));
}

TEST(CogVideoXCodec, DrawsAreOfTheClipsSeed) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open();
  const at::Tensor clips = some_clips({2, 3, 8, 16, 24});
  const at::Tensor moments = codec.encode_moments(clips);
  const std::vector<std::uint64_t> seeds = {7, 9};
  const at::Tensor drawn = codec.encode_clips(clips, seeds).contiguous();
  const at::Tensor mean = moments.narrow(1, 0, 4).contiguous();
  const at::Tensor deviation = (moments.narrow(1, 4, 4).clamp(-30, 20) / 2).exp().contiguous();
  const std::int64_t each = mean.numel() / 2;
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{5}, each - 1, each, 2 * each - 1}) {
    const float noise = normal_at({seeds[static_cast<std::size_t>(i / each)], noise_for::codec}, i % each);
    EXPECT_FLOAT_EQ(drawn.data_ptr<float>()[i],
                    mean.data_ptr<float>()[i] + deviation.data_ptr<float>()[i] * noise);
  }
  EXPECT_TRUE(at::equal(codec.encode_clips(clips.narrow(0, 1, 1), std::span(seeds).subspan(1)),
                        drawn.narrow(0, 1, 1)));
  EXPECT_EQ(refusal([&] { codec.encode_clips(clips, std::span(seeds).first(1)); }),
            "encode: seeds: expected one for each of 2 clips, got 1");
}

TEST(CogVideoXCodec, PicturesAreClipsOfOneFrame) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open();
  const at::Tensor pictures = some_clips({2, 3, 16, 24});
  const at::Tensor latents = codec.encode(pictures, {});
  ASSERT_EQ(latents.sizes(), (std::vector<std::int64_t>{2, 4, 2, 3}));
  EXPECT_TRUE(at::equal(latents, codec.encode_clips(pictures.unsqueeze(2), {}).squeeze(2)));
  EXPECT_TRUE(at::equal(codec.decode(latents), codec.decode_clips(latents.unsqueeze(2)).squeeze(2)));
}

TEST(CogVideoXCodec, ChunksAlone) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open({.chunks = "alone"});
  const at::Tensor clips = some_clips({1, 3, 16, 16, 24});
  const at::Tensor latents = codec.encode_clips(clips, {});
  for (const int i : {0, 1})
    EXPECT_TRUE(at::equal(latents.narrow(2, 2 * i, 2), codec.encode_clips(clips.narrow(2, 8 * i, 8), {})));
  EXPECT_FALSE(at::equal(latents, folder.open().encode_clips(clips, {})));
  EXPECT_EQ(refusal([&] { codec.encode_clips(clips.narrow(2, 0, 9), {}); }),
            "encode: clips: expected a multiple of 8 frames, as each 8 are encoded alone, got 9");
}

TEST(CogVideoXCodec, ClipsAsTheyCome) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open({}, {.scale = 0.5});
  const at::Tensor latents = some_latents({2, 4, 6, 2, 3});
  const at::Tensor whole = codec.clip_decoder()->next(latents);
  const auto decoder = codec.clip_decoder(), other = codec.clip_decoder();
  EXPECT_TRUE(decoder->state().empty());
  EXPECT_TRUE(at::equal(decoder->next(latents.narrow(2, 0, 2)), whole.narrow(2, 0, 8)));
  other->set_state(decoder->state());
  EXPECT_TRUE(at::equal(other->next(latents.narrow(2, 2, 4)), whole.narrow(2, 8, 16)));
  EXPECT_TRUE(at::equal(decoder->next(latents.narrow(2, 2, 2)), whole.narrow(2, 8, 8)));
  EXPECT_EQ(refusal([&] { decoder->next(latents.narrow(2, 0, 1)); }),
            "decode: latents: expected an even number of frames, as they are decoded two by two, got 1");
  EXPECT_EQ(refusal([&] { decoder->next(latents.narrow(0, 0, 1).narrow(2, 0, 2)); }),
            "decode: latents: expected 2 clips, as before, got 1");
  EXPECT_TRUE(at::equal(decoder->next(latents.narrow(2, 4, 2)), whole.narrow(2, 16, 8)));
  decoder->set_state({});
  EXPECT_EQ(decoder->next(latents.narrow(2, 0, 3)).size(2), 9);
  EXPECT_THROW(decoder->set_state({{"a", at::zeros({1})}}), Error);
}

// A decoder goes on with the network that it began with.
TEST(CogVideoXCodec, OptionsChangeWhatBeginsLater) {
  const Folder folder;
  CogVideoXCodec codec = folder.open();
  const at::Tensor latents = some_latents({1, 4, 4, 2, 3});
  const at::Tensor whole = codec.decode_clips(latents);
  const auto decoder = codec.clip_decoder();
  EXPECT_TRUE(at::equal(decoder->next(latents.narrow(2, 0, 2)), whole.narrow(2, 0, 8)));
  codec.set_options({.dtype = at::kDouble});
  EXPECT_TRUE(at::equal(decoder->next(latents.narrow(2, 2, 2)), whole.narrow(2, 8, 8)));
  const at::Tensor exact = codec.clip_decoder()->next(latents);
  EXPECT_EQ(exact.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::allclose(exact.to(at::kFloat), whole, 1e-4, 1e-4));
  EXPECT_THROW(codec.set_options({.chunks = "some"}), Error);
  EXPECT_EQ(codec.decode_clips(latents).scalar_type(), at::kDouble) << "as it was";
  EXPECT_EQ(codec.weight_bytes(), 338'411 * 8);
}

TEST(CogVideoXCodec, Refusals) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open();
  EXPECT_EQ(refusal([&] {
              codec.encode_clips(at::rand({1, 3, 13, 16, 24}), {});
            }),
            "encode: clips: expected 9 or 16 frames, as many as their latents are decoded to, got 13");
  EXPECT_EQ(refusal([&] {
              codec.encode_clips(at::rand({1, 3, 8, 16, 20}), {});
            }),
            "encode: clips: expected sides that are multiples of 8, got 20x16");
  EXPECT_NE(refusal([&] { codec.encode(at::rand({1, 3, 8, 16, 24}), {}); }), "none");
  EXPECT_NE(refusal([&] { codec.decode(at::rand({1, 4, 2, 2, 3})); }), "none");
  EXPECT_NE(refusal([&] { codec.decode(at::rand({0, 4, 2, 3})); }), "none");
  EXPECT_EQ(refusal([&] { folder.open({.chunks = "some"}); }),
            "codec: chunks: expected cached or alone, got \"some\"");
  EXPECT_NE(refusal([&] { folder.open({.dtype = at::kInt}); }), "none");
}

// Values beyond 65504 in the middle of the network.
TEST(CogVideoXCodec, RepeatedInFp32WhereFp16IsNotEnough) {
  const Folder folder("decoder.up_blocks.1.resnets.0.conv2.conv.weight", 1e6);
  std::vector<std::string> remarks;
  const CogVideoXCodec half =
      folder.open({.dtype = at::kHalf, .remark = [&](const std::string& line) { remarks.push_back(line); }});
  const CogVideoXCodec full = folder.open();
  const at::Tensor latents = some_latents({1, 4, 4, 2, 3});
  const auto is_near = [&](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).abs().max() / b.abs().max()).item<double>() < 2e-2;
  };
  EXPECT_FALSE(half.network().decode(latents).isfinite().all().item<bool>());
  EXPECT_TRUE(at::equal(half.decode_clips(latents), full.decode_clips(latents)));
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_TRUE(remarks[0].ends_with("decode: values that are not finite in Half: done again in fp32"))
      << remarks[0];
  // A stream goes on in fp32, here and elsewhere.
  const at::Tensor whole = full.decode_clips(latents);
  const auto decoder = half.clip_decoder(), other = half.clip_decoder();
  EXPECT_TRUE(is_near(decoder->next(latents.narrow(2, 0, 2)), whole.narrow(2, 0, 8)));
  other->set_state(decoder->state());
  const at::Tensor last = decoder->next(latents.narrow(2, 2, 2));
  EXPECT_TRUE(is_near(last, whole.narrow(2, 8, 8)));
  EXPECT_TRUE(at::equal(other->next(latents.narrow(2, 2, 2)), last));
  EXPECT_EQ(remarks.size(), 1u) << "told once";
}

TEST(CogVideoXCodec, AClipInFp32DoesNotChangeTheOneBeside) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open({.dtype = at::kHalf});
  at::Tensor latents = some_latents({2, 4, 4, 2, 3});
  latents[1].mul_(3e5);  // is not a number of fp16
  const auto both = codec.clip_decoder(), alone = codec.clip_decoder(), restored = codec.clip_decoder();
  const at::Tensor frames = both->next(latents.narrow(2, 0, 2));
  EXPECT_TRUE(frames.isfinite().all().item<bool>());
  const auto first = [&](std::int64_t t) { return latents.narrow(0, 0, 1).narrow(2, t, 2); };
  EXPECT_TRUE(at::equal(alone->next(first(0)), frames.narrow(0, 0, 1)));
  restored->set_state(both->state());
  const at::Tensor second = both->next(latents.narrow(2, 2, 2));
  EXPECT_TRUE(at::equal(alone->next(first(2)), second.narrow(0, 0, 1)));
  EXPECT_TRUE(at::equal(restored->next(latents.narrow(2, 2, 2)), second));
}

TEST(CogVideoXCodec, MemoryOfDecoding) {
  const Folder folder;
  const CogVideoXCodec codec = folder.open(), half = folder.open({.dtype = at::kBFloat16});
  const std::int64_t block = codec.decode_bytes(160, 240, 8);
  EXPECT_EQ(codec.decode_bytes(160, 240, 80), block) << "chunk by chunk";
  EXPECT_NEAR(static_cast<double>(codec.decode_bytes(320, 240, 8)), 2.0 * static_cast<double>(block), 1.0);
  EXPECT_EQ(2 * half.decode_bytes(160, 240, 8), block);
  EXPECT_LT(codec.decode_bytes(160, 240, 1), block);
}

}  // namespace
}  // namespace pom::codecs
