#include "pom/codecs/codec.h"

#include <ATen/core/Tensor.h>

#include "pom/base/error.h"

namespace pom::codecs {
namespace {

void check_clips(const char* where, const at::Tensor& clips) {
  check(clips.dim() == 5, where, ": expected shape (B, C, T, H, W), got ", clips.sizes());
}

// (B, C, T, H, W) <-> (B * T, C, H, W)
at::Tensor frames_of(const at::Tensor& clips) {
  return clips.transpose(1, 2).flatten(0, 1);
}
at::Tensor clips_of(const at::Tensor& frames, std::int64_t clips) {
  return frames.unflatten(0, {clips, -1}).transpose(1, 2);
}

class FrameByFrame : public ClipDecoder {
 public:
  explicit FrameByFrame(const Codec& codec) : codec_(codec) {}
  at::Tensor next(const at::Tensor& latents) override {
    check_clips("decode: latents", latents);
    return clips_of(codec_.decode(frames_of(latents)), latents.size(0));
  }
  std::map<std::string, at::Tensor> state() const override { return {}; }
  void set_state(const std::map<std::string, at::Tensor>& state) override {
    check(state.empty(), "decode: state: expected nothing, as every frame is an image, got ", state.size(),
          " tensors");
  }

 private:
  const Codec& codec_;
};

}  // namespace

at::Tensor Codec::encode_clips(const at::Tensor& clips, std::span<const std::uint64_t> seeds) const {
  check_clips("encode: clips", clips);
  check(seeds.empty(),
        "encode: seeds: expected none, as frames drawn with one seed would share their noise, ", "got ",
        seeds.size());
  return clips_of(encode(frames_of(clips)), clips.size(0));
}

std::unique_ptr<ClipDecoder> Codec::clip_decoder() const {
  return std::make_unique<FrameByFrame>(*this);
}

}  // namespace pom::codecs
