#include "pom/ops/state.h"

#include <vector>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/ops/problem.h"

namespace pom::ops {
namespace {

void check_state(const char* op, const at::Tensor& x, const MixerState& state, const LayerWeights& w) {
  check_tokens(op, "x", x, 3);
  check(x.size(0) == state.batch(), op, ": state: expected a batch of ", x.size(0), " like x, got ",
        state.batch());
  check(w.ho_weight.dim() == 2 && w.ho_weight.size(0) == state.features(), op, ": state: expected ",
        w.ho_weight.size(0), " features like ho_weight, got ", state.features());
}

}  // namespace

MixerState MixerState::start(std::int64_t batch, std::int64_t features, const at::Tensor& like,
                             std::int64_t window) {
  check(batch >= 0, "MixerState: batch: expected at least 0, got ", batch);
  check(features >= 1, "MixerState: features: expected at least 1, got ", features);
  check(window >= 0, "MixerState: window: expected a number of blocks of at least 1 (0 for no window), got ",
        window);
  MixerState state;
  state.window_ = window;
  const at::ScalarType type = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::int64_t rows = window ? 0 : 1;
  state.sums_ = at::zeros({batch, rows, features}, like.options().dtype(type).requires_grad(false));
  state.counts_ = at::zeros({batch, rows}, like.options().dtype(at::kLong).requires_grad(false));
  return state;
}

at::Tensor MixerState::sum() const {
  if (sums_.size(1) == 0) return at::zeros({batch(), features()}, sums_.options());
  at::Tensor total = sums_.select(1, 0);
  for (std::int64_t i = 1; i < sums_.size(1); ++i) total = total + sums_.select(1, i);
  return total;
}

at::Tensor MixerState::count() const {
  return counts_.sum(1);
}

at::Tensor MixerState::mean() const {
  const at::Tensor seen = (count().to(at::kDouble) + 1e-7).to(sums_.scalar_type());
  return sum() / seen.unsqueeze(1);
}

void MixerState::add(const at::Tensor& sum, const at::Tensor& count) {
  if (window_ == 0) return set(sums_.select(1, 0) + sum, counts_.select(1, 0) + count);
  const std::int64_t keep = std::min(sums_.size(1), window_ - 1), from = sums_.size(1) - keep;
  sums_ = at::cat({sums_.slice(1, from), sum.unsqueeze(1)}, 1);
  counts_ = at::cat({counts_.slice(1, from), count.unsqueeze(1)}, 1);
}

void MixerState::set(const at::Tensor& sum, const at::Tensor& count) {
  check(window_ == 0, "MixerState: set: expected a state without a window, got one of ", window_, " blocks");
  sums_ = sum.unsqueeze(1);
  counts_ = count.unsqueeze(1);
}

MixerState MixerState::clone() const {
  MixerState copy;
  copy.window_ = window_;
  copy.sums_ = sums_.clone();
  copy.counts_ = counts_.clone();
  return copy;
}

MixerState MixerState::merged(const MixerState& later) const {
  check(later.window_ == window_, "MixerState: merged: expected a window of ", window_, " blocks, got ",
        later.window_);
  check(later.batch() == batch() && later.features() == features(),
        "MixerState: merged: expected a state of (", batch(), ", ", features(), "), got (", later.batch(),
        ", ", later.features(), ")");
  MixerState both;
  both.window_ = window_;
  if (window_ == 0) {
    both.sums_ = sums_ + later.sums_;
    both.counts_ = counts_ + later.counts_;
    return both;
  }
  both.sums_ = at::cat({sums_, later.sums_}, 1);
  both.counts_ = at::cat({counts_, later.counts_}, 1);
  const std::int64_t from = std::max<std::int64_t>(0, both.sums_.size(1) - window_);
  both.sums_ = both.sums_.slice(1, from).contiguous();
  both.counts_ = both.counts_.slice(1, from).contiguous();
  return both;
}

std::map<std::string, at::Tensor> MixerState::tensors() const {
  return {
      {"sums", sums_}, {"counts", counts_}, {"window", at::full({}, window_, at::TensorOptions(at::kLong))}};
}

MixerState MixerState::from_tensors(const std::map<std::string, at::Tensor>& tensors) {
  for (const char* name : {"sums", "counts", "window"})
    check(tensors.count(name) == 1, "MixerState: from_tensors: expected a tensor '", name, "', got none");
  MixerState state;
  state.sums_ = tensors.at("sums");
  state.counts_ = tensors.at("counts");
  check(state.sums_.dim() == 3, "MixerState: sums: expected (batch, blocks, features), got shape ",
        shape_text(state.sums_));
  check(state.counts_.dim() == 2 && state.counts_.scalar_type() == at::kLong &&
            state.counts_.sizes() == state.sums_.sizes().slice(0, 2),
        "MixerState: counts: expected int64 of shape (", state.sums_.size(0), ", ", state.sums_.size(1),
        "), got ", state.counts_.scalar_type(), " of shape ", shape_text(state.counts_));
  const at::Tensor& window = tensors.at("window");
  check(window.numel() == 1, "MixerState: window: expected one number, got shape ", shape_text(window));
  state.window_ = window.item<std::int64_t>();
  const bool fits = state.window_ == 0 ? state.sums_.size(1) == 1
                                       : state.window_ > 0 && state.sums_.size(1) <= state.window_;
  check(fits, "MixerState: window: ", state.window_, " blocks do not fit sums of shape ",
        shape_text(state.sums_));
  return state;
}

at::Tensor step(const at::Tensor& x, MixerState& state, const LayerWeights& w, std::int64_t order) {
  check_state("step", x, state, w);
  // A single token sees the same in both forms, and a GPU has this one in three kernels.
  if (x.is_cuda() && x.size(1) == 1 && state.window() == 0) return step_causal(x, state, w, order);
  const at::Tensor sum = mixer_summary(x, w, order);
  MixerState next = state;
  next.add(sum, at::full({x.size(0)}, x.size(1), state.counts().options()));
  const at::Tensor out = mixer_select(x, next.mean(), w);
  state = std::move(next);
  return out;
}

at::Tensor step_causal(const at::Tensor& x, MixerState& state, const LayerWeights& w, std::int64_t order) {
  check_state("step_causal", x, state, w);
  if (state.window() == 0) {
    const at::Tensor count = state.count();
    auto [out, sum] = mixer_scan(x, w, order, state.sum(), count);
    state.set(sum, count + x.size(1));
    return out;
  }
  MixerState next = state;
  std::vector<at::Tensor> outs;
  for (std::int64_t t = 0; t < x.size(1); ++t) outs.push_back(step(x.slice(1, t, t + 1), next, w, order));
  check(!outs.empty(), "step_causal: x: expected at least one token, got shape ", shape_text(x));
  state = std::move(next);
  return at::cat(outs, 1);
}

}  // namespace pom::ops
