#include "pom/codecs/video_layers.h"

#include <algorithm>

#include <ATen/OpMathType.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

namespace pom::codecs {
namespace {

namespace gpu = ops::cuda;
constexpr auto frames_last = at::MemoryFormat::ChannelsLast3d;
constexpr std::int64_t frames_before = 2;  // frames that a causal convolution sees of the past

at::Tensor real_frames(const at::Tensor& padded) {
  return padded.narrow(2, frames_before, padded.size(2) - frames_before);
}

// ---- causal convolutions ----

bool computes_bf16() {
  static const bool does = [] {
    const auto able = at::cpu::get_cpu_capabilities();
    const auto has = [&](const char* name) {
      const auto found = able.find(name);
      return found != able.end() && found->second.isBool() && found->second.toBool();
    };
    return has("avx512_bf16") || has("amx_bf16") || has("arm_bf16");
  }();
  return does;
}

// On a CPU three convolutions of pictures, one for each frame that is seen, and their sum: faster than the
// same as one by up to 1.3 times in fp32, and in bf16 (which then is widened) where the CPU does not multiply
// that.
bool better_by_time(const at::Tensor& weight) {
  return weight.is_cpu() && !(weight.scalar_type() == at::kBFloat16 && computes_bf16());
}

at::Tensor convolved_by_time(const at::Tensor& padded, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor frames = as_frames(padded);
  const std::int64_t count = frames.size(0) - frames_before;
  at::Tensor sum;
  for (const std::int64_t lag : {0, 1, 2}) {
    const at::Tensor seen = frames.narrow(0, frames_before - lag, count);
    const at::Tensor part = at::conv2d(seen, weight[frames_before - lag], lag == 0 ? bias : at::Tensor(),
                                       at::IntArrayRef{1, 1}, at::IntArrayRef{1, 1});
    sum = lag == 0 ? part : sum.add_(part);
  }
  return as_clip(sum.contiguous(at::MemoryFormat::ChannelsLast));
}

// Values that a convolution may have in one call: kernels count them in 32 bits.
constexpr std::int64_t most_conv_values = (std::int64_t{1} << 31) - 1;

at::Tensor convolved_at_once(const at::Tensor& padded, const at::Tensor& weight, const at::Tensor& bias) {
  const std::int64_t frames = padded.size(2) - frames_before;
  const std::int64_t pixels = padded.size(3) * padded.size(4);
  const std::int64_t widest = std::max(weight.size(0), weight.size(1));
  const std::int64_t at_once = std::clamp<std::int64_t>(
      most_conv_values / std::max<std::int64_t>(1, pixels * widest) - frames_before, 1, frames);
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < frames; first += at_once) {
    const std::int64_t count = std::min(at_once, frames - first);
    parts.push_back(at::conv3d(padded.narrow(2, first, count + frames_before), weight, bias,
                               at::IntArrayRef{1, 1, 1}, at::IntArrayRef{0, 1, 1}));
  }
  return (parts.size() == 1 ? parts.front() : at::cat(parts, 2)).contiguous(frames_last);
}

// On a GPU a bias is an own pass over the tensor, which the next layer saves.
bool bias_can_wait(const at::Tensor& x, const CausalConv& layer) {
  return x.is_cuda() && layer.bias.scalar_type() == at::kFloat && layer.bias.size(0) % 8 == 0 &&
         gpu::takes_group_norm(x, 1);
}

// ---- norms ----

// What the latents say of a norm's result, at their own size: a 1 x 1 x 1 convolution of the nearest pixels
// is the nearest of its results. (1, C, t, h, w), channels-last.
at::Tensor latent_map(const at::Tensor& latents, const Conv& layer) {
  const at::Tensor rows = latents.permute({0, 2, 3, 4, 1});
  return at::linear(rows, layer.weight, layer.bias.to(rows.scalar_type())).permute({0, 4, 1, 2, 3});
}

// (1, C, T, H, W) -> (t, T / t, h, H / h, w, W / w, C).
at::Tensor in_cells(const at::Tensor& x, const at::Tensor& cells) {
  const std::int64_t t = cells.size(2), h = cells.size(3), w = cells.size(4);
  return x.squeeze(0).permute({1, 2, 3, 0}).unflatten(2, {w, -1}).unflatten(1, {h, -1}).unflatten(0, {t, -1});
}

void scale_by_cells(at::Tensor out, const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  at::Tensor to = in_cells(out, scale);
  at::addcmul_out(to, in_cells(shift, scale), in_cells(x, scale), in_cells(scale, scale));
}

// Whether the first frame goes with the latent's first, and the others with the others.
bool first_apart(const at::Tensor& x) {
  return x.size(2) > 1 && x.size(2) % 2 == 1;
}

at::Tensor room_behind(const at::Tensor& x) {
  return at::empty({1, x.size(1), frames_before + x.size(2), x.size(3), x.size(4)}, x.options(), frames_last);
}

at::Tensor composed_with_room(const at::Tensor& x, const VideoNorm& n, const at::Tensor& latents) {
  at::Tensor padded = room_behind(x);
  at::Tensor out = real_frames(padded);
  const at::Tensor y = at::group_norm(x, n.norm.groups, n.norm.weight.to(x.scalar_type()),
                                      n.norm.bias.to(x.scalar_type()), n.norm.epsilon)
                           .contiguous(frames_last);
  if (!latents.defined()) {
    at::silu_out(out, y);
    return padded;
  }
  const at::Tensor scale = latent_map(latents, n.scale), shift = latent_map(latents, n.shift);
  const std::int64_t apart = first_apart(x) ? 1 : 0;
  const auto part = [&](const at::Tensor& t, bool rest) {
    return rest ? t.narrow(2, apart, t.size(2) - apart) : t.narrow(2, 0, apart);
  };
  if (apart != 0) scale_by_cells(part(out, false), part(y, false), part(scale, false), part(shift, false));
  scale_by_cells(part(out, true), part(y, true), part(scale, true), part(shift, true));
  at::silu_(out);
  return padded;
}

at::Tensor fused_with_room(const Activation& x, const at::Tensor& bias, const VideoNorm& n,
                           const at::Tensor& latents) {
  at::Tensor padded = room_behind(x.x);
  gpu::LatentMaps maps;
  if (latents.defined())
    maps = {latent_map(latents, n.scale), latent_map(latents, n.shift), first_apart(x.x)};
  gpu::group_norm(x, bias, n.norm.weight, n.norm.bias, {n.norm.groups, n.norm.epsilon, true}, maps,
                  real_frames(padded));
  return padded;
}

at::Tensor with_channel_bias(const Biased& x) {
  return x.bias.defined() ? x.x.add(x.bias.to(x.x.scalar_type()).view({1, -1, 1, 1, 1})) : x.x;
}

// (T, ...) -> each twice, the first one of an odd number once; contiguous.
at::Tensor doubled_rows(const at::Tensor& rows) {
  const std::int64_t count = rows.size(0), apart = count % 2;
  if (count == 1) return rows;
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape[0] = 2 * count - apart;
  at::Tensor out = at::empty(shape, rows.options());
  if (apart != 0) out[0].copy_(rows[0]);
  out.narrow(0, apart, 2 * (count - apart))
      .unflatten(0, {count - apart, 2})
      .copy_(rows.narrow(0, apart, count - apart).unsqueeze(1));
  return out;
}

}  // namespace

