#include "pom/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/ops/cuda/optimizer.h"
#include "pom/train/adamw_cpu.h"
#include "pom/train/training_model.h"

namespace pom::train {
namespace {

struct Buffers {
  at::Tensor p, g, m, v, ema;
  std::int64_t decayed;

  Buffers from(std::int64_t begin) const {
    const auto rest = [&](const at::Tensor& flat) { return flat.narrow(0, begin, flat.numel() - begin); };
    return {rest(p), rest(g), rest(m), rest(v), rest(ema), std::max<std::int64_t>(0, decayed - begin)};
  }
};

template <class Real>
void step_cpu(const Buffers& b, const AdamWNumbers& numbers) {
  constexpr std::int64_t grain = 1 << 15;
  Real *p = b.p.data_ptr<Real>(), *m = b.m.data_ptr<Real>(), *v = b.v.data_ptr<Real>(),
       *ema = b.ema.data_ptr<Real>();
  const Real* g = b.g.const_data_ptr<Real>();
  at::parallel_for(0, b.p.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    adamw_range<Real>(numbers, begin, end, b.decayed, p, g, m, v, ema);
  });
}

bool step_cuda(const Buffers& b, const AdamWNumbers& n, const at::Tensor& scale,
               const ops::cuda::WeightTable& copies) {
  return ops::cuda::adamw({.values = b.p,
                           .gradients = b.g,
                           .moment1 = b.m,
                           .moment2 = b.v,
                           .average = b.ema,
                           .gradient_scale = scale,
                           .decayed = b.decayed,
                           .lr = n.lr,
                           .beta1 = n.beta1,
                           .beta2 = n.beta2,
                           .eps = n.eps,
                           .weight_decay = n.weight_decay,
                           .correction1 = n.correction1,
                           .correction2 = n.correction2,
                           .average_weight = n.ema_weight,
                           .copies = copies});
}

// Any device and dtype, in plain operations.
void step_composed(const Buffers& b, const AdamWNumbers& n, const at::Tensor& scale) {
  b.g.mul_(scale);
  b.p.narrow(0, 0, b.decayed).mul_(1 - n.lr * n.weight_decay);
  b.m.lerp_(b.g, 1 - n.beta1);
  b.v.mul_(n.beta2).addcmul_(b.g, b.g, 1 - n.beta2);
  const at::Tensor root = b.v.sqrt().mul_(1 / std::sqrt(n.correction2)).add_(n.eps);
  b.p.addcdiv_(b.m, root, -n.lr / n.correction1);
  if (n.ema_weight > 0) b.ema.lerp_(b.p, n.ema_weight);
}

// Whether the copies were written too.
bool step_adamw(const Buffers& b, AdamWNumbers numbers, const at::Tensor& scale,
                const ops::cuda::WeightTable& copies) {
  if (step_cuda(b, numbers, scale, copies)) return copies.parts.defined();
  if (!b.p.is_cpu()) return step_composed(b, numbers, scale), false;
  numbers.clip_scale = scale.item<double>();
  if (b.p.scalar_type() == at::kDouble)
    step_cpu<double>(b, numbers);
  else
    step_cpu<float>(b, numbers);
  return false;
}

}  // namespace

Optimizer::Optimizer(Parameters& parameters, const OptimizerConfig& config, const Shares& shares,
                     bool one_by_one, ops::WeightCopies* copies)
    : parameters_(parameters), config_(config), shares_(shares), copies_(copies) {
  check(config.kind == "adamw" || config.kind == "muon",
        "train: optimizer.kind: expected adamw or muon, got \"", config.kind, "\"");
  c10::NoGradGuard no_grad;
  moment1 = at::zeros({shares.own_count()}, parameters.values().options());
  moment2 = at::zeros_like(moment1);
  ema = shares.divided() && !parameters.divided() ? shares.own_part(parameters.values())
                                                  : parameters.values().clone();
  if (config.kind != "muon") return;
  find_own_matrices(one_by_one);
  const at::Tensor& values = parameters.values();
  again_.graphs = ops::cuda::graphs_on(values.device(), ops::cuda::GraphWeights::changing);
  if (again_.graphs)
    again_.numbers = at::zeros({3}, values.options()), again_.scale = at::zeros({}, values.options());
}

