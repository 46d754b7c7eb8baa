#include "pom/train/learner.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "pom/train/device.h"
#include "pom/train/schedule.h"

namespace pom::train {
namespace {

constexpr std::int64_t parts_of_time = 10;
constexpr std::int64_t validation_batch = 64;

models::DiPoM make_network(const Recipe& recipe, const at::Device& device) {
  models::DiPoM network(recipe.network, static_cast<std::uint64_t>(recipe.run.seed));
  network->to(device, master_dtype(recipe.run.precision));
  network->set_checkpointing(recipe.batch.checkpointing);
  return network;
}

bool finite(const at::Tensor& x) {
  return at::isfinite(x).all().item<bool>();
}

std::vector<float> to_host(const std::vector<at::Tensor>& parts) {
  const at::Tensor host = at::cat(parts).to(at::kCPU, at::kFloat).contiguous();
  const float* values = host.const_data_ptr<float>();
  return {values, values + host.numel()};
}

std::pair<at::Tensor, at::Tensor> examples(const data::Dataset& dataset, std::int64_t first,
                                           std::int64_t count) {
  std::vector<at::Tensor> pictures;
  at::Tensor labels = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    const data::Example example = dataset.get(first + i, 0);
    pictures.push_back(example.picture);
    labels.data_ptr<std::int64_t>()[i] = example.label;
  }
  return {at::stack(pictures), labels};
}

std::unique_ptr<codecs::Codec> codec_of(const Recipe& recipe) {
  if (recipe.data.kind == "latents") return nullptr;
  return codecs::make_codec(recipe.codec, recipe.network.channels);
}

}  // namespace

std::vector<double> loss_by_time(const std::vector<float>& losses, const std::vector<float>& times) {
  std::vector<double> sums(parts_of_time, 0), counts(parts_of_time, 0);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto part =
        static_cast<std::size_t>(std::clamp(times[i] * parts_of_time, 0.0f, parts_of_time - 1.0f));
    sums[part] += losses[i], counts[part] += 1;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] /= counts[i];
  return sums;
}

Learner::Learner(const Recipe& recipe, const at::Device& device)
    : recipe_(recipe),
      device_(device),
      codec_(codec_of(recipe)),
      network_(make_network(recipe, device)),
      parameters_(network_),
      optimizer_(parameters_, recipe.optimizer),
      objective_(recipe) {}

at::Tensor Learner::to_latents(const at::Tensor& pictures) const {
  const at::Tensor x = data::to_model_range(pictures.to(device_));
  const at::Tensor latents = codec_ ? codec_->encode(x) : (x - recipe_.codec.shift) * recipe_.codec.scale;
  return latents.to(master_dtype(recipe_.run.precision));
}

Learner::Parts Learner::in_parts(const data::Batch& batch, const State& state,
                                 const std::function<void(const at::Tensor&)>& use) {
  Parts parts;
  const std::int64_t B = batch.pictures.size(0), part = B / recipe_.batch.accumulate;
  const DrawKey key{static_cast<std::uint64_t>(state.seed), static_cast<std::uint32_t>(state.draws)};
  for (std::int64_t first = 0; first < B; first += part) {
    const at::Tensor x0 = to_latents(batch.pictures.narrow(0, first, part));
    const Draw draw = objective_.draw(key, x0, batch.labels.narrow(0, first, part), first);
    const Precision precision(device_, recipe_.run.precision);
    const at::Tensor each = objective_.losses(network_, x0, draw);
    use(each);
    parts.losses.push_back(each.detach());
    parts.times.push_back(draw.times);
  }
  return parts;
}

StepResult Learner::step(const data::Batch& batch, State& state) {
  StepResult result;
  const double B = static_cast<double>(batch.pictures.size(0));
  parameters_.gradients().zero_();
  const Parts parts =
      in_parts(batch, state, [&](const at::Tensor& losses) { (losses.sum() / B).backward(); });
  const at::Tensor norm = optimizer_.gradient_norm();
  result.losses = to_host(parts.losses);
  result.times = to_host(parts.times);
  result.loss = at::cat(parts.losses).mean().item<double>();
  result.norm = norm.item<double>();
  result.finite = std::isfinite(result.loss) && std::isfinite(result.norm);
  const Cooldown asked{state.cooldown_from, state.cooldown_steps};
  result.rate = learning_rate(recipe_.optimizer, recipe_.run.steps, state.step, asked);
  if (result.finite) {
    const std::int64_t update = ++state.updates;
    const bool average = update % recipe_.ema.every == 0;
    optimizer_.step(norm, result.rate, update, average, ema_decay(recipe_.ema, update / recipe_.ema.every));
    state.bad_in_row = 0;
  } else {
    result.culprit = find_culprit(batch, state);
    ++state.skipped, ++state.bad_in_row;
  }
  ++state.step, ++state.draws;
  state.place = batch.first + batch.pictures.size(0);
  return result;
}

// Goes through the batch again, looking at each layer's result, then at the gradients that are still there,
// the last layer's first: that is the way they came.
std::string Learner::find_culprit(const data::Batch& batch, const State& state) {
  if (batch.pictures.is_floating_point() && !finite(batch.pictures)) return "the data";
  std::string culprit;
  network_->set_observer([&](std::string_view layer, const at::Tensor& out) {
    if (culprit.empty() && !finite(out)) culprit = layer;
  });
  {
    c10::NoGradGuard no_grad;
    in_parts(batch, state, [](const at::Tensor&) {});
  }
  network_->set_observer({});
  if (!culprit.empty()) return "the output of " + culprit;
  const std::string name = parameters_.last_not_finite(parameters_.gradients());
  return name.empty() ? "the loss" : "the gradient of " + name;
}

ValidationResult Learner::validate(const data::Dataset& dataset, std::uint64_t seed) {
  c10::NoGradGuard no_grad;
  const at::Tensor trained = parameters_.values().clone();
  parameters_.values().copy_(optimizer_.ema);
  Parts parts;
  const std::int64_t total = dataset.size();
  for (std::int64_t first = 0; first < total; first += validation_batch) {
    const auto [pictures, labels] = examples(dataset, first, std::min(validation_batch, total - first));
    const at::Tensor x0 = to_latents(pictures);
    const Draw draw = objective_.draw_evenly({seed, validation_draw}, x0, labels, first, total);
    const Precision precision(device_, recipe_.run.precision);
    parts.losses.push_back(objective_.losses(network_, x0, draw));
    parts.times.push_back(draw.times);
  }
  parameters_.values().copy_(trained);
  return {at::cat(parts.losses).mean().item<double>(),
          loss_by_time(to_host(parts.losses), to_host(parts.times))};
}

models::Weights Learner::average() const {
  return parameters_.named(optimizer_.ema);
}

void Learner::start_from(const models::Weights& weights) {
  parameters_.assign(parameters_.values(), weights);
  parameters_.assign(optimizer_.ema, weights);
}

Checkpoint Learner::snapshot(const State& state) const {
  const Parameters& p = parameters_;
  return {.state = state,
          .recipe = {},
          .weights = p.named(p.values()),
          .ema = p.named(optimizer_.ema),
          .moment1 = p.named(optimizer_.moment1),
          .moment2 = p.named(optimizer_.moment2)};
}

void Learner::restore(const Checkpoint& checkpoint) {
  parameters_.assign(parameters_.values(), checkpoint.weights);
  parameters_.assign(optimizer_.ema, checkpoint.ema);
  parameters_.assign(optimizer_.moment1, checkpoint.moment1);
  parameters_.assign(optimizer_.moment2, checkpoint.moment2);
}

}  // namespace pom::train
