// Private to the room: clips decoded by CogVideoX's autoencoder as their latents come.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/codec.h"
#include "pom/codecs/cogvideox.h"

namespace pom::codecs {

class CogVideoXCodec;

// Waits for the device.
bool all_finite(const at::Tensor& values);

// A clip whose frames are not finite in fp16 goes on in fp32, from the piece in which that happened. In bf16
// there is no more to gain, as it reaches as far as fp32, and nothing is kept for it.
class CogVideoXClips : public ClipDecoder {
 public:
  explicit CogVideoXClips(const CogVideoXCodec& codec) : codec_(codec) {}

  at::Tensor next(const at::Tensor& latents) override;
  // That of CogVideoXStream; where some clips go on in fp32, all are so and "wide" (B) says of which.
  std::map<std::string, at::Tensor> state() const override;
  void set_state(const std::map<std::string, at::Tensor>& state) override;

 private:
  struct Clip {
    CogVideoXStream stream;
    bool wide = false;
  };
  Clip opened(bool wide) const;
  at::Tensor next_of(Clip& clip, const at::Tensor& latents) const;

  const CogVideoXCodec& codec_;
  std::vector<Clip> clips_;
  bool failed_ = false;  // of the clips of a call some have gone on
};

}  // namespace pom::codecs
