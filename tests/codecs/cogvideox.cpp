// Tests of CogVideoX's autoencoder: golden numbers of diffusers' own in fp64, and streams.
#include "pom/codecs/cogvideox.h"

#include "tests/codecs/cogvideox_fixture.h"
#include <functional>
#include <gtest/gtest.h>
#include <utility>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

struct Golden {
  std::vector<std::int64_t> shape;
  double sum, absolutes, first, last;
};

void expect_golden(const at::Tensor& x, const Golden& golden) {
  constexpr double digits = 2e-8;  // that were printed
  ASSERT_EQ(x.sizes(), golden.shape);
  EXPECT_NEAR(x.sum().item<double>(), golden.sum, digits);
  EXPECT_NEAR(x.abs().sum().item<double>(), golden.absolutes, digits);
  EXPECT_NEAR(x.flatten()[0].item<double>(), golden.first, digits);
  EXPECT_NEAR(x.flatten()[-1].item<double>(), golden.last, digits);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

TEST(CogVideoX, GoldenNumbers) {
  const CogVideoX network = small_network();
  expect_golden(network.encode_moments(some_clips({1, 3, 16, 16, 24})),
                {{1, 8, 4, 2, 3}, 11.92787115, 68.01504248, -0.07649234, 0.13458742});
  expect_golden(network.decode(some_latents({1, 4, 4, 2, 3})),
                {{1, 3, 16, 16, 24}, -2839.76823909, 9760.45908802, -0.51160431, -0.20732265});
  expect_golden(network.encode_moments(some_clips({1, 3, 17, 16, 24})),
                {{1, 8, 5, 2, 3}, 1.34055891, 80.85046761, 0.10629750, 0.21603793});
  expect_golden(network.decode(some_latents({1, 4, 5, 2, 3})),
                {{1, 3, 17, 16, 24}, -4584.79977585, 10710.47929026, -0.69435515, -0.40841209});
}

TEST(CogVideoX, FixtureIsTheReferences) {
  std::int64_t values = 0;
  for (const auto& [name, tensor] : random_weights(small_config())) values += tensor.numel();
  EXPECT_EQ(cogvideox_tensors(small_config()).size(), 244u);
  EXPECT_EQ(values, 338'411);
}

TEST(CogVideoX, RemembersTwoFramesOfEachCausalConvolution) {
  const CogVideoX network = small_network(at::kFloat);
  CogVideoXStream decoder = network.decoder(), encoder = network.encoder();
  decoder.next(some_latents({1, 4, 2, 2, 3}));
  encoder.next(some_clips({1, 3, 8, 16, 24}));
  // conv_in and conv_out, the middle's 4 and 2 for each resnet of 4 levels.
  EXPECT_EQ(decoder.state().size(), 2u + 4 + 4 * 2 * 2);
  EXPECT_EQ(encoder.state().size(), 2u + 4 + 4 * 1 * 2);
  EXPECT_EQ(decoder.state().at("decoder.conv_out").sizes(), (std::vector<std::int64_t>{1, 8, 2, 16, 24}));
  EXPECT_EQ(encoder.state().at("encoder.conv_out").sizes(), (std::vector<std::int64_t>{1, 24, 2, 2, 3}));
  for (const CogVideoXStream* stream : {&decoder, &encoder})
    for (const auto& [name, tensor] : stream->state())
      EXPECT_EQ(tensor.storage().nbytes(), static_cast<std::size_t>(tensor.nbytes())) << name;
}

TEST(CogVideoX, PublishedModelsRemember38And30) {
  CogVideoXConfig config;
  config.block_out_channels = {4, 4, 4, 4};
  config.norm_num_groups = 2;
  const CogVideoX network = network_of_weights(config, random_weights(config), at::kFloat);
  EXPECT_EQ(network.path(CogVideoX::Way::decode).places.size(), 38u);
  EXPECT_EQ(network.path(CogVideoX::Way::encode).places.size(), 30u);
}

TEST(CogVideoX, StreamIsTheWholeClip) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const CogVideoX network = small_network(dtype);
    const at::Tensor latents = some_latents({2, 4, 6, 2, 3}), clips = some_clips({2, 3, 24, 16, 24});
    CogVideoXStream decoder = network.decoder(), encoder = network.encoder();
    std::vector<at::Tensor> frames, moments;
    for (int i = 0; i < 3; ++i) {
      frames.push_back(decoder.next(latents.narrow(2, 2 * i, 2)));
      moments.push_back(encoder.next(clips.narrow(2, 8 * i, 8)));
    }
    EXPECT_TRUE(at::equal(at::cat(frames, 2), network.decode(latents)));
    EXPECT_TRUE(at::equal(at::cat(moments, 2), network.encode_moments(clips)));
  }
}

TEST(CogVideoX, StateGoesOnElsewhere) {
  const CogVideoX network = small_network(at::kFloat);
  const at::Tensor latents = some_latents({2, 4, 6, 2, 3});
  CogVideoXStream whole = network.decoder();
  whole.next(latents.narrow(2, 0, 2));
  const CogVideoXStream::State state = whole.state();
  CogVideoXStream::State copies;
  for (const auto& [name, tensor] : state) copies[name] = tensor.clone();
  const at::Tensor second = whole.next(latents.narrow(2, 2, 2)), third = whole.next(latents.narrow(2, 4, 2));
  // What was given out is not overwritten by what comes next, nor by who goes on from it, in any layout.
  for (const CogVideoXStream::State* from : {&state, &std::as_const(copies)}) {
    CogVideoXStream other = network.decoder();
    other.set_state(*from);
    EXPECT_TRUE(at::equal(other.next(latents.narrow(2, 2, 2)), second));
    EXPECT_TRUE(at::equal(other.next(latents.narrow(2, 4, 2)), third));
    for (const auto& [name, tensor] : state) EXPECT_TRUE(at::equal(tensor, copies.at(name))) << name;
  }
  CogVideoXStream contiguous = network.decoder();
  for (auto& [name, tensor] : copies) tensor = tensor.contiguous();
  contiguous.set_state(copies);
  EXPECT_TRUE(at::equal(contiguous.next(latents.narrow(2, 2, 2)), second));
  contiguous.set_state({});
  EXPECT_FALSE(contiguous.started());
  EXPECT_TRUE(at::equal(contiguous.next(latents.narrow(2, 0, 2)), network.decode(latents.narrow(2, 0, 2))));
}