at::Tensor as_frames(const at::Tensor& clip) {
  return clip.squeeze(0).transpose(0, 1);
}

at::Tensor as_clip(const at::Tensor& frames) {
  return frames.unsqueeze(0).transpose(1, 2);
}

Activation as_clip(const Activation& frames) {
  const at::Tensor& sums = frames.sums;
  return {as_clip(frames.x), sums.defined() ? sums.reshape({1, -1, sums.size(2), 2}) : sums};
}

void CausalCaches::pass(at::Tensor& padded, std::size_t place) {
  at::Tensor& kept = frames_[place];
  padded.narrow(2, 0, frames_before).copy_(kept.defined() ? kept : padded.narrow(2, frames_before, 1));
  if (!more_) {
    kept.reset();
    return;
  }
  const at::Tensor last = padded.narrow(2, padded.size(2) - frames_before, frames_before);
  if (kept.defined() && kept.use_count() == 1 && kept.storage().use_count() == 1)
    kept.copy_(last);
  else
    kept = last.clone(frames_last);
}

CausalConv CausalConv::read(const TensorSource& source, const std::string& name, std::int64_t level,
                            CausalPlaces& places) {
  const Conv layer = Conv::read(source, name + ".conv");
  places.push_back({name, layer.weight.size(1), level});
  CausalConv made{.weight = {}, .bias = layer.bias, .place = places.size() - 1};
  made.by_time = better_by_time(layer.weight);
  if (made.by_time)  // each in channels-last memory
    made.weight = layer.weight.permute({2, 0, 3, 4, 1}).contiguous().permute({0, 1, 4, 2, 3});
  else
    made.weight = layer.weight.contiguous(frames_last);
  return made;
}

