#include "pom/generate/block_sampler.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/diffusion/noise.h"

namespace pom::generate {

BlockSampler::BlockSampler(models::Denoiser& network, BatchSampling sampling)
    : network_(&network), sampling_(std::move(sampling)) {
  check(!sampling_.seeds.empty(), "BlockSampler: seeds: expected at least one item, got none");
  sampling_.sampler = diffusion::canonical_sampler(sampling_.sampler);
  for (const double t : diffusion::evaluation_times(sampling_.sampler, sampling_.options))
    evaluations_.push_back({t, sampling_.guidance.acts_at(t)});
  plan(std::ssize(sampling_.seeds));
}

void BlockSampler::plan(std::int64_t items) {
  network_->plan({.batch = items,
                  .height = sampling_.height,
                  .width = sampling_.width,
                  .evaluations = evaluations_,
                  .blocks = sampling_.blocks,
                  .ranks = sampling_.ranks});
}

void BlockSampler::tell(const models::Condition& condition) {
  told_ = condition;
  network_->tell(condition);
}

// ---- items that leave ----

namespace {

at::Tensor on(const at::Tensor& like, std::span<const std::int64_t> rows) {
  return at::tensor(at::IntArrayRef(rows.data(), rows.size()), at::TensorOptions(at::kLong))
      .to(like.device());
}

models::Condition rows_of(const models::Condition& all, std::span<const std::int64_t> rows) {
  models::Condition some;
  for (const std::int64_t row : rows) {
    const auto place = static_cast<std::size_t>(row);
    if (!all.classes.empty()) some.classes.push_back(all.classes.at(place));
    if (!all.away_classes.empty()) some.away_classes.push_back(all.away_classes.at(place));
  }
  const auto taken = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.index_select(0, on(tensor, rows)) : tensor;
  };
  some.text = taken(all.text), some.mask = taken(all.mask);
  some.away_text = taken(all.away_text), some.away_mask = taken(all.away_mask);
  return some;
}

}  // namespace

// On a GPU another number of rows has other bits, and other graphs. A clip goes on: its rows have a past.
bool BlockSampler::may_leave() const {
  return network_->device().is_cpu() && sampling_.ranks.alone() && block() == 0 && sampling_.blocks == 1;
}

// Of the rows that are evaluated, those that nobody wants go, but never all: whoever wants none stops the
// run.
void BlockSampler::let_go(std::vector<std::int64_t>& rows, const SamplingHooks& hooks) {
  if (!hooks.left || !may_leave()) return;
  std::vector<std::int64_t> wanted;
  std::ranges::copy_if(rows, std::back_inserter(wanted), [&](std::int64_t row) { return !hooks.left(row); });
  if (wanted.empty() || wanted.size() == rows.size()) return;
  rows = std::move(wanted);
  plan(std::ssize(rows));
  network_->tell(rows_of(told_, rows));
}

// What is not evaluated is zero.
at::Tensor BlockSampler::evaluated(const at::Tensor& noisy, std::span<const std::int64_t> rows,
                                   std::size_t evaluation) {
  const std::int64_t all = noisy.size(0), some = std::ssize(rows);
  if (some == all) return (*network_)(noisy, static_cast<std::int64_t>(evaluation));
  const at::Tensor places = on(noisy, rows);
  const at::Tensor answer = (*network_)(noisy.index_select(0, places), static_cast<std::int64_t>(evaluation));
  const std::int64_t halves = answer.size(0) / some;
  std::vector<std::int64_t> shape = answer.sizes().vec();
  shape[0] = halves * all;
  at::Tensor whole = at::zeros(shape, answer.options());
  for (std::int64_t half = 0; half < halves; ++half)
    whole.narrow(0, half * all, all).index_copy_(0, places, answer.narrow(0, half * some, some));
  return whole;
}

// ---- blocks ----

void BlockSampler::set_seeds(std::vector<std::uint64_t> seeds) {
  check(seeds.size() == sampling_.seeds.size(), "BlockSampler: seeds: expected ", sampling_.seeds.size(),
        ", got ", seeds.size());
  sampling_.seeds = std::move(seeds);
}

// Draws every block of the latents with the numbers that are its own.
template <class Draw>
void BlockSampler::each_block(at::Tensor& latents, Draw&& draw) const {
  if (latents.dim() == 4) return draw(latents, 0);  // images
  const std::int64_t pt = network_->config().patch_time;
  for (std::int64_t b = 0; b < latents.size(2) / pt; ++b) {
    at::Tensor one = latents.narrow(2, b * pt, pt);
    draw(one, (block() + b) * (one.numel() / one.size(0)));
  }
}

at::Tensor BlockSampler::noise_of(std::int64_t blocks) const {
  const models::NetworkConfig& config = network_->config();
  std::vector<std::int64_t> shape = {std::ssize(sampling_.seeds), config.channels};
  if (config.video()) shape.push_back(blocks * config.patch_time);
  shape.push_back(sampling_.height), shape.push_back(sampling_.width);
  at::Tensor x = at::empty(shape, at::TensorOptions(network_->device()).dtype(at::kFloat));
  each_block(
      x, [&](at::Tensor& one, std::int64_t first) { diffusion::fill_latents(one, sampling_.seeds, first); });
  return x;
}

at::Tensor BlockSampler::next(std::int64_t blocks, const SamplingHooks& hooks, const BlockStart& start) {
  const at::NoGradGuard no_gradients;
  check(blocks >= 1, "BlockSampler: blocks: expected at least one, got ", blocks);
  const diffusion::SamplerOptions& options = sampling_.options;
  at::Tensor x = start.noise.defined() ? start.noise : noise_of(blocks);
  if (start.init.defined() && options.t_start < 1)
    x = sampling_.path.mix(start.init, x, diffusion::shifted(options.t_start, options.shift));
  const auto step_noise = [&](at::Tensor& out, std::uint32_t step) {
    each_block(out, [&](at::Tensor& one, std::int64_t first) {
      diffusion::fill_step_noise(one, sampling_.seeds, step, first);
    });
  };
  std::size_t done = 0;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(x.size(0)));  // that are evaluated
  std::iota(rows.begin(), rows.end(), 0);
  const auto answers = [&](const at::Tensor& noisy, double t, bool both) {
    if (hooks.before) hooks.before();
    check(done < evaluations_.size() && evaluations_[done].t == t && evaluations_[done].both == both,
          "BlockSampler: evaluation ", done, ": expected what was planned, got time ", t);
    let_go(rows, hooks);
    at::Tensor answer = evaluated(noisy, rows, done++);
    if (hooks.after) hooks.after();
    return answer;
  };
  at::Tensor made = diffusion::sample(diffusion::guide(answers, sampling_.guidance), x, sampling_.path,
                                      sampling_.sampler, options, step_noise, hooks.on_step);
  if (std::ssize(rows) == x.size(0)) network_->advance();  // images, of which some left, have no next block
  return made;
}

}  // namespace pom::generate
