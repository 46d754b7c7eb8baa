#include "pom/ops/cuda/group_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "pom/kernels/portable/group_norm.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops::cuda {
namespace {

at::MemoryFormat last_channels(const at::Tensor& x) {
  return x.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

kernels::PixelSizes pixel_sizes(const at::Tensor& x, std::int64_t groups) {
  const std::int64_t items = x.size(0), channels = x.size(1);
  const std::int64_t pixels = items * channels == 0 ? 0 : x.numel() / items / channels;
  return {items, pixels, channels, std::max<std::int64_t>(groups, 1)};
}

bool taken_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

const float* floats_of(const at::Tensor& t, std::int64_t count, const char* name) {
  if (!t.defined()) return nullptr;
  check(t.is_cuda() && t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel() == count,
        "group norm: ", name, ": expected ", count, " contiguous values of float32 on CUDA, got ",
        t.scalar_type(), " of shape ", t.sizes());
  return t.data_ptr<float>();
}

at::Tensor sums_for(const at::Tensor& x, const kernels::PixelSizes& sizes, std::int64_t groups) {
  if (groups == 0) return {};
  const int parts = kernels::group_norm_parts(sizes, detail::kernel_dtype(x));
  return at::empty({sizes.batch, parts, sizes.groups, 2}, x.options().dtype(at::kFloat));
}

float* pointer(const at::Tensor& t) {
  return t.defined() ? t.data_ptr<float>() : nullptr;
}

// Of x + bias, without writing it.
at::Tensor sums_of(const at::Tensor& x, const at::Tensor& bias, std::int64_t groups) {
  const kernels::PixelSizes sizes = pixel_sizes(x, groups);
  const at::Tensor sums = sums_for(x, sizes, groups);
  const detail::OnDevice device(x);
  detail::check_launch("group norm", kernels::complete({.sizes = sizes,
                                                        .dtype = detail::kernel_dtype(x),
                                                        .x = x.data_ptr(),
                                                        .bias = floats_of(bias, sizes.channels, "bias"),
                                                        .sums = pointer(sums)},
                                                       device.stream()));
  return sums;
}

kernels::NearestMaps nearest_maps(const LatentMaps& maps, const at::Tensor& x) {
  if (!maps.scale.defined()) return {};
  const at::Tensor &scale = maps.scale, &shift = maps.shift;
  check(x.dim() == 5 && scale.dim() == 5 && scale.sizes() == shift.sizes() && scale.size(1) == x.size(1) &&
            scale.size(0) == x.size(0) && scale.scalar_type() == x.scalar_type() &&
            shift.scalar_type() == x.scalar_type() && scale.is_contiguous(at::MemoryFormat::ChannelsLast3d) &&
            shift.is_contiguous(at::MemoryFormat::ChannelsLast3d),
        "group norm: maps: expected channels-last (N, C, t, h, w) of x's dtype, got ", scale.scalar_type(),
        " of shape ", scale.sizes());
  return {.scale = scale.data_ptr(),
          .shift = shift.data_ptr(),
          .frames = x.size(2),
          .height = x.size(3),
          .width = x.size(4),
          .latent_frames = scale.size(2),
          .latent_height = scale.size(3),
          .latent_width = scale.size(4),
          .split = maps.split && x.size(2) > 1};
}

}  // namespace

bool takes_group_norm(const at::Tensor& x, std::int64_t groups) {
  return x.is_cuda() && (x.dim() == 4 || x.dim() == 5) && taken_dtype(x) &&
         x.is_contiguous(last_channels(x)) && x.size(0) <= 65535 &&
         kernels::fits_group_norm(pixel_sizes(x, groups), detail::kernel_dtype(x));
}

Summed complete_(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& other, std::int64_t groups) {
  check(takes_group_norm(x, std::max<std::int64_t>(groups, 1)) &&
            (!other.defined() || (other.sizes() == x.sizes() && other.scalar_type() == x.scalar_type() &&
                                  other.is_contiguous(last_channels(x)))),
        "complete: expected channels-last tensors of one shape and dtype on CUDA, got ", x.scalar_type(),
        " of shape ", x.sizes());
  const kernels::PixelSizes sizes = pixel_sizes(x, groups);
  const at::Tensor sums = sums_for(x, sizes, groups);
  const detail::OnDevice device(x);
  detail::check_launch("complete", kernels::complete({.sizes = sizes,
                                                      .dtype = detail::kernel_dtype(x),
                                                      .x = x.data_ptr(),
                                                      .other = other.defined() ? other.data_ptr() : nullptr,
                                                      .bias = floats_of(bias, sizes.channels, "bias"),
                                                      .out = x.data_ptr(),
                                                      .sums = pointer(sums)},
                                                     device.stream()));
  return {x, sums};
}

Summed shuffle_parities(const at::Tensor& x, const at::Tensor& bias, std::int64_t groups,
                        const at::Tensor& out) {
  check(x.dim() == 4 && x.size(1) % 4 == 0 && takes_group_norm(x, 1),
        "shuffle: expected channels-last (N, 4 C, H + 1, W + 1) on CUDA, got ", x.scalar_type(), " of shape ",
        x.sizes());
  const std::int64_t height = x.size(2) - 1, width = x.size(3) - 1, channels = x.size(1) / 4;
  check(out.sizes() == at::IntArrayRef({x.size(0), channels, 2 * height, 2 * width}) &&
            out.scalar_type() == x.scalar_type() && takes_group_norm(out, std::max<std::int64_t>(groups, 1)),
        "shuffle: out: expected channels-last (N, C, 2 H, 2 W) of x's dtype, got ", out.scalar_type(),
        " of shape ", out.sizes());
  const kernels::PixelSizes sizes = pixel_sizes(out, groups);
  const at::Tensor sums = sums_for(out, sizes, groups);
  const detail::OnDevice device(x);
  kernels::ShuffleParams params{.complete = {.sizes = sizes,
                                             .dtype = detail::kernel_dtype(x),
                                             .x = x.data_ptr(),
                                             .bias = floats_of(bias, channels, "bias"),
                                             .out = out.data_ptr(),
                                             .sums = pointer(sums)},
                                .height = height,
                                .width = width};
  detail::check_launch("shuffle", kernels::shuffle_parities(params, device.stream()));
  return {out, sums};
}

at::Tensor group_norm(const Summed& x, const at::Tensor& bias, const at::Tensor& weight,
                      const at::Tensor& shift, const NormOptions& options, const LatentMaps& maps,
                      at::Tensor out) {
  check(takes_group_norm(x.x, options.groups), "group norm: expected a channels-last tensor on CUDA, got ",
        x.x.scalar_type(), " of shape ", x.x.sizes());
  const at::Tensor sums = x.sums.defined() ? x.sums : sums_of(x.x, bias, options.groups);
  const kernels::PixelSizes sizes = pixel_sizes(x.x, options.groups);
  const at::Tensor factors = at::empty({sizes.batch, sizes.channels, 2}, x.x.options().dtype(at::kFloat));
  if (!out.defined()) out = at::empty_like(x.x);
  check(out.sizes() == x.x.sizes() && out.scalar_type() == x.x.scalar_type() && out.is_cuda() &&
            out.is_contiguous(last_channels(x.x)),
        "group norm: out: expected channels-last ", x.x.scalar_type(), " of shape ", x.x.sizes(), ", got ",
        out.scalar_type(), " of shape ", out.sizes());
  const detail::OnDevice device(x.x);
  detail::check_launch("group norm",
                       kernels::norm_factors({.sizes = sizes,
                                              .parts = static_cast<int>(sums.size(1)),
                                              .sums = sums.data_ptr<float>(),
                                              .weight = floats_of(weight, sizes.channels, "weight"),
                                              .shift = floats_of(shift, sizes.channels, "shift"),
                                              .bias = floats_of(bias, sizes.channels, "bias"),
                                              .epsilon = static_cast<float>(options.epsilon),
                                              .scale_shift = factors.data_ptr<float>()},
                                             device.stream()));
  detail::check_launch("group norm", kernels::apply_norm({.sizes = sizes,
                                                          .dtype = detail::kernel_dtype(x.x),
                                                          .x = x.x.data_ptr(),
                                                          .scale_shift = factors.data_ptr<float>(),
                                                          .maps = nearest_maps(maps, x.x),
                                                          .silu = options.silu,
                                                          .out = out.data_ptr()},
                                                         device.stream()));
  return out;
}

}  // namespace pom::ops::cuda