// A group of the parameters' as it is, or the runs of it that are this rank's at equal distances.
void Optimizer::find_own_matrices(bool one_by_one) {
  for (const MatrixGroup& group : parameters_.matrices()) {
    if (!shares_.divided() && !one_by_one) {
      matrices_.push_back({group, group});
      continue;
    }
    bool open = false;  // the last of matrices_ is of this group
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t begin = group.begin + i * group.stride;
      const auto range = std::ranges::find_if(shares_.own(), [&](const OwnRange& own) {
        return begin >= own.begin && begin < own.begin + own.count;
      });
      if (range == shares_.own().end()) continue;
      const std::int64_t at = range->at + begin - range->begin;
      if (open && !one_by_one) {
        MatrixGroup &flat = matrices_.back().flat, &own = matrices_.back().own;
        const std::int64_t away = begin - (flat.begin + (flat.count - 1) * flat.stride),
                           own_away = at - (own.begin + (own.count - 1) * own.stride);
        if (flat.count == 1 || (flat.stride == away && own.stride == own_away)) {
          flat.stride = away, own.stride = own_away;
          ++flat.count, ++own.count;
          continue;
        }
      }
      MatrixGroup one = group;
      one.begin = begin, one.count = 1;
      MatrixGroup same = one;
      same.begin = at;
      matrices_.push_back({one, same});
      open = true;
    }
  }
}

at::Tensor Optimizer::clip_scale(const at::Tensor& norm) const {
  if (config_.clip == 0) return at::ones({}, norm.options());
  return (config_.clip / (norm + 1e-6)).clamp_max(1);
}

void Optimizer::step_matrices(const MuonNumbers& numbers, const at::Tensor& scale,
                              const at::Tensor& gradients) {
  const bool own_gradients = gradients.numel() != parameters_.total();
  for (const OwnMatrices& each : matrices_)
    muon_step(numbers, scale, (parameters_.divided() ? each.own : each.flat).of(parameters_.values()),
              (own_gradients ? each.own : each.flat).of(gradients), each.own.of(moment1), each.own.of(ema));
}

void Optimizer::step_matrices_again(MuonNumbers numbers, const at::Tensor& scale,
                                    const at::Tensor& gradients) {
  if (matrices_.empty()) return;
  std::vector<const void*> places;
  for (const at::Tensor& t : {gradients, parameters_.values(), moment1, ema})
    places.push_back(t.const_data_ptr());
  if (places != again_.places) {
    again_.graphs->drop();
    again_.gradients = gradients, again_.places = places;
  }
  again_.numbers.copy_(sent_to(gradients.device(), changing_numbers(numbers)));
  again_.scale.copy_(scale);
  numbers.there = again_.numbers;
  again_.graphs->run(numbers.ema_weight > 0 ? 1 : 0,
                     [&] { step_matrices(numbers, again_.scale, again_.gradients); });
}

void Optimizer::step(const at::Tensor& gradients, const at::Tensor& norm, double lr, std::int64_t update,
                     bool average, double decay) {
  c10::NoGradGuard no_grad;
  const at::Tensor scale = clip_scale(norm);
  const AdamWNumbers numbers{.lr = lr,
                             .beta1 = config_.beta1,
                             .beta2 = config_.beta2,
                             .eps = config_.eps,
                             .weight_decay = config_.weight_decay,
                             .correction1 = 1 - std::pow(config_.beta1, static_cast<double>(update)),
                             .correction2 = 1 - std::pow(config_.beta2, static_cast<double>(update)),
                             .clip_scale = 1,
                             .ema_weight = average ? 1 - decay : 0};
  const bool muon = config_.kind == "muon";
  const MuonNumbers own{lr, config_.momentum, config_.weight_decay, numbers.ema_weight};
  if (again_.graphs)
    step_matrices_again(own, scale, gradients);
  else
    step_matrices(own, scale, gradients);
  bool written = false;
  for (const OwnRange& range : shares_.own()) {
    const std::int64_t passed =  // of the range, those that muon has changed
        muon ? std::clamp<std::int64_t>(parameters_.matrices_end() - range.begin, 0, range.count) : 0;
    if (passed == range.count) continue;
    const Buffers buffers{shares_.view(parameters_.values(), range),
                          shares_.view(gradients, range),
                          range.of_own(moment1),
                          range.of_own(moment2),
                          range.of_own(ema),
                          std::clamp<std::int64_t>(parameters_.decayed() - range.begin, 0, range.count)};
    const bool all = copies_ != nullptr && !shares_.divided();
    written = step_adamw(buffers.from(passed), numbers, scale,
                         all ? copies_->table(passed) : ops::cuda::WeightTable());
  }
  if (!parameters_.divided()) shares_.gather(parameters_.values());
  // Kernels and graphs, and what comes from other ranks, count as no change by themselves.
  parameters_.values().unsafeGetTensorImpl()->bump_version();
  if (written && !muon) copies_->written();
}

}  // namespace pom::train