TEST(CogVideoX, WithoutWhatItRemembersFramesDiffer) {
  const CogVideoX network = small_network();
  const at::Tensor latents = some_latents({1, 4, 4, 2, 3}), clips = some_clips({1, 3, 16, 16, 24});
  const at::Tensor frames = network.decode(latents), moments = network.encode_moments(clips);
  EXPECT_GT(distance(network.decode(latents.narrow(2, 2, 2)), frames.narrow(2, 8, 8)), 0.1);
  EXPECT_GT(distance(network.encode_moments(clips.narrow(2, 8, 8)), moments.narrow(2, 2, 2)), 0.1);
}

// What is kept is the last of [what was kept, what came], also where less than two frames came.
TEST(CogVideoX, ChunksOfOneFrame) {
  const CogVideoX network = small_network();
  const at::Tensor latents = some_latents({1, 4, 3, 2, 3}).to(at::kDouble);
  CogVideoXStream decoder = network.decoder();
  decoder.next(latents.narrow(2, 0, 1));
  const at::Tensor first = latents.narrow(2, 0, 1).expand({1, 4, 2, 2, 3});
  EXPECT_TRUE(at::equal(decoder.state().at("decoder.conv_in"), first));
  decoder.next(latents.narrow(2, 1, 1));
  EXPECT_TRUE(at::equal(decoder.state().at("decoder.conv_in"), latents.narrow(2, 0, 2)));
  EXPECT_EQ(decoder.next(latents.narrow(2, 2, 1)).size(2), 1);
  EXPECT_TRUE(at::equal(decoder.state().at("decoder.conv_in"), latents.narrow(2, 1, 2)));
}

TEST(CogVideoX, ClipsDoNotDependOnThoseBeside) {
  const CogVideoX network = small_network(at::kFloat);
  const at::Tensor latents = some_latents({3, 4, 4, 2, 3}), frames = network.decode(latents);
  EXPECT_TRUE(at::equal(network.decode(latents.narrow(0, 1, 1)), frames.narrow(0, 1, 1)));
}

TEST(CogVideoX, InputsMayLieAnyhow) {
  const CogVideoX network = small_network(at::kFloat);
  const at::Tensor latents = some_latents({1, 4, 2, 2, 3});
  const at::Tensor expected = network.decode(latents), before = latents.clone();
  EXPECT_TRUE(at::equal(network.decode(latents.to(at::MemoryFormat::ChannelsLast3d)), expected));
  EXPECT_TRUE(at::equal(network.decode(latents.transpose(3, 4).contiguous().transpose(3, 4)), expected));
  EXPECT_TRUE(at::equal(network.decode(latents.to(at::kDouble)), expected));
  EXPECT_TRUE(at::equal(latents, before)) << "the input was changed";
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(CogVideoX, Refusals) {
  const CogVideoX network = small_network(at::kFloat);
  EXPECT_EQ(refusal([&] {
              network.decode(at::rand({1, 3, 2, 2, 3}));
            }),
            "decode: latents: expected floating point (B, 4, T, H, W), got Float of shape [1, 3, 2, 2, 3]");
  EXPECT_EQ(refusal([&] {
              network.encode_moments(at::rand({1, 3, 8, 16, 4}));
            }),
            "encode: clips: expected at least one frame of 8x8, got the shape [1, 3, 8, 16, 4]");
  EXPECT_NE(refusal([&] { network.decode(at::rand({1, 4, 0, 2, 3})); }), "none");
  EXPECT_NE(refusal([&] { network.decode(at::zeros({1, 4, 2, 2, 3}, at::kByte)); }), "none");
  CogVideoXStream decoder = network.decoder();
  decoder.next(some_latents({1, 4, 2, 2, 3}));
  EXPECT_EQ(
      refusal([&] {
        decoder.next(some_latents({2, 4, 2, 2, 3}));
      }),
      "decode: latents: expected 1 clips with sides 2 and 3, as those before, got the shape [2, 4, 2, 2, "
      "3]");
  CogVideoXStream::State state = decoder.state();
  const at::Tensor kept = state.at("decoder.conv_out");
  state.at("decoder.conv_out") = kept.narrow(3, 0, 8);
  EXPECT_EQ(
      refusal([&] { decoder.set_state(state); }),
      "decode: state: decoder.conv_out: expected floating point of shape [1, 8, 2, 16, 24], got Float of "
      "shape [1, 8, 2, 8, 24]");
  state.erase("decoder.conv_out");
  EXPECT_EQ(refusal([&] { decoder.set_state(state); }), "decode: state: expected 22 tensors, got 21");
  state["decoder.conv_uot"] = kept;
  EXPECT_EQ(refusal([&] { decoder.set_state(state); }), "decode: state: no decoder.conv_out");
  // It goes on as if nothing had been said.
  CogVideoXStream same = network.decoder();
  same.next(some_latents({1, 4, 2, 2, 3}));
  const at::Tensor next = at::rand({1, 4, 2, 2, 3});
  EXPECT_TRUE(at::equal(decoder.next(next), same.next(next)));
}

}  // namespace
}  // namespace pom::codecs
