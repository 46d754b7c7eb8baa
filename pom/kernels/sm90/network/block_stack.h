// All blocks of a network while sampling, in one kernel that stays on the processors from the first product
// to the last: a tile of a product begins as soon as the rows it reads are there, so that what follows a
// product, the norms between and the ends of products run beside the next one. Compute capability 9.0;
// B sequences of N tokens, a multiple of 128, rows = B N, width d up to 1152, order 2 to 4; bf16 and e4m3.
// Sums have a fixed order: the same bits on every run.
#pragma once

#include "pom/kernels/sm90/gemm/gemm.h"

namespace pom::kernels {

struct BlockStackMatrix {
  const void* w = nullptr;         // (out, in)
  const float* bias = nullptr;     // (out) or null
  const float* w_scale = nullptr;  // (out), e4m3 only
};

// x += mixing_gate * (sigmoid(m S) * H) A, m = norm(x) by the mixing scale and shift, H the mean over tokens
// of the running products of gelu(m C); then x += feeding_gate * gelu(m U) D likewise. Scales, shifts and
// gates are (B, d), rows `stride` apart.
struct BlockStackBlock {
  BlockStackMatrix context;  // rows in the order of sums_row()
  BlockStackMatrix select, aggregate, up, down;
  const float *mixing_scale = nullptr, *mixing_shift = nullptr, *mixing_gate = nullptr;
  const float *feeding_scale = nullptr, *feeding_shift = nullptr, *feeding_gate = nullptr;
  const float* hidden_scale = nullptr;  // e4m3 only: one value, what gelu(m U) is divided by
};

struct BlockStack {
  int64_t batch = 0, tokens = 0, width = 0;
  int64_t features = 0, hidden = 0;  // columns of the context and of `up`
  int order = 2;
  Dtype dtype = Dtype::bf16;
  float eps = 1e-6f;
  int64_t stride = 0;
  float* x = nullptr;  // (rows, d), in place
  const BlockStackBlock* blocks = nullptr;
  int count = 0;
  int splits = 0;             // of the products that go back to d: 0: chosen by the sizes
  void* workspace = nullptr;  // block_stack_workspace() bytes on the device, 256-byte aligned
  int64_t rows() const { return batch * tokens; }
};

bool block_stack_supported(const BlockStack& stack);
int64_t block_stack_workspace(const BlockStack& stack);  // for these sizes, not the pointers
// The kernel reads its orders from memory: written here on the host once, then wherever the caller copied
// them on the device (64-byte aligned). They hold all the pointers of `block stack`.
int64_t block_stack_orders_size(const BlockStack& stack);
cudaError_t block_stack_write_orders(const BlockStack& stack, void* orders);
cudaError_t block_stack_run(const BlockStack& stack, const void* device_orders, cudaStream_t stream);

}  // namespace pom::kernels
