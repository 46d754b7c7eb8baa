#include "pom/ops/cpu/group_norm.h"

#include <cmath>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "pom/base/error.h"
#include "pom/ops/cpu/run.h"
#include "pom/ops/group_norm.h"

namespace pom::ops {
namespace {

cpu::GroupNormArgs norm_args(const at::Tensor& x, std::int64_t item) {
  check(takes_group_norm(x),
        "group_norm: x: expected (B, C, H, W) on a CPU, channels-last, fp32, bf16 or fp16, got ",
        x.scalar_type(), " of shape ", x.sizes());
  cpu::GroupNormArgs a;
  a.pixels = x.size(2) * x.size(3), a.channels = x.size(1);
  a.x = x.select(0, item).const_data_ptr();
  return a;
}

template <class Run>
void each_block(const cpu::GroupNormArgs& a, const Run& run) {
  constexpr std::int64_t grain = 8;  // blocks that are worth waking a thread
  at::parallel_for(0, a.blocks(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) run(block);
  });
}

// Two sets of values put together, as Chan, Golub and LeVeque do it.
struct Moments {
  double count = 0, mean = 0, squares = 0;
  void add(double n, double m, double s) {
    const double all = count + n, off = m - mean;
    mean += off * n / all;
    squares += s + off * off * count * n / all;
    count = all;
  }
};

std::vector<Moments> moments_of(cpu::GroupNormArgs a, const cpu::GroupNormKernels& kernels) {
  const cpu::Workspace memory(static_cast<std::size_t>(a.blocks() * 2 * a.channels) * sizeof(float));
  a.moments = static_cast<float*>(memory.data());
  each_block(a, [&](std::int64_t block) { kernels.measure(a, block); });
  std::vector<Moments> all(static_cast<std::size_t>(a.channels));
  for (std::int64_t block = 0; block < a.blocks(); ++block) {
    const float *means = a.moments + block * 2 * a.channels, *squares = means + a.channels;
    const auto count = static_cast<double>(a.pixels_of(block));
    for (std::int64_t c = 0; c < a.channels; ++c)
      all[static_cast<std::size_t>(c)].add(count, means[c], squares[c]);
  }
  return all;
}

void apply_factors(cpu::GroupNormArgs a, const cpu::GroupNormKernels& kernels, const float* scale,
                   const float* shift, bool silu, void* y) {
  a.scale = scale, a.shift = shift, a.silu = silu, a.y = y;
  each_block(a, [&](std::int64_t block) { kernels.apply(a, block); });
}

}  // namespace

bool takes_group_norm(const at::Tensor& x) {
  return x.is_cpu() && x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

ChannelMoments channel_moments(const at::Tensor& x) {
  const at::TensorOptions options = x.options().dtype(at::kDouble);
  ChannelMoments made{at::empty({x.size(0), x.size(1)}, options), at::empty({x.size(0), x.size(1)}, options)};
  double *means = made.means.data_ptr<double>(), *squares = made.squares.data_ptr<double>();
  for (std::int64_t item = 0; item < x.size(0); ++item)
    for (const Moments& m : moments_of(norm_args(x, item), cpu::group_norm_table(cpu::dtype_of(x))))
      *means++ = m.mean, *squares++ = m.squares;
  return made;
}

at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const GroupNormOptions& options, bool in_place) {
  const std::int64_t channels = x.size(1), each = channels / options.groups;
  check(each * options.groups == channels, "group_norm: x: expected channels in ", options.groups,
        " groups, got ", channels);
  at::Tensor y = in_place ? x : at::empty_like(x);
  const at::Tensor w = weight.to(at::kDouble).contiguous(), b = bias.to(at::kDouble).contiguous();
  const double *weights = w.const_data_ptr<double>(), *biases = b.const_data_ptr<double>();
  std::vector<float> scale(static_cast<std::size_t>(channels)), shift(scale.size());
  const cpu::GroupNormKernels& kernels = cpu::group_norm_table(cpu::dtype_of(x));
  for (std::int64_t item = 0; item < x.size(0); ++item) {
    const cpu::GroupNormArgs a = norm_args(x, item);
    const std::vector<Moments> moments = moments_of(a, kernels);
    for (std::int64_t group = 0; group < options.groups; ++group) {
      Moments all;
      for (std::int64_t c = group * each; c < (group + 1) * each; ++c) {
        const Moments& m = moments[static_cast<std::size_t>(c)];
        all.add(m.count, m.mean, m.squares);
      }
      const double rstd = 1 / std::sqrt(all.squares / all.count + options.epsilon);
      for (std::int64_t c = group * each; c < (group + 1) * each; ++c) {
        const auto at = static_cast<std::size_t>(c);
        scale[at] = static_cast<float>(rstd * weights[c]);
        shift[at] = static_cast<float>(biases[c] - all.mean * rstd * weights[c]);
      }
    }
    apply_factors(a, kernels, scale.data(), shift.data(), options.silu, y.select(0, item).data_ptr());
  }
  return y;
}

at::Tensor scaled(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, bool silu,
                  bool in_place) {
  const std::int64_t channels = x.size(1);
  check(scale.numel() == x.size(0) * channels && shift.numel() == scale.numel(), "scaled: factors: expected ",
        x.size(0), " x ", channels, " values each, got ", scale.sizes(), " and ", shift.sizes());
  at::Tensor y = in_place ? x : at::empty_like(x);
  const at::Tensor factors = scale.to(at::kFloat).contiguous(), terms = shift.to(at::kFloat).contiguous();
  for (std::int64_t item = 0; item < x.size(0); ++item)
    apply_factors(norm_args(x, item), cpu::group_norm_table(cpu::dtype_of(x)),
                  factors.const_data_ptr<float>() + item * channels,
                  terms.const_data_ptr<float>() + item * channels, silu, y.select(0, item).data_ptr());
  return y;
}

}  // namespace pom::ops
