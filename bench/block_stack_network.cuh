// A stack of blocks with drawn weights, as a block stack (pom/kernels/sm90/network/block_stack.h) and as the
// kernels of its products apart: for the timing of block stacks.
#pragma once

#include "bench/bench_cuda.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/kernels/sm90/network/block_stack.h"

namespace {

using namespace pom::kernels;

struct NetworkSizes {
  int64_t batch = 4, tokens = 256, width = 1152, features = 4608, hidden = 4608;
  int order = 2, blocks = 28;
  Dtype dtype = Dtype::bf16;
  int64_t rows() const { return batch * tokens; }
};

template <class T>
struct Network {
  explicit Network(const NetworkSizes& sizes) : n(sizes) {
    const float wide = 1.0f / sqrtf(static_cast<float>(n.width));
    modulations = memory.drawn<float>(n.batch * stride(), 0.2f);
    start = memory.drawn<float>(n.rows() * n.width, 1);
    x = memory.drawn<float>(n.rows() * n.width, 1);
    for (int i = 0; i < n.blocks; ++i) {
      BlockStackBlock b;
      b.context = matrix(n.features, n.width, wide), b.select = matrix(n.features, n.width, wide);
      b.aggregate = matrix(n.width, n.features, 2.0f / sqrtf(static_cast<float>(n.features)));
      b.up = matrix(n.hidden, n.width, wide);
      b.down = matrix(n.width, n.hidden, 1.0f / sqrtf(static_cast<float>(n.hidden)));
      if (kE4m3) b.hidden_scale = hidden_scale = memory.drawn<float>(1, 0, 8.0f / 448);
      const float* const m = modulations + 6 * i * n.width;
      b.mixing_scale = m, b.mixing_shift = m + n.width, b.feeding_scale = m + 2 * n.width;
      b.feeding_shift = m + 3 * n.width, b.mixing_gate = m + 4 * n.width, b.feeding_gate = m + 5 * n.width;
      blocks.push_back(b);
    }
    normal = memory.drawn<T>(n.rows() * n.width, 1), wide_ = memory.drawn<T>(n.rows() * n.features, 1);
    hidden_ = memory.drawn<T>(n.rows() * n.hidden, 1);
    partial = memory.drawn<float>(sums_slots(sums_sizes(), {}) * n.features, 1);
    H = memory.drawn<float>(n.batch * n.features, 1);
    row_scale = memory.drawn<float>(n.rows(), 1), largest = memory.drawn<float>(n.batch, 1);
  }
  static constexpr bool kE4m3 = sizeof(T) == 1;
  int64_t stride() const { return 6 * n.blocks * n.width; }
  GemmSizes sums_sizes() const { return {n.batch, n.tokens, n.width, n.features}; }

  BlockStackMatrix matrix(int64_t out, int64_t in, float scale) {
    const float unit = kE4m3 ? scale / 64 : 1;  // what a stored 1 stands for
    return {memory.drawn<T>(out * in, scale / unit), memory.drawn<float>(out, 0.1f),
            kE4m3 ? memory.drawn<float>(out, 0, unit) : nullptr};
  }
  void restart() {
    bench_must(cudaMemcpyAsync(x, start, static_cast<size_t>(4 * n.rows() * n.width),
                               cudaMemcpyDeviceToDevice, bench_stream()),
               "a copy");
  }

  // ---- as a block stack ----

  BlockStack stack(int splits = 0) const {
    BlockStack c;
    c.batch = n.batch, c.tokens = n.tokens, c.width = n.width, c.features = n.features, c.hidden = n.hidden;
    c.order = n.order, c.dtype = n.dtype, c.stride = stride(), c.x = x;
    c.blocks = blocks.data(), c.count = n.blocks, c.splits = splits;
    return c;
  }
  // Its memory and its orders; what comes back can be run.
  std::function<cudaError_t()> prepared(int splits = 0) {
    BlockStack c = stack(splits);
    if (!block_stack_supported(c)) return [] { return cudaErrorNotSupported; };
    c.workspace = memory.bytes(block_stack_workspace(c));
    std::vector<char> orders(static_cast<size_t>(block_stack_orders_size(c)));
    bench_must(block_stack_write_orders(c, orders.data()), "the orders of a block stack");
    void* const there = memory.bytes(static_cast<int64_t>(orders.size()));
    bench_must(cudaMemcpy(there, orders.data(), orders.size(), cudaMemcpyHostToDevice), "a copy");
    return [c, there] { return block_stack_run(c, there, bench_stream()); };
  }

  // ---- apart ----

  Gemm gemm(const BlockStackMatrix& m, const T* a, int64_t in, int64_t out, const float* scale,
            int64_t scale_rows = 1) const {
    Gemm p;
    p.sizes = {n.batch, n.tokens, in, out}, p.dtype = n.dtype;
    p.a = a, p.w = m.w, p.bias = m.bias, p.steady = true;
    p.a_scale = scale, p.w_scale = m.w_scale, p.scale_rows = scale_rows;
    return p;
  }
  cudaError_t norm(const float* scale, const float* shift) const {
    StreamNormParams p;
    p.batch = n.batch, p.tokens = n.tokens, p.width = n.width, p.x = x;
    p.scale = scale, p.shift = shift, p.stride = stride(), p.eps = 1e-6f;
    p.out_dtype = n.dtype, p.out = normal, p.row_scale = row_scale;
    return stream_norm(p, bench_stream());
  }
  cudaError_t apart() const {
    cudaError_t worst = cudaSuccess;
    const auto note = [&](cudaError_t e) { worst = worst == cudaSuccess ? e : worst; };
    const bool here = !kE4m3 && gate_takes_sums(sums_sizes(), {});
    for (const BlockStackBlock& b : blocks) {
      note(norm(b.mixing_scale, b.mixing_shift));
      SumsEpilogue sums;
      sums.order = n.order, sums.partial = partial;
      note(gemm_sums(gemm(b.context, normal, n.width, n.features, row_scale), sums, bench_stream()));
      if (!here) {
        FoldParams fold;
        fold.sizes = sums_sizes(), fold.partial = partial, fold.H = H,
        fold.largest = kE4m3 ? largest : nullptr;
        note(fold_sums(fold, bench_stream()));
      }
      GateEpilogue gate;
      gate.H = H, gate.out = wide_, gate.out_dtype = n.dtype, gate.out_scale = largest;
      if (here) gate.partial = partial;
      note(gemm_gate(gemm(b.select, normal, n.width, n.features, row_scale), gate, bench_stream()));
      note(gemm_residual(gemm(b.aggregate, wide_, n.features, n.width, largest, n.tokens),
                         {x, b.mixing_gate, stride()}, bench_stream()));
      note(norm(b.feeding_scale, b.feeding_shift));
      StoreEpilogue up;
      up.activation = Activation::gelu, up.out_dtype = n.dtype, up.out = hidden_, up.out_scale = hidden_scale;
      note(gemm_store(gemm(b.up, normal, n.width, n.hidden, row_scale), up, bench_stream()));
      note(gemm_residual(gemm(b.down, hidden_, n.hidden, n.width, hidden_scale, n.rows()),
                         {x, b.feeding_gate, stride()}, bench_stream()));
    }
    return worst;
  }

  NetworkSizes n;
  BenchMemory memory;
  float *modulations, *start, *x;
  std::vector<BlockStackBlock> blocks;
  T *normal, *wide_, *hidden_;
  float *partial, *H, *row_scale, *largest, *hidden_scale = nullptr;
};

}  // namespace
