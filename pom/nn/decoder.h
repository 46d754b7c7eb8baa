// One token after the other through a stack of causal Polymorpher blocks, as libpom.Decoder does it in
// Python: what a sequence was so far is a sum for each block, however long it is. B sequences, L blocks, d
// width, kD features.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pom/nn/polymorpher.h"

namespace pom::nn {

// Not for several threads at a time. There are no gradients. Between the blocks a step has the residual
// stream in fp32 (fp64 of blocks in fp64), prefill() in the blocks' dtype.
class Decoder {
 public:
  // Blocks of one size, dtype and device; they are kept, and weights that change in place, or others put in
  // their place by torch's functions, are followed. What torch does not count, writes through data_ptr() or
  // data(), is not noticed: call refresh().
  Decoder(std::vector<Polymorpher> blocks, std::int64_t batch);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // The next token of each sequence, (B, d) or (B, 1, d) -> the same shape and dtype. On a GPU of compute
  // capability 9.0, with the sizes of pom/kernels/sm90/decode/stack_step.h, one kernel; on any GPU one CUDA
  // graph.
  at::Tensor step(const at::Tensor& x);
  // Tokens (B, n, d) at once, each of which sees itself and what came before, the state included.
  at::Tensor prefill(const at::Tensor& x);

  void reset();  // before the first token
  // A copy of the state, one of each block, as Polymorpher::step_causal has it; and what it was at another
  // time, here or of another decoder of these blocks.
  std::vector<ops::MixerState> states() const;
  void load(const std::vector<ops::MixerState>& states);

  void refresh();                     // takes the blocks as they are now
  std::optional<bool> fused() const;  // whether the last step was one kernel; nothing before the first

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::nn
