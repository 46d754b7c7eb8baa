// Products of few rows with a weight matrix, bound by reading the weights once: the recurrent form of a
// network, one token (or some) of each sequence at a time. Row r = (sequence r / tokens, token r % tokens); K
// values go in, N come out; weights are (N, K) as torch::nn::Linear has them. Compute capability 8.0 and
// newer. Sums are fp32 and have a fixed order: the same bits on every run and every GPU.
#pragma once

#include "pom/kernels/sm90/gemm/gemm.h"

namespace pom::kernels {

constexpr int64_t kMostRows = 16;
constexpr int kMostRowsOrder = 36;  // factors of a feature that a block can hold

// The modulated layer norm of rows, taken by the product that reads them: (x - mean) rstd (1 + scale) +
// shift.
struct RowsNorm {
  const float *scale = nullptr, *shift = nullptr;  // (batch, K), rows `stride` apart; null: no norm
  int64_t stride = 0;
  float eps = 0;
};

// What all of them take. Fast where K is a multiple of 8 and rows start at 16 bytes; any K and N are right.
struct FewRowsGemm {
  GemmSizes sizes;
  Dtype dtype = Dtype::bf16;    // of w: bf16 or fp16
  const void* a = nullptr;      // (rows, K) in `dtype`; with a norm in fp32
  const void* w = nullptr;      // (N, K)
  const float* bias = nullptr;  // (N) or null
  RowsNorm norm;
  // The weights are read before the kernels ahead in the stream are done. Right only behind a product of this
  // file: none of them writes weights, and the first that is not settled has waited for all before it.
  bool settled = false;
};
bool rows_supported(const FewRowsGemm& gemm);  // 1 to kMostRows rows; a norm of rows that fit a block

// out = activation(a w^T + bias), in `dtype` or fp32.
struct RowsStore {
  Activation activation = Activation::none;
  Dtype out_dtype = Dtype::bf16;
  void* out = nullptr;  // (rows, N)
};
cudaError_t rows_store(const FewRowsGemm& gemm, const RowsStore& epilogue, cudaStream_t stream);

// out = sigmoid(a w^T + bias) * H[run of the row], in `dtype`
struct RowsGate {
  Runs runs;
  const float* H = nullptr;  // (batch * runs, N)
  void* out = nullptr;       // (rows, N)
};
cudaError_t rows_gate(const FewRowsGemm& gemm, const RowsGate& epilogue, cudaStream_t stream);

// x += gate[sequence] * (a w^T + bias), in place
struct RowsResidual {
  float* x = nullptr;           // (rows, N)
  const float* gate = nullptr;  // (batch, N), rows gate_stride apart
  int64_t gate_stride = 0;
};
cudaError_t rows_residual(const FewRowsGemm& gemm, const RowsResidual& epilogue, cudaStream_t stream);

// The Polynomial Mixer's context: p_i = gelu(c_i) p_{i-1} of the k factors c of each feature, with the
// weights in the paper's order (row i D + j is factor i of feature j), summed over tokens. With a state, the
// sums go on from `sum` over `count` tokens. A run sees its own tokens, or with `causal` those of all runs up
// to it and what the state has seen.
struct RowsSums {
  int order = 2;
  Runs runs;
  bool causal = false;
  const uint8_t* visible = nullptr;  // (rows) or null: rows that count
  const float* sum = nullptr;        // (batch, N) or null
  const int64_t* count = nullptr;    // (batch), with sum
  float* total = nullptr;            // (batch, N) or null: the sum over all tokens; may be `sum`
  float* H = nullptr;                // (batch * runs, N) or null: the mean, sum / (1e-7 + count)
};
cudaError_t rows_sums(const FewRowsGemm& gemm, const RowsSums& epilogue, cudaStream_t stream);

}  // namespace pom::kernels
