#include "pom/ops/cpu/dense.h"

#include <algorithm>

#include "pom/ops/cpu/dense_run.h"
#include "pom/ops/cpu/run.h"

namespace pom::ops::cpu {
namespace {

constexpr std::int64_t kGroup = 192;  // hidden features between the matrices at a time

std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

Matrix matrix(const at::Tensor& w) {
  return {w.const_data_ptr(), w.stride(0)};
}
const void* vector(const at::Tensor& b) {
  return b.defined() ? b.const_data_ptr() : nullptr;
}

// As many equal tiles as there are threads, or a multiple, each at most kMaxTile tokens.
std::int64_t tile_rows(std::int64_t rows, std::int64_t threads, int panel) {
  const std::int64_t tiles = round_up(std::max(threads, (rows + kMaxTile - 1) / kMaxTile), threads);
  return std::clamp<std::int64_t>(round_up((rows + tiles - 1) / tiles, panel), panel, kMaxTile);
}

}  // namespace

Rows stream_rows(const at::Tensor& x) {
  Rows rows;
  rows.data = x.data_ptr();
  rows.row = x.stride(-2);
  rows.sequence = x.stride(0);
  return rows;
}

PerSequence per_sequence(const at::Tensor& values) {
  return values.defined() ? PerSequence{values.const_data_ptr(), values.stride(0)} : PerSequence{};
}

void run_dense(DenseArgs a, const Dense& first, const Dense& second) {
  const DenseKernels& kernels = dense_table(dtype_of(first.weight));
  const bool two = second.weight.defined();
  a.in = first.weight.size(1);
  a.hidden = two ? first.weight.size(0) : 0;
  a.out = two ? second.weight.size(0) : first.weight.size(0);
  a.w1 = matrix(first.weight), a.b1 = vector(first.bias);
  if (two) a.w2 = matrix(second.weight), a.b2 = vector(second.bias);
  if (a.rows == 0) return;
  const std::int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const std::int64_t widest = two ? a.hidden : a.out;
  a.group = std::min(kGroup, widest);
  a.tile = static_cast<int>(tile_rows(a.rows, threads, kernels.panel));
  const std::int64_t tiles = (a.rows + a.tile - 1) / a.tile;
  // Fewer tiles than threads: the features of a single product are shared out as well.
  const std::int64_t slices =
      two ? 1 : std::clamp<std::int64_t>(2 * threads / tiles, 1, (a.out + kGroup - 1) / kGroup);
  const std::int64_t slice = round_up((a.out + slices - 1) / slices, 12);
  run_tasks(tiles * slices, kernels.scratch(a), [&](void* scratch, std::int64_t task) {
    const std::int64_t r0 = task / slices * a.tile, f0 = std::min(a.out, task % slices * slice);
    const std::int64_t f1 = std::min(a.out, f0 + slice);
    if (two || f0 < f1) kernels.run(a, scratch, r0, std::min(a.rows, r0 + a.tile), f0, f1);
  });
}

}  // namespace pom::ops::cpu
