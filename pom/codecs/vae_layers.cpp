#include "pom/codecs/vae_layers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>

#include "pom/ops/cpu_info.h"

namespace pom::codecs {
namespace {

namespace gpu = ops::cuda;

// On a GPU a bias is an own pass over the tensor; elsewhere the convolution adds it on the way.
bool bias_waits(const at::Tensor& x, const Conv& layer) {
  return x.is_cuda() && layer.bias.scalar_type() == at::kFloat && layer.weight.size(0) % 8 == 0 &&
         gpu::takes_group_norm(x, 1);
}

bool of_16_bits(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

// Weights for ATen's products: in fp32 where a CPU has no products of their dtype, which would be slower.
at::Tensor for_products(const at::Tensor& weight) {
  const bool slow = weight.is_cpu() && of_16_bits(weight.scalar_type()) &&
                    !(weight.scalar_type() == at::kBFloat16 && ops::multiplies_bf16());
  return slow ? weight.to(at::kFloat) : weight;
}

// Tiles of AMX beat fewer products in fp32.
bool packs(const at::Tensor& weight) {
  return ops::takes_winograd(weight) && !(weight.scalar_type() == at::kBFloat16 && ops::uses_amx());
}

std::shared_ptr<const ops::WinogradWeights> packed_weights(const at::Tensor& weight, const at::Tensor& bias,
                                                           bool upsampled) {
  return std::make_shared<const ops::WinogradWeights>(ops::pack_winograd(weight, bias, upsampled));
}

at::Tensor dense_last(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

// A convolution in a wider dtype than x's. Where it keeps the size, some rows at a time, so that the wide
// values stay few: a band sees the rows beyond it that are of the picture.
at::Tensor widely_convolved(const at::Tensor& x, const Conv& layer, std::int64_t stride,
                            std::int64_t padding) {
  const auto made = [&](const at::Tensor& part) {
    return at::conv2d(part.to(layer.weight.scalar_type()), layer.weight, layer.bias, {stride, stride},
                      {padding, padding});
  };
  if (stride != 1) return made(x).to(x.scalar_type());
  const std::int64_t height = x.size(2), row = x.size(0) * x.size(1) * x.size(3);
  const std::int64_t rows = std::clamp<std::int64_t>(widened_at_once / row, 1, height);
  at::Tensor out = at::empty({x.size(0), layer.out_channels(), height, x.size(3)}, x.options(),
                             at::MemoryFormat::ChannelsLast);
  for (std::int64_t first = 0; first < height; first += rows) {
    const std::int64_t count = std::min(rows, height - first),
                       top = std::max<std::int64_t>(0, first - padding);
    const std::int64_t end = std::min(height, first + count + padding);
    out.narrow(2, first, count).copy_(made(x.narrow(2, top, end - top)).narrow(2, first - top, count));
  }
  return out;
}

Biased convolved(const at::Tensor& x, const Conv& layer, std::int64_t stride, std::int64_t padding) {
  if (layer.weight.scalar_type() != x.scalar_type()) return {widely_convolved(x, layer, stride, padding), {}};
  if (bias_waits(x, layer))
    return {at::conv2d(x, layer.weight, {}, {stride, stride}, {padding, padding}), layer.bias};
  const at::Tensor bias = layer.bias.to(x.scalar_type());
  return {at::conv2d(x, layer.weight, bias, {stride, stride}, {padding, padding}), {}};
}

at::Tensor with_bias(const Biased& x) {
  return x.bias.defined() ? x.x.add(x.bias.to(x.x.scalar_type()).view({1, -1, 1, 1})) : x.x;
}

at::Tensor norm_on_cpu(const at::Tensor& x, const GroupNorm& n, bool silu, bool in_place) {
  if (ops::takes_group_norm(x))
    return ops::group_norm(x, n.weight, n.bias, {n.groups, n.epsilon, silu}, in_place);
  at::Tensor y =
      at::group_norm(x, n.groups, n.weight.to(x.scalar_type()), n.bias.to(x.scalar_type()), n.epsilon);
  return silu ? at::silu_(y) : y;
}

at::Tensor norm_of(const Activation& x, const at::Tensor& bias, const GroupNorm& n, bool silu,
                   bool in_place) {
  return gpu::group_norm(x, bias, n.weight, n.bias, {n.groups, n.epsilon, silu}, {},
                         in_place ? x.x : at::Tensor());
}

// What the kernels read as fp32.
at::Tensor small(const at::Tensor& t) {
  return t.is_cuda() && t.scalar_type() != at::kDouble ? t.to(at::kFloat) : t;
}

}  // namespace

Conv Conv::read(const TensorSource& source, const std::string& name) {
  return {source(name + ".weight"), small(source(name + ".bias")), {}};
}

Conv Conv::read_prepared(const TensorSource& source, const std::string& name, bool stride_1) {
  Conv layer = read(source, name);
  if (stride_1 && packs(layer.weight)) return {{}, {}, packed_weights(layer.weight, layer.bias, false)};
  layer.weight = for_products(layer.weight);
  if (layer.weight.is_cpu()) layer.bias = layer.bias.to(layer.weight.scalar_type());
  return layer;
}

GroupNorm GroupNorm::read(const TensorSource& source, const std::string& name, std::int64_t groups,
                          double epsilon) {
  return {small(source(name + ".weight")), small(source(name + ".bias")), groups, epsilon};
}

Biased conv(const at::Tensor& x, const Conv& layer) {
  if (layer.packed) return {ops::winograd(dense_last(x), *layer.packed), {}};
  return convolved(x, layer, 1, layer.kernel() / 2);
}

Activation conv_add(const at::Tensor& x, const Conv& layer, std::int64_t groups, const Biased& other) {
  if (!layer.packed) return complete(conv(x, layer), groups, other);
  return {ops::winograd(dense_last(x), *layer.packed, dense_last(with_bias(other)), /*in_place=*/true), {}};
}

Biased conv_down(const at::Tensor& x, const Conv& layer) {
  return convolved(at::constant_pad_nd(x, {0, 1, 0, 1}).contiguous(at::MemoryFormat::ChannelsLast), layer, 2,
                   0);
}

Activation complete(const Biased& x, std::int64_t groups, const Biased& other) {
  if (gpu::takes_group_norm(x.x, std::max<std::int64_t>(groups, 1)) && x.bias.defined()) {
    const at::Tensor bias = other.bias.defined() ? x.bias.add(other.bias) : x.bias;
    return gpu::complete_(x.x, bias, other.x, groups);
  }
  const at::Tensor sum = with_bias(x);
  return {other.x.defined() ? sum.add_(with_bias(other)) : sum, {}};
}

at::Tensor normed(const at::Tensor& x, const NormFactors& factors, bool silu, bool in_place) {
  if (ops::takes_group_norm(x)) return ops::scaled(x, factors.scale, factors.shift, silu, in_place);
  at::Tensor y = x.mul(factors.scale.to(x.scalar_type())).add_(factors.shift.to(x.scalar_type()));
  return silu ? at::silu_(y) : y;
}

ops::ChannelMoments moments_of(const at::Tensor& x) {
  if (ops::takes_group_norm(x)) return ops::channel_moments(x);
  const at::Tensor values = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor means = values.mean({2, 3}, true, at::kDouble);
  const at::Tensor off = values.sub(means.to(values.scalar_type()));
  // The mean was rounded: what is left of it comes off again.
  const at::Tensor rest = off.mean({2, 3}, false, at::kDouble);
  const at::Tensor squares = off.mul(off).sum({2, 3}, false, at::kDouble);
  const auto count = static_cast<double>(x.size(2) * x.size(3));
  return {means.flatten(1), squares.sub(rest.mul(rest).mul(count))};
}

NormFactors factors_of(const ops::ChannelMoments& moments, std::int64_t pixels, const GroupNorm& norm,
                       at::ScalarType dtype) {
  const std::int64_t channels = moments.means.size(1), each = channels / norm.groups;
  const at::Tensor means = moments.means.view({-1, norm.groups, each}), mean = means.mean(2, true);
  const at::Tensor off = means.sub(mean);
  const at::Tensor variance = moments.squares.view({-1, norm.groups, each})
                                  .mean(2, true)
                                  .div(static_cast<double>(pixels))
                                  .add(off.mul(off).mean(2, true));
  const auto per_channel = [&](const at::Tensor& t) {
    return t.expand({-1, -1, each}).reshape({-1, channels});
  };
  const at::Tensor rstd = variance.add(norm.epsilon).rsqrt();
  const at::Tensor scale = per_channel(rstd).mul(norm.weight.to(at::kDouble));
  const at::Tensor shift = norm.bias.to(at::kDouble).sub(per_channel(mean).mul(scale));
  const auto shaped = [&](const at::Tensor& t) {
    return t.to(dtype == at::kDouble ? at::kDouble : at::kFloat).view({-1, channels, 1, 1});
  };
  return {shaped(scale), shaped(shift)};
}

at::Tensor normed(const Activation& x, const GroupNorm& n, bool silu, bool in_place) {
  return gpu::takes_group_norm(x.x, n.groups) ? norm_of(x, {}, n, silu, in_place)
                                              : norm_on_cpu(x.x, n, silu, in_place);
}

at::Tensor normed(const Biased& x, const GroupNorm& n, bool silu) {
  return gpu::takes_group_norm(x.x, n.groups) ? norm_of({x.x, {}}, x.bias, n, silu, true)
                                              : norm_on_cpu(with_bias(x), n, silu, true);
}

UpConv UpConv::read(const TensorSource& source, const std::string& name) {
  const at::Tensor weight = source(name + ".weight"), bias = source(name + ".bias");
  return packs(weight) ? UpConv{{}, {}, packed_weights(weight, bias, true)} : fold_upsampling(weight, bias);
}

UpConv fold_upsampling(const at::Tensor& weight, const at::Tensor& bias) {
  // In one axis: the even pixel sees {0}, {1, 2} of the kernel on the pixel before and its own, the odd one
  // {0, 1}, {2} on its own and the one after.
  const at::Tensor w = weight.to(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const auto folded = [](const at::Tensor& k, int axis, int parity) {
    const at::Tensor a = k.select(axis, 0), b = k.select(axis, 1), c = k.select(axis, 2);
    return parity == 0 ? at::stack({a, b.add(c)}, axis) : at::stack({a.add(b), c}, axis);
  };
  std::vector<at::Tensor> parities;
  for (const int row : {0, 1})
    for (const int column : {0, 1}) parities.push_back(folded(folded(w, 2, row), 3, column));
  return {dense_last(at::cat(parities).to(weight.scalar_type())), small(bias), {}};
}

namespace {

// On a GPU, in parts where the convolution's result, as large as the upsampled map, would be large: items, or
// rows of one item. A part of the rows sees one more at each side; where those are not of the picture they
// are zeros.
Activation conv_up_on_gpu(const at::Tensor& x, const UpConv& layer, std::int64_t groups) {
  const std::int64_t items = x.size(0), height = x.size(2), channels = layer.weight.size(0) / 4;
  const at::Tensor out =
      at::empty({items, channels, 2 * height, 2 * x.size(3)}, x.options(), at::MemoryFormat::ChannelsLast);
  constexpr std::size_t large = std::size_t{256} << 20;
  const std::int64_t parts = out.nbytes() < large ? 1 : 2;
  const std::int64_t axis = items > 1 ? 0 : 2, length = x.size(axis), each = (length + parts - 1) / parts;
  std::vector<at::Tensor> sums;
  for (std::int64_t first = 0; first < length; first += each) {
    const std::int64_t count = std::min(each, length - first);
    if (axis == 0) {
      const at::Tensor made = at::conv2d(x.narrow(0, first, count), layer.weight, {}, {1, 1}, {1, 1});
      sums.push_back(gpu::shuffle_parities(made, layer.bias, groups, out.narrow(0, first, count)).sums);
      continue;
    }
    const std::int64_t top = std::max<std::int64_t>(first - 1, 0), end = std::min(first + count + 1, height);
    const at::Tensor made = at::conv2d(x.narrow(2, top, end - top), layer.weight, {}, {1, 1}, {1, 1});
    sums.push_back(gpu::shuffle_parities(made.narrow(2, first - top, count + 1), layer.bias, groups,
                                         out.narrow(2, 2 * first, 2 * count))
                       .sums);
  }
  return {out, groups == 0        ? at::Tensor()
               : sums.size() == 1 ? sums.front()
                                  : at::cat(sums, axis == 0 ? 0 : 1)};
}

}  // namespace

Activation conv_up(const at::Tensor& x, const UpConv& layer, std::int64_t groups) {
  if (layer.packed) return {ops::winograd(dense_last(x), *layer.packed), {}};
  const std::int64_t height = x.size(2), width = x.size(3), channels = layer.out_channels();
  if (channels % 8 == 0 && gpu::takes_group_norm(x, 1) && layer.bias.scalar_type() == at::kFloat)
    return conv_up_on_gpu(x, layer, groups);
  // With padding 1 all around row i holds the window (i - 1, i): an even pixel's at i, an odd one's at i + 1.
  const at::Tensor all = at::conv2d(x, layer.weight, {}, {1, 1}, {1, 1});
  at::Tensor out =
      at::empty({x.size(0), channels, 2 * height, 2 * width}, x.options(), at::MemoryFormat::ChannelsLast);
  const at::Tensor bias = layer.bias.to(x.scalar_type()).view({1, -1, 1, 1});
  for (const int row : {0, 1})
    for (const int column : {0, 1}) {
      at::Tensor part = out.slice(2, row, {}, 2).slice(3, column, {}, 2);
      at::add_out(part,
                  all.narrow(1, (2 * row + column) * channels, channels)
                      .narrow(2, row, height)
                      .narrow(3, column, width),
                  bias);
    }
  return {out, {}};
}

Resnet Resnet::read(const TensorSource& source, const std::string& name, std::int64_t in, std::int64_t out,
                    std::int64_t groups) {
  Resnet r{.norm1 = GroupNorm::read(source, name + ".norm1", groups),
           .norm2 = GroupNorm::read(source, name + ".norm2", groups),
           .conv1 = Conv::read_prepared(source, name + ".conv1"),
           .conv2 = Conv::read_prepared(source, name + ".conv2"),
           .shortcut = {}};
  if (in != out) r.shortcut = Conv::read_prepared(source, name + ".conv_shortcut");
  return r;
}

Activation Resnet::operator()(Activation x) const {
  Biased around{x.x, {}};
  at::Tensor first;
  if (shortcut.defined()) {  // the widest map of its level: it is not needed any more after the shortcut
    around = conv(x.x, shortcut);
    first = normed(x, norm1, true, /*in_place=*/true);
    x = {};
  } else {
    first = normed(x, norm1);
  }
  Biased h = conv(first, conv1);
  first.reset();
  at::Tensor second = normed(h, norm2);
  h.x.reset();
  return conv_add(second, conv2, norm1.groups, around);
}

PixelAttention PixelAttention::read(const TensorSource& source, const std::string& name,
                                    std::int64_t groups) {
  const auto part = [&](const char* which, const char* kind) {
    return for_products(source(name + which + kind));
  };
  return {.norm = GroupNorm::read(source, name + ".group_norm", groups),
          .qkv = at::cat({part(".to_q", ".weight"), part(".to_k", ".weight"), part(".to_v", ".weight")}),
          .qkv_bias = at::cat({part(".to_q", ".bias"), part(".to_k", ".bias"), part(".to_v", ".bias")}),
          .out = part(".to_out.0", ".weight"),
          .out_bias = part(".to_out.0", ".bias")};
}

Activation PixelAttention::operator()(Activation x) const {
  if (!ops::takes_group_norm(x.x)) return {at_once(x), {}};
  for (std::int64_t item = 0; item < x.x.size(0); ++item) by_rows(x.x.narrow(0, item, 1));
  return {x.x, {}};
}

// One picture on a CPU, in its own memory: beside it lie keys and values, and of all else some rows at a
// time.
void PixelAttention::by_rows(at::Tensor x) const {
  constexpr std::int64_t tokens_at_once = 4096;
  const std::int64_t channels = x.size(1), height = x.size(2), width = x.size(3);
  const NormFactors factors = factors_of(moments_of(x), height * width, norm, x.scalar_type());
  const std::int64_t rows = std::clamp<std::int64_t>(tokens_at_once / width, 1, height);
  const auto each = [&](const auto& use) {
    for (std::int64_t first = 0; first < height; first += rows) {
      const at::Tensor part = x.narrow(2, first, std::min(rows, height - first));
      use(part, normed(part, factors, false).permute({0, 2, 3, 1}).flatten(1, 2).to(qkv.scalar_type()),
          first * width);
    }
  };
  const auto projected = [&](const at::Tensor& tokens, std::int64_t first, std::int64_t parts) {
    return at::linear(tokens, qkv.narrow(0, first * channels, parts * channels),
                      qkv_bias.narrow(0, first * channels, parts * channels));
  };
  at::Tensor keys = at::empty({1, 1, height * width, channels}, qkv.options()), values = at::empty_like(keys);
  each([&](const at::Tensor&, const at::Tensor& tokens, std::int64_t first) {
    const at::Tensor made = projected(tokens, 1, 2).unsqueeze(1);
    keys.narrow(2, first, made.size(2)).copy_(made.narrow(3, 0, channels));
    values.narrow(2, first, made.size(2)).copy_(made.narrow(3, channels, channels));
  });
  each([&](at::Tensor part, const at::Tensor& tokens, std::int64_t) {
    const at::Tensor mixed =
        at::scaled_dot_product_attention(projected(tokens, 0, 1).unsqueeze(1), keys, values, {}, 0, false,
                                         1 / std::sqrt(static_cast<double>(channels)));
    const at::Tensor y = at::linear(mixed.squeeze(1), out, out_bias);
    part.add_(y.view({1, part.size(2), width, channels}).permute({0, 3, 1, 2}));
  });
}

at::Tensor PixelAttention::at_once(const Activation& activation) const {
  const at::Tensor& x = activation.x;
  const std::int64_t channels = x.size(1), tokens = x.size(2) * x.size(3);
  // Channels-last pixels are rows of tokens as they lie.
  const at::Tensor rows =
      normed(activation, norm, false).permute({0, 2, 3, 1}).reshape({x.size(0), tokens, channels});
  const at::Tensor projected = at::linear(rows, qkv, qkv_bias).unsqueeze(1);  // one head
  const at::Tensor q = projected.narrow(3, 0, channels), k = projected.narrow(3, channels, channels),
                   v = projected.narrow(3, 2 * channels, channels);
  // So many queries at a time that their scores stay small where they are written out; exact.
  constexpr std::int64_t most_scores = std::int64_t{1} << 26;
  const std::int64_t at_once = std::max<std::int64_t>(64, most_scores / tokens);
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < tokens; first += at_once)
    parts.push_back(at::scaled_dot_product_attention(q.narrow(2, first, std::min(at_once, tokens - first)), k,
                                                     v, {}, 0, false,
                                                     1 / std::sqrt(static_cast<double>(channels))));
  const at::Tensor mixed = parts.size() == 1 ? parts.front() : at::cat(parts, 2);
  const at::Tensor y = at::linear(mixed.squeeze(1), out, out_bias);
  return y.view({x.size(0), x.size(2), x.size(3), channels}).permute({0, 3, 1, 2}).add(x);
}

}  // namespace pom::codecs
