// A call of the operator, checked: every mistake of the caller is found here, with the argument's name, what
// was expected and what came.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pom/ops/mixer.h"

namespace pom::ops {

struct Problem {
  std::vector<std::int64_t> queries, keys;           // tokens of each sequence
  std::vector<std::int64_t> query_start, key_start;  // packed: first row of each sequence
  std::int64_t d = 0, D = 0, order = 0;              // D features of one degree
  std::int64_t block = 0, window = 0;
  at::Tensor visible;  // uint8, contiguous; undefined without a mask tensor
  bool packed = false, full = false;

  std::int64_t kD() const { return order * D; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(queries.size()); }
  bool masked() const { return visible.defined() || block > 0; }
};

Problem check_layer(const char* op, const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& weights,
                    std::int64_t order, const Mask& mask, const Packing& packing);
Problem check_mixer(const char* op, const at::Tensor& ho, const at::Tensor& se, std::int64_t order,
                    const Mask& mask, const Packing& packing);
// The halves and the recurrent form; H and sums are (B, kD) in the dtype that sums have for such tokens.
Problem check_summary(const at::Tensor& xc, const at::Tensor& ho_weight, const at::Tensor& ho_bias,
                      std::int64_t order, const at::Tensor& keys);
Problem check_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& weights);
Problem check_scan(const at::Tensor& x, const LayerWeights& weights, std::int64_t order,
                   const at::Tensor& sum, const at::Tensor& count);
// What queries (B, m, any) may see of a context (B, n, any), whatever their dtypes.
void check_context(const char* op, const at::Tensor& queries, const at::Tensor& context, const Mask& mask);
// A layer within a network: x is the residual stream, of another dtype than the weights perhaps.
Problem check_stream_layer(const at::Tensor& x, const LayerWeights& weights, std::int64_t order);
Problem check_stream_selection(const at::Tensor& x, const LayerWeights& weights);  // its queries alone
void check_tokens(const char* op, const char* name, const at::Tensor& x, std::int64_t dims);

// "(2, 3, 4)"
std::string shape_text(const at::Tensor& t);

}  // namespace pom::ops