at::Tensor room_before(const at::Tensor& x) {
  at::Tensor padded = room_behind(x);
  real_frames(padded).copy_(x);
  return padded;
}

Biased causal_conv(at::Tensor& padded, const CausalConv& layer, CausalCaches& caches) {
  caches.pass(padded, layer.place);
  if (bias_can_wait(padded, layer)) return {convolved_at_once(padded, layer.weight, {}), layer.bias};
  const at::ScalarType dtype = padded.scalar_type();
  if (!layer.by_time) return {convolved_at_once(padded, layer.weight, layer.bias.to(dtype)), {}};
  const at::ScalarType wide = at::toOpMathType(dtype);
  return {convolved_by_time(padded.to(wide), layer.weight.to(wide), layer.bias.to(wide)).to(dtype), {}};
}

Activation complete_clip(const Biased& x, std::int64_t groups, const Biased& other) {
  const auto frames = [](const Biased& b) { return Biased{b.x.defined() ? as_frames(b.x) : b.x, b.bias}; };
  return as_clip(complete(frames(x), groups, frames(other)));
}

VideoNorm VideoNorm::read(const TensorSource& source, const std::string& name, std::int64_t groups,
                          double epsilon) {
  return {GroupNorm::read(source, name, groups, epsilon), {}, {}};
}

VideoNorm VideoNorm::read_spatial(const TensorSource& source, const std::string& name, std::int64_t groups) {
  const auto pointwise = [&](const char* which) {
    Conv layer = Conv::read(source, name + which);
    layer.weight = layer.weight.flatten(1);
    return layer;
  };
  return {GroupNorm::read(source, name + ".norm_layer", groups), pointwise(".conv_y.conv"),
          pointwise(".conv_b.conv")};
}

at::Tensor normed_with_room(const Activation& x, const VideoNorm& n, const at::Tensor& latents) {
  return gpu::takes_group_norm(x.x, n.norm.groups) ? fused_with_room(x, {}, n, latents)
                                                   : composed_with_room(x.x, n, latents);
}

at::Tensor normed_with_room(const Biased& x, const VideoNorm& n, const at::Tensor& latents) {
  return gpu::takes_group_norm(x.x, n.norm.groups) ? fused_with_room({x.x, {}}, x.bias, n, latents)
                                                   : composed_with_room(with_channel_bias(x), n, latents);
}

Activation VideoResnet::operator()(const Activation& x, const at::Tensor& latents, CausalCaches& caches,
                                   std::int64_t groups) const {
  at::Tensor padded = normed_with_room(x, norm1, latents);
  Biased h = causal_conv(padded, conv1, caches);
  padded.reset();
  padded = normed_with_room(h, norm2, latents);
  h.x.reset();
  const Biased made = causal_conv(padded, conv2, caches);
  padded.reset();
  if (!shortcut.weight.defined()) return complete_clip(made, groups, {x.x, {}});
  const Biased passed = conv(as_frames(x.x), shortcut);
  return complete_clip(made, groups, {as_clip(passed.x), passed.bias});
}

at::Tensor average_pairs(const at::Tensor& frames) {
  const std::int64_t count = frames.size(0), apart = count % 2, pairs = count / 2;
  if (count == 1) return frames;
  at::Tensor out = at::empty({apart + pairs, frames.size(1), frames.size(2), frames.size(3)},
                             frames.options(), at::MemoryFormat::ChannelsLast);
  if (apart != 0) out[0].copy_(frames[0]);
  at::Tensor averages = out.narrow(0, apart, pairs);
  at::add_out(averages, frames.slice(0, apart, {}, 2), frames.slice(0, apart + 1, {}, 2));
  averages.mul_(0.5);
  return out;
}

Activation double_frames(const Activation& frames) {
  const at::Tensor rows = doubled_rows(frames.x.permute({0, 2, 3, 1}));
  return {rows.permute({0, 3, 1, 2}), frames.sums.defined() ? doubled_rows(frames.sums) : frames.sums};
}

}  // namespace pom::codecs
