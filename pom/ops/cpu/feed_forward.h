// A feed-forward layer in training, y = gelu(x W1 + b1) W2 + b2, and its gradients: no torch, no instruction
// set.
//
// Letters: R rows, `in`, `hidden` and `out` columns, T rows of a tile. Hidden features are taken in groups,
// so that between the two products a thread holds group x T numbers, in cache. What comes before the
// activation is saved, tile by tile [feature][row]; the activation itself is computed again.
#pragma once

#include "pom/ops/cpu/kernels.h"

namespace pom::ops::cpu {

struct FeedForwardArgs {
  std::int64_t rows = 0, in = 0, hidden = 0, out = 0;
  std::int64_t group = 0;  // hidden features taken together
  int tile = 0;            // T, a multiple of a panel
  const void* x = nullptr;
  void* y = nullptr;
  Matrix w1, w2;                            // (hidden, in), (out, hidden)
  const void *b1 = nullptr, *b2 = nullptr;  // dtype of the weights
  void* saved = nullptr;                    // null where no gradient is wanted

  // Backward. Gradients of weights are summed in arithmetic type, in rows of a whole number of panels, tile
  // after tile, and then written as the weights are; dw1 may be gw1 itself.
  const void* dy = nullptr;
  void* dx = nullptr;
  void *dw1 = nullptr, *dw2_t = nullptr;  // `hidden` rows of ld1 and ld2
  std::int64_t ld1 = 0, ld2 = 0;
  void *gw1 = nullptr, *gw2 = nullptr;
  void *db1 = nullptr, *db2 = nullptr;        // arithmetic type
  std::atomic<std::int64_t>* done = nullptr;  // per group: tiles finished

  std::int64_t groups() const { return (hidden + group - 1) / group; }
  std::int64_t tiles() const { return (rows + tile - 1) / tile; }
};

struct FeedForwardKernels {
  int panel;  // rows of a panel, and columns of one
  std::size_t (*scratch)(const FeedForwardArgs&);
  void (*forward)(const FeedForwardArgs&, void* scratch, std::int64_t tile);
  void (*backward)(const FeedForwardArgs&, void* scratch, std::int64_t tile);
};

const FeedForwardKernels& feed_forward_table(DType dtype);

}  // namespace pom::ops::cpu
