#include "pom/ops/winograd.h"

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/ops/cpu/run.h"
#include "pom/ops/cpu/winograd.h"

namespace pom::ops {
namespace {

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

// Tiles of a task: so many that each thread gets several, and in whole rows of registers.
std::int64_t tiles_at_once(std::int64_t tiles) {
  constexpr std::int64_t registers = 12;
  const std::int64_t fair = tiles / (4 * at::get_num_threads());
  return std::clamp<std::int64_t>(fair / registers * registers, registers, cpu::kMaxWinogradTiles);
}

}  // namespace

bool takes_winograd(const at::Tensor& weight) {
  return weight.is_cpu() && weight.dim() == 4 && weight.size(2) == 3 && weight.size(3) == 3 &&
         weight.size(0) % winograd_channels == 0 && weight.size(1) % winograd_channels == 0 &&
         (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16 ||
          weight.scalar_type() == at::kHalf);
}

WinogradWeights pack_winograd(const at::Tensor& weight, const at::Tensor& bias, bool upsampled) {
  check(takes_winograd(weight), "pack_winograd: weight: expected (out, in, 3, 3) on a CPU with channels in ",
        winograd_channels, "s, got ", weight.sizes());
  cpu::WinogradArgs a;
  a.out = weight.size(0), a.in = weight.size(1), a.upsampled = upsampled;
  const at::Tensor from = weight.to(at::kFloat);
  at::Tensor packed = at::empty({a.points() * a.in * a.out}, from.options());
  cpu::winograd_table(cpu::DType::f32)
      .pack(a, from.const_data_ptr<float>(), from.strides().data(), packed.data_ptr<float>());
  return {packed, bias.defined() ? bias.to(at::kFloat).contiguous() : bias, a.in, a.out, upsampled};
}

std::int64_t winograd_scratch(std::int64_t in, std::int64_t out) {
  cpu::WinogradArgs a;
  a.in = in, a.out = out;
  return at::get_num_threads() * static_cast<std::int64_t>(cpu::winograd_table(cpu::DType::f32).scratch(a));
}

at::Tensor winograd(const at::Tensor& x, const WinogradWeights& weights, const at::Tensor& other,
                    bool in_place) {
  check(x.is_cpu() && x.dim() == 4 && x.size(1) == weights.in && x.is_contiguous(channels_last),
        "winograd: x: expected (B, ", weights.in, ", H, W) on a CPU, channels-last, got ", x.sizes());
  cpu::WinogradArgs a;
  const std::int64_t factor = weights.upsampled ? 2 : 1;
  a.in = weights.in, a.out = weights.out, a.upsampled = weights.upsampled;
  a.height = factor * x.size(2), a.width = factor * x.size(3);
  const std::vector<std::int64_t> shape{x.size(0), a.out, a.height, a.width};
  check(!other.defined() || (other.sizes() == shape && other.scalar_type() == x.scalar_type() &&
                             other.is_contiguous(channels_last)),
        "winograd: other: expected ", at::IntArrayRef(shape), " as x, channels-last, got ", other.sizes());
  at::Tensor y = in_place && other.defined() ? other : at::empty(shape, x.options(), channels_last);
  a.weights = weights.packed.const_data_ptr<float>();
  a.bias = weights.bias.defined() ? weights.bias.const_data_ptr<float>() : nullptr;
  const cpu::WinogradKernels& kernels = cpu::winograd_table(cpu::dtype_of(x));
  const std::int64_t each = tiles_at_once(a.tiles()), tasks = (a.tiles() + each - 1) / each;
  for (std::int64_t item = 0; item < x.size(0); ++item) {
    a.x = x.select(0, item).const_data_ptr(), a.y = y.select(0, item).data_ptr();
    a.other = other.defined() ? other.select(0, item).const_data_ptr() : nullptr;
    cpu::run_tasks(tasks, kernels.scratch(a), [&](void* scratch, std::int64_t task) {
      kernels.run(a, scratch, task * each, std::min(a.tiles(), (task + 1) * each));
    });
  }
  return y;
}

}  // namespace pom::ops
