// Private to the room: the means that a mixer's queries see, of GEMMs whose epilogue sums over tokens.
// R sequences, n blocks of each, K tokens of a block, d width, kD features.
#pragma once

#include "pom/ops/cuda/inference_rows.h"

namespace pom::ops::cuda::sampling {

// What the queries see of the context: (B runs, kD).
struct Means {
  kernels::Runs runs;
  at::Tensor H;
  at::Tensor largest;  // (B) sequences of the queries, fp8 only: a scale that fits every value of one
  at::Tensor partial;  // instead of H: the sums of tiles, which the gate adds up
};

struct Visibility {
  kernels::Runs runs;
  bool causal = false;
  std::int64_t window = 0;
  at::Tensor visible;       // (B, n) bytes or undefined
  bool sums = false;        // not means: of a whole sequence
  bool gated_here = false;  // the queries are these tokens
};

// What a sum goes on from: (B, kD) over (B) tokens; and where the new one is left, if it is wanted.
struct Running {
  at::Tensor sum, count, total;
};

std::int64_t runs_of(std::int64_t tokens, std::int64_t run);

Means few_means(const char* op, const kernels::FewRowsGemm& p, std::int64_t order, const Visibility& seen,
                const Running& state, const at::Tensor& like, Queue& queue);
// Few rows have the weights in the paper's order, more in that of gemm_sums.
Means means(const char* op, const Rows& context, const Dense& dense, Dtype dtype, std::int64_t order,
            const Visibility& seen, Queue& queue);

// The sums over the tokens of each sequence (B, kD), not divided.
at::Tensor sums_of(const char* op, const Rows& context, const Dense& dense, Dtype dtype, std::int64_t order,
                   const at::Tensor& visible, Queue& queue);

// Whether one kernel makes the means of sums and of those of the blocks before.
bool folds(const PastSums& past);
// Of blocks that see those before them, context (R n, K, d): the sums of tiles, added up to what is kept.
Means means_with_past(const char* op, const Rows& context, const Dense& dense, Dtype dtype,
                      std::int64_t order, const PastSums& past, Queue& queue);

// Means that a caller made, as the gate of this dtype reads them, with their scales if they are known.
Means means_from(const at::Tensor& H, Dtype dtype, const at::Tensor& scales = {});

}  // namespace pom::ops::cuda::sampling
