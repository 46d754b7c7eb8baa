// CogVideoX's autoencoder for the referees of python/tests/test_cogvideox.py:
//   cogvideox_tool FOLDER IN.safetensors OUT.safetensors fp64|fp32|bf16|fp16 [TILE_HEIGHT TILE_WIDTH]
// A tensor of IN is named OPERATION.NAME; what the operation makes of it has its name in OUT:
//   encode, decode                moments and frames, unscaled
//   encode_tiled, decode_tiled    the same in tiles
//   stream                        latents decoded two by two, an odd number with three at first; after each
//                                 piece the state goes into a decoder that knows nothing
//   ones                          latents decoded one by one
//   alone, mean, draw             latents of the codec, scale 1; each 8 frames alone; clip i drawn with seed
//   i
#include <iostream>
#include <numeric>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/codecs/cogvideox_codec.h"
#include "pom/codecs/cogvideox_tiles.h"
#include "pom/generate/tensor_file.h"

namespace {

using namespace pom::codecs;

at::ScalarType dtype_named(const std::string& name) {
  if (name == "fp64") return at::kDouble;
  if (name == "bf16") return at::kBFloat16;
  return name == "fp16" ? at::kHalf : at::kFloat;
}

at::Tensor streamed(const CogVideoX& network, const at::Tensor& latents, std::int64_t each) {
  std::vector<at::Tensor> frames;
  CogVideoXStream::State state;
  for (std::int64_t first = 0; first < latents.size(2);) {
    const std::int64_t count = first == 0 && each > 1 ? each + latents.size(2) % each : each;
    CogVideoXStream stream = network.decoder();
    stream.set_state(state);
    frames.push_back(stream.next(latents.narrow(2, first, std::min(count, latents.size(2)))));
    state = stream.state();
    first += count;
  }
  return at::cat(frames, 2);
}

class Tool {
 public:
  Tool(const std::string& folder, at::ScalarType dtype, VideoTile tile)
      : folder_(folder, "cogvideox_tool"), dtype_(dtype), tile_(tile), codec_(opened("cached")) {
    if (tile_.height == 0) {
      tile_.height = VideoTile::of(codec_->config()).height;
      tile_.width = VideoTile::of(codec_->config()).width;
    }
  }

  at::Tensor run(const std::string& operation, const at::Tensor& x) const {
    const CogVideoX& network = codec_->network();
    if (operation == "encode") return network.encode_moments(x);
    if (operation == "decode") return network.decode(x);
    if (operation == "encode_tiled") return encode_tiled(network, x, tile_);
    if (operation == "decode_tiled") return decode_tiled(network, x, tile_);
    if (operation == "stream") return streamed(network, x, 2);
    if (operation == "ones") return streamed(network, x, 1);
    if (operation == "alone") return opened("alone")->encode_clips(x, {});
    if (operation == "mean") return codec_->encode_clips(x, {});
    std::vector<std::uint64_t> seeds(static_cast<std::size_t>(x.size(0)));
    std::iota(seeds.begin(), seeds.end(), 0);
    if (operation == "draw") return codec_->encode_clips(x, seeds);
    pom::fail("cogvideox_tool: unknown operation: ", operation);
  }

 private:
  std::unique_ptr<CogVideoXCodec> opened(const std::string& chunks) const {
    CogVideoXOptions options{.dtype = dtype_, .chunks = chunks};
    options.remark = [](const std::string& line) { std::cerr << line << '\n'; };
    return std::make_unique<CogVideoXCodec>(
        std::make_shared<WeightFolder>(folder_, "", "diffusion_pytorch_model"), CodecConfig{}, options);
  }

  pom::io::OpenFolder folder_;
  at::ScalarType dtype_;
  VideoTile tile_;
  std::unique_ptr<CogVideoXCodec> codec_;
};

}  // namespace

int main(int count, char** arguments) try {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  VideoTile tile{.height = 0, .width = 0};
  if (words.size() > 4) tile.height = std::stoll(words.at(4)), tile.width = std::stoll(words.at(5));
  const Tool tool(words.at(0), dtype_named(words.at(3)), tile);
  const auto in = pom::generate::read_tensors(pom::io::safetensors::Reader(words.at(1)));
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, x] : in.tensors) out[name] = tool.run(name.substr(0, name.find('.')), x);
  pom::generate::write_tensors(words.at(2), out, {});
} catch (const std::out_of_range&) {
  std::cerr << "cogvideox_tool: too few arguments\n";
  return 2;
} catch (const pom::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
