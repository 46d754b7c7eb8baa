// Which context tokens a query sees. The causal forms are two integers and never become an N x N tensor.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pom::ops {

struct Mask {
  at::Tensor visible;       // keys: B x n; full: B x m x n; bool or 0/1. Undefined: no tensor.
  std::int64_t block = 0;   // 0: not causal; 1: causal; K: block-causal with blocks of K tokens
  std::int64_t window = 0;  // blocks seen, the query's own included; 0: all

  static Mask none() { return {}; }
  static Mask keys(at::Tensor visible) { return {std::move(visible), 0, 0}; }
  static Mask full(at::Tensor visible) { return {std::move(visible), 0, 0}; }
  static Mask causal(std::int64_t window = 0) { return {{}, 1, window}; }
  static Mask block_causal(std::int64_t block, std::int64_t window = 0) { return {{}, block, window}; }

  bool is_none() const { return !visible.defined() && block == 0; }
  bool is_keys() const { return visible.defined() && visible.dim() == 2; }
  bool is_full() const { return visible.defined() && visible.dim() == 3; }
};

// Several sequences packed one after another: sequence s is rows [cu_q[s], cu_q[s + 1]). Undefined: a plain
// batch.
struct Packing {
  at::Tensor cu_q, cu_k;
  bool packed() const { return cu_q.defined(); }
};

}  // namespace pom::ops
