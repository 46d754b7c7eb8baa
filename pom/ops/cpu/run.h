// Running tasks on torch's threads, and turning tensors into the kernels' plain structures.
#pragma once

#include <algorithm>
#include <atomic>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "pom/ops/cpu/kernels.h"
#include "pom/ops/cpu/workspace.h"

namespace pom::ops::cpu {

inline DType dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return DType::f64;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    default:
      return DType::f32;
  }
}

inline at::TensorOptions sums_like(const at::Tensor& x) {
  return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// Rows of channels side by side in memory; anything else is copied once.
inline at::Tensor with_unit_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

inline Rows rows_of(const at::Tensor& x, const std::vector<std::int64_t>& starts) {
  Rows rows;
  rows.data = x.data_ptr();
  rows.row = x.stride(-2);
  rows.sequence = x.dim() == 3 ? x.stride(0) : 0;
  rows.starts = starts.empty() ? nullptr : starts.data();
  return rows;
}

// Calls body(scratch, task) for every task, taken in order by whichever thread is free. Tasks may wait for
// earlier ones.
template <class Body>
void run_tasks(std::int64_t tasks, std::size_t scratch_bytes, const Body& body) {
  if (tasks == 0) return;
  const std::int64_t threads =
      at::in_parallel_region() ? 1 : std::min<std::int64_t>(at::get_num_threads(), tasks);
  const std::int64_t each = static_cast<std::int64_t>((scratch_bytes + 127) / 64 * 64);
  const Workspace memory(static_cast<std::size_t>(threads * each));
  char* base = static_cast<char*>(memory.data());
  std::atomic<std::int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t id = begin; id < end; ++id)
      for (std::int64_t task; (task = next.fetch_add(1)) < tasks;) body(base + id * each, task);
  });
}

}  // namespace pom::ops::cpu
