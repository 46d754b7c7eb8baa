// For pom/ops/weight_copies.h: tables of copies as pom/kernels/portable/weight_copies.h reads them. In a
// build without kernels there are none.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pom::ops::cuda {

// A matrix in flat memory, and its copies in bf16; undefined where there is none.
struct CopiedMatrix {
  std::int64_t begin = 0, rows = 0, columns = 0;
  at::Tensor plain, transposed, context;
  std::int64_t order = 0;  // of the context
};

// Holds neither the copies nor the flat memory.
struct WeightTable {
  at::Tensor parts;  // bytes on the device; undefined: none
  int count = 0;
  std::int64_t tiles = 0;
};

// Of flat memory from `begin` to `end`: the matrices, in order, and what lies between them.
WeightTable table_of(const std::vector<CopiedMatrix>& matrices, std::int64_t begin, std::int64_t end,
                     c10::Device device);
// Of the matrices alone.
WeightTable table_of(const std::vector<CopiedMatrix>& matrices, c10::Device device);

// Whether it made the copies.
bool lower_weights(const at::Tensor& flat, const WeightTable& matrices);

bool capturing(c10::Device device);  // a graph, on the current stream

}  // namespace pom::ops::cuda
