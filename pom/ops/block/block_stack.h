// All blocks of a network at once while sampling, where one kernel does them
// (pom/kernels/sm90/network/block_stack.h): a GPU of compute capability 9.0, weights in bf16, products in
// that or in fp8. For few rows that is faster than half by half (inference.h), whose tensors these are;
// results are equal up to rounding, of what a half adds to the stream to bf16.
#pragma once

#include <memory>
#include <span>

#include "pom/ops/block/inference.h"

namespace pom::ops {

struct StackedBlock {
  LayerWeights mixer;
  Dense up, down;
  Modulation mixing, feeding;
  at::Tensor mixing_gate, feeding_gate;
  at::Tensor hidden_scale;  // of fp8: see Fp8
};

class BlockStack {
 public:
  virtual ~BlockStack() = default;

  // x through all blocks, in place, on the current stream.
  virtual void run() = 0;

  // Null where the halves are to run one by one. What it is made of must stay where it is, and the weights as
  // they are, some of which are copied; making it waits for the device. One run at a time: it has its memory.
  static std::unique_ptr<BlockStack> make(const at::Tensor& x, std::span<const StackedBlock> blocks,
                                          std::int64_t order, bool fp8);
};

}  // namespace pom::ops
