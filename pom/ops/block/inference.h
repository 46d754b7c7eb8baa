// Halves of a network's blocks for sampling: no gradients, in place on the residual stream. On the CPU each
// is a single pass over tiles of tokens; on a GPU of compute capability 9.0 with weights in bf16 or fp16 a
// few fused products; composed of ATen operations elsewhere. On the CPU the results do not depend, row by
// row, on the batch or on the number of threads, bit for bit; of a mixer of an order above kMaxFusedOrder,
// which is composed there too, not on the batch.
//
// x is the stream (B, N, d) in fp32 (fp64 for fp64 weights), contiguous; weights may be fp32, bf16, fp16,
// fp64. Scales, shifts and gates are (B, d) in the stream's dtype, rows that may lie apart.
#pragma once

#include <string>

#include "pom/ops/block/past_sums.h"
#include "pom/ops/mixer.h"

namespace pom::ops {

struct Modulation {
  at::Tensor scale, shift;
  double eps = 1e-6;
};

struct Dense {
  at::Tensor weight, bias;  // (out, in), (out) or undefined
};

// Products in fp8 (e4m3) from weights in bf16 or fp16, on a GPU. Weights and tokens are scaled row by row as
// they are; the hidden values of a feed-forward by what was measured before, with the products as stored.
// Where there is no kernel for it, fp8 is an error.
struct Fp8 {
  enum class Stage { off, measuring, on };
  Stage stage = Stage::off;
  // One value in fp32. Measuring raises it to the greatest |hidden value| / 448, if that is more; after it,
  // it must be the scale to use.
  at::Tensor hidden = {};
  // Of add_selection: means_scales(H), for an H that serves again and again; made each time where undefined.
  at::Tensor means = {};
  bool asked() const { return stage != Stage::off; }
};

// (..., kD) -> (...), of each row the scale in which e4m3 holds whatever a gate leaves of its values.
at::Tensor means_scales(const at::Tensor& H);

// Why products cannot run in fp8 on this device; empty where they can.
std::string fp8_refusal(c10::Device device);

// x += gate * mixer_layer(m), m = layer_norm(x) * (1 + scale) + shift
void add_mixer(at::Tensor& x, const Modulation& modulation, const LayerWeights& weights, std::int64_t order,
               const at::Tensor& gate, const Fp8& fp8 = {});

// The same of sequences that are blocks of others, x (R n, K, d), which see those before them as well. In fp8
// each block has a scale of its own for its gated features, so that it is the same alone and among others.
void add_mixer(at::Tensor& x, const Modulation& modulation, const LayerWeights& weights, std::int64_t order,
               const at::Tensor& gate, const PastSums& past, const Fp8& fp8 = {});

// x += gate * mixer_select(m, H): the queries of a layer whose context has been read, H (B, kD) its means.
void add_selection(at::Tensor& x, const Modulation& modulation, const at::Tensor& H,
                   const LayerWeights& weights, const at::Tensor& gate, const Fp8& fp8 = {});

// The exact one, or its approximation by tanh, which no kernel for GPUs has: it is composed there.
enum class Gelu { erf, tanh };

// x += gate * (gelu(m W_up + b_up) W_down + b_down)
void add_feed_forward(at::Tensor& x, const Modulation& modulation, const Dense& up, const Dense& down,
                      const at::Tensor& gate, const Fp8& fp8 = {}, Gelu gelu = Gelu::erf);

// y = m W + b into y (B, N, out), which is in the stream's dtype or in that of the weights.
void modulated_linear(const at::Tensor& x, const Modulation& modulation, const Dense& dense, at::Tensor& y,
                      const Fp8& fp8 = {});

// x += gate * (y W + b), y (B, N, in) in the stream's dtype, or on a GPU in that of the weights.
void add_linear(at::Tensor& x, const at::Tensor& y, const Dense& dense, const at::Tensor& gate,
                const Fp8& fp8 = {});

// Rows (R, in) -> out (R, out), all in the stream's dtype: x W + b, silu(x) W + b, and
// silu(x W1 + b1) W2 + b2.
void linear_rows(const at::Tensor& x, const Dense& dense, at::Tensor& out);
void silu_linear_rows(const at::Tensor& x, const Dense& dense, at::Tensor& out);
void silu_mlp_rows(const at::Tensor& x, const Dense& up, const Dense& down, at::Tensor& out);

}  // namespace pom::ops
