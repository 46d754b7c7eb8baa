// The recurrent form: a sequence of any length summed up in a state of constant size.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "pom/ops/mixer.h"

namespace pom::ops {

// What has been seen so far. A value: a copy that goes its own way is clone().
//
// Without a window: the running sum (B, kD), fp32 (fp64 for fp64 tokens), and the number of tokens behind it.
// With a window of W blocks: the sums and counts of the last W blocks, oldest first; they are added up anew,
// in order, at every step, so that nothing drifts however long the sequence.
class MixerState {
 public:
  // Nothing seen yet by `batch` sequences of tokens like `like` (dtype and device).
  static MixerState start(std::int64_t batch, std::int64_t features, const at::Tensor& like,
                          std::int64_t window = 0);

  std::int64_t batch() const { return sums_.size(0); }
  std::int64_t features() const { return sums_.size(2); }
  std::int64_t window() const { return window_; }
  const at::Tensor& sums() const { return sums_; }      // (B, blocks kept, kD); one row without a window
  const at::Tensor& counts() const { return counts_; }  // (B, blocks kept), int64

  at::Tensor sum() const;    // (B, kD)
  at::Tensor count() const;  // (B)
  at::Tensor mean() const;   // (B, kD): sum / (1e-7 + count)

  // One more block: its sum (B, kD) and its tokens (B).
  void add(const at::Tensor& sum, const at::Tensor& count);
  void set(const at::Tensor& sum, const at::Tensor& count);  // without a window: the new totals

  MixerState clone() const;
  // The state of two runs of tokens, `later` following this one, each summed up apart.
  MixerState merged(const MixerState& later) const;

  std::map<std::string, at::Tensor> tensors() const;  // to be saved: "sums", "counts", "window"
  static MixerState from_tensors(const std::map<std::string, at::Tensor>& tensors);

 private:
  at::Tensor sums_, counts_;
  std::int64_t window_ = 0;
};

// A block of tokens (B, n, d) that all see each other and everything before. Gives the output and moves the
// state on.
at::Tensor step(const at::Tensor& x, MixerState& state, const LayerWeights& weights, std::int64_t order);

// A run of tokens each of which sees itself and the past. With a window, each token is a block.
at::Tensor step_causal(const at::Tensor& x, MixerState& state, const LayerWeights& weights,
                       std::int64_t order);

}  // namespace pom::ops
