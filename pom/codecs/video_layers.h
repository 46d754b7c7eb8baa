// Private to the room: the parts of autoencoders of clips beside those of pictures (vae_layers.h). An
// activation is one clip's, (1, C, T, H, W) in channels-last memory, which is the memory of its frames as a
// batch of pictures (T, C, H, W). Clips go through one by one: what one becomes does not depend on those
// beside it. Without gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/codecs/vae_layers.h"

namespace pom::codecs {

// (1, C, T, H, W) <-> (T, C, H, W), the same memory. Sums of a norm: (T, parts, G, 2) -> (1, T parts, G, 2).
at::Tensor as_frames(const at::Tensor& clip);
at::Tensor as_clip(const at::Tensor& frames);
Activation as_clip(const Activation& frames);

// What the causal convolutions of a network remember of a clip: of each the last two frames that entered it,
// (1, C, 2, H, W). All that a stream needs to go on.
class CausalCaches {
 public:
  CausalCaches() = default;
  explicit CausalCaches(std::size_t convolutions) : frames_(convolutions) {}

  bool started() const { return !frames_.empty() && frames_.front().defined(); }
  const std::vector<at::Tensor>& frames() const { return frames_; }
  void set(std::vector<at::Tensor> frames) { frames_ = std::move(frames); }
  // Whether anything comes after what passes now; else it is not kept.
  void set_more(bool more) { more_ = more; }

  // Of (1, C, 2 + T, H, W) the first two frames are set to those that came before, or to the first of the T
  // where nothing did, and the last two are kept. A copy of this object keeps what it has: frames that
  // somebody else holds are replaced, others are overwritten.
  void pass(at::Tensor& padded, std::size_t place);

 private:
  std::vector<at::Tensor> frames_;
  bool more_ = true;
};

// A causal convolution of a network: its channels and how many times its frames' sides are halved, or
// doubled, from those that come in.
struct CausalPlace {
  std::string name;
  std::int64_t channels = 0, level = 0;
};
using CausalPlaces = std::vector<CausalPlace>;

// Two frames before the T that enter, so that nothing is seen of later ones: 3 x 3 x 3 with zero padding 1 in
// space.
struct CausalConv {
  at::Tensor weight;  // (out, in, 3, 3, 3); or by time, (3, out, in, 3, 3)
  at::Tensor bias;    // (out)
  std::size_t place = 0;
  bool by_time = false;
  static CausalConv read(const TensorSource& source, const std::string& name, std::int64_t level,
                         CausalPlaces& places);
};

// Room for x behind two frames, of which only the latter part is set.
at::Tensor room_before(const at::Tensor& x);
// padded (1, C, 2 + T, H, W), as room_before() or normed_with_room() made it.
Biased causal_conv(at::Tensor& padded, const CausalConv& layer, CausalCaches& caches);

// x (1, C, T, H, W) + bias and + other where it is defined; see complete() of vae_layers.h.
Activation complete_clip(const Biased& x, std::int64_t groups, const Biased& other = {});

// A group norm over all frames at once; in a decoder its result is scaled and shifted by what the latents
// say.
struct VideoNorm {
  GroupNorm norm;
  Conv scale, shift;  // (C, z, 1, 1, 1) as (C, z), (C); undefined in an encoder
  static VideoNorm read(const TensorSource& source, const std::string& name, std::int64_t groups,
                        double epsilon);
  static VideoNorm read_spatial(const TensorSource& source, const std::string& name, std::int64_t groups);
};

// The norm with SiLU, behind room for two frames. latents (1, z, t, h, w), channels-last; undefined in an
// encoder.
at::Tensor normed_with_room(const Activation& x, const VideoNorm& norm, const at::Tensor& latents);
at::Tensor normed_with_room(const Biased& x, const VideoNorm& norm, const at::Tensor& latents);

struct VideoResnet {
  VideoNorm norm1, norm2;
  CausalConv conv1, conv2;
  Conv shortcut;  // (out, in, 1, 1), where channels change
  // A norm of so many groups comes next; 0: none.
  Activation operator()(const Activation& x, const at::Tensor& latents, CausalCaches& caches,
                        std::int64_t groups) const;
};

// Frames two by two: their averages, and each twice. The first one of an odd number stays alone.
at::Tensor average_pairs(const at::Tensor& frames);  // (T, C, H, W), channels-last
Activation double_frames(const Activation& frames);  // with (T, parts, G, 2) sums, where defined

}  // namespace pom::codecs
