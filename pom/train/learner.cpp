#include "pom/train/learner.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/train/device.h"
#include "pom/train/encoders.h"
#include "pom/train/schedule.h"

namespace pom::train {
namespace {

constexpr std::int64_t validation_batch = 64;

bool finite(const at::Tensor& x) {
  return at::isfinite(x).all().item<bool>();
}

std::vector<float> to_host(const std::vector<at::Tensor>& parts) {
  const at::Tensor host = at::cat(parts).to(at::kCPU, at::kFloat).contiguous();
  const float* values = host.const_data_ptr<float>();
  return {values, values + host.numel()};
}

// All that the host wants to know of a step, in one transfer.
StepResult result_of(const at::Tensor& each, const std::vector<Draw>& draws, const at::Tensor& norm) {
  std::vector<at::Tensor> times;
  for (const Draw& draw : draws) times.push_back(draw.times);
  const at::Tensor all_times = at::cat(times);
  const at::Tensor host = at::cat({each.mean().reshape(1), norm.reshape(1).to(each.scalar_type()), each,
                                   all_times.to(each.scalar_type())})
                              .to(at::kCPU, at::kDouble);
  const double* values = host.const_data_ptr<double>();
  const std::int64_t B = each.numel();
  StepResult result;
  result.loss = values[0];
  result.norm = values[1];
  result.finite = std::isfinite(result.loss) && std::isfinite(result.norm);
  result.losses.assign(values + 2, values + 2 + B);
  result.times.assign(values + 2 + B, values + 2 + 2 * B);
  return result;
}

// Those that can be read.
data::Batch examples(const data::Dataset& dataset, std::int64_t first, std::int64_t count,
                     std::vector<std::string>& broken) {
  std::vector<at::Tensor> pictures;
  std::vector<std::int64_t> labels;
  std::vector<std::string> captions;
  for (std::int64_t i = first; i < first + count; ++i) {
    try {
      const data::Example example = dataset.get(i, 0);
      pictures.push_back(example.picture);
      labels.push_back(example.label);
      captions.push_back(example.caption);
    } catch (const Error& error) {
      broken.push_back(dataset.name_of(i) + ": " + error.what());
    }
  }
  if (pictures.empty()) return {};
  return {at::stack(pictures), at::tensor(labels, at::kLong), first, std::move(captions)};
}

// Of `count` examples from `first` on.
Annotations annotations_of(const data::Batch& batch, std::int64_t first, std::int64_t count) {
  const std::span<const std::string> captions = batch.captions;
  const auto rows = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
  return {batch.labels.narrow(0, first, count),
          captions.empty()
              ? captions
              : captions.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
          rows(batch.text), rows(batch.text_mask)};
}

// Each clip cut into so many, which follow each other: (B, C, T, H, W) -> (B·pieces, C, T / pieces, H, W).
at::Tensor in_pieces(const at::Tensor& clips, std::int64_t pieces) {
  if (pieces == 1) return clips;
  return clips.unflatten(2, {pieces, clips.size(2) / pieces}).transpose(1, 2).flatten(0, 1);
}

std::vector<std::string> each_so_often(const std::vector<std::string>& texts, std::int64_t times) {
  std::vector<std::string> all;
  for (const std::string& text : texts) all.insert(all.end(), static_cast<std::size_t>(times), text);
  return all;
}

// None for data that is latents already.
std::unique_ptr<codecs::Codec> codec_of(const Recipe& recipe, const at::Device& device) {
  if (recipe.data.encoded()) return nullptr;
  std::unique_ptr<codecs::Codec> codec = open_codec(recipe);
  const at::ScalarType dtype = master_dtype(recipe.run.precision);
  codec->set_options({.device = device, .dtype = recipe.run.precision == "bf16" ? at::kBFloat16 : dtype});
  return codec;
}

}  // namespace

void LossByTime::add(const std::vector<float>& losses, const std::vector<float>& times) {
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const float place = std::clamp(times[i] * float{parts}, 0.0f, float{parts} - 1);
    sums_[static_cast<std::size_t>(place)] += losses[i];
    counts_[static_cast<std::size_t>(place)] += 1;
  }
}

std::vector<double> LossByTime::means() const {
  std::vector<double> means;
  for (std::size_t i = 0; i < parts; ++i) means.push_back(sums_[i] / counts_[i]);
  return means;
}

Learner::Learner(const Recipe& recipe, const at::Device& device, const std::string& words)
    : recipe_(recipe),
      device_(device),
      codec_(codec_of(recipe, device)),
      model_(make_training_model(recipe, device, words)),
      parameters_(model_->parameters(), model_->forward_order()),
      optimizer_(parameters_, recipe.optimizer),
      objective_(recipe) {
  graphs_ = ops::cuda::graphs_on(device, ops::cuda::GraphWeights::changing);
}

at::Tensor Learner::to_latents(const at::Tensor& pictures) const {
  const at::Tensor x =
      data::to_model_range(pictures.to(device_, pictures.scalar_type(), /*non_blocking=*/true));
  const at::Tensor latents = recipe_.data.in_shards() ? x  // scaled as their files say
                             : !codec_                ? (x - recipe_.codec.shift) * recipe_.codec.scale
                             : x.dim() == 5           ? codec_->encode_clips(x)
                                                      : codec_->encode(x);
  return latents.to(master_dtype(recipe_.run.precision));
}

// How many clips each one of a step becomes.
std::int64_t Learner::pieces_of_clips(const DrawKey& key) const {
  const NoiseKey chance{key.seed, noise_for::clip_cut, key.draw};
  if (recipe_.batch.cut == 0 || uniform_at(chance, 0) >= recipe_.batch.cut) return 1;
  return recipe_.data.frames / recipe_.batch.cut_frames;
}

Prepared Learner::prepare(const data::Batch& batch, std::int64_t seed, std::int64_t draw) const {
  Prepared prepared{.batch = batch, .x0 = {}, .draws = {}, .told = {}};
  const DrawKey key{static_cast<std::uint64_t>(seed), static_cast<std::uint32_t>(draw)};
  const std::int64_t pieces = pieces_of_clips(key);
  const auto each = [&](const at::Tensor& t) { return t.defined() ? t.repeat_interleave(pieces, 0) : t; };
  const data::Batch told{.pictures = {},
                         .labels = batch.labels.repeat_interleave(pieces),
                         .first = 0,
                         .captions = each_so_often(batch.captions, pieces),
                         .text = each(batch.text),
                         .text_mask = each(batch.text_mask)};
  const std::int64_t B = batch.pictures.size(0), part = B / recipe_.batch.accumulate;
  for (std::int64_t first = 0; first < B; first += part) {
    prepared.x0.push_back(in_pieces(to_latents(batch.pictures.narrow(0, first, part)), pieces));
    prepared.draws.push_back(objective_.draw(key, prepared.x0.back(), first * pieces));
    prepared.told.push_back(
        model_->tell(annotations_of(told, first * pieces, part * pieces), key, first * pieces));
  }
  return prepared;
}

Learner::Parts Learner::in_parts(const Prepared& prepared,
                                 const std::function<void(const at::Tensor&)>& use) {
  Parts parts;
  for (std::size_t i = 0; i < prepared.x0.size(); ++i) {
    const Precision precision(device_, recipe_.run.precision);
    const at::Tensor losses = objective_.losses(*model_, prepared.x0[i], prepared.draws[i], prepared.told[i]);
    use(losses);
    parts.losses.push_back(losses.detach());
    parts.times.push_back(prepared.draws[i].times);
  }
  return parts;
}

Learner::Computed Learner::gradients(const Prepared& prepared) {
  std::int64_t B = 0;
  for (const at::Tensor& x0 : prepared.x0) B += x0.size(0);
  parameters_.gradients().zero_();
  const Parts parts = in_parts(
      prepared, [&](const at::Tensor& losses) { (losses.sum() / static_cast<double>(B)).backward(); });
  return {at::cat(parts.losses), optimizer_.gradient_norm()};
}

// The number of the one with buffers like those of a batch, which is made where there is none.
int Learner::workplace_for(const Prepared& prepared) {
  const auto alike = [&](const Workplace& w) {
    return std::ranges::equal(w.prepared.x0, prepared.x0, [](const at::Tensor& a, const at::Tensor& b) {
      return a.sizes() == b.sizes();
    });
  };
  const auto found = std::ranges::find_if(workplaces_, alike);
  if (found != workplaces_.end()) return static_cast<int>(found - workplaces_.begin());
  constexpr std::size_t most = 4;  // captured steps keep their memory, also while others run
  if (workplaces_.size() == most) {
    graphs_->drop();
    workplaces_.clear();
  }
  Prepared buffers{};
  std::int64_t B = 0;
  for (std::size_t i = 0; i < prepared.x0.size(); ++i) {
    const Draw& draw = prepared.draws[i];
    buffers.x0.push_back(at::empty_like(prepared.x0[i]));
    buffers.draws.push_back({at::empty_like(draw.noise), at::empty_like(draw.times)});
    buffers.told.emplace_back();
    for (const at::Tensor& told : prepared.told[i]) buffers.told.back().push_back(at::empty_like(told));
    B += prepared.x0[i].size(0);
  }
  const at::TensorOptions options = prepared.x0[0].options();
  workplaces_.push_back({std::move(buffers), {at::empty({B}, options), at::empty({}, options)}});
  return static_cast<int>(workplaces_.size()) - 1;
}

Learner::Computed Learner::gradients_again(const Prepared& prepared) {
  const int key = workplace_for(prepared);
  Workplace& w = workplaces_[static_cast<std::size_t>(key)];
  for (std::size_t i = 0; i < prepared.x0.size(); ++i) {
    const Draw &from = prepared.draws[i], &to = w.prepared.draws[i];
    w.prepared.x0[i].copy_(prepared.x0[i]);
    to.noise.copy_(from.noise), to.times.copy_(from.times);
    for (std::size_t j = 0; j < prepared.told[i].size(); ++j)
      w.prepared.told[i][j].copy_(prepared.told[i][j]);
  }
  graphs_->run(key, [&] {
    const Computed now = gradients(w.prepared);
    w.computed.losses.copy_(now.losses);
    w.computed.norm.copy_(now.norm);
  });
  return w.computed;
}

StepResult Learner::step(const Prepared& prepared, State& state, const std::function<void()>& meanwhile) {
  const std::int64_t B = prepared.batch.pictures.size(0);
  const auto [losses, norm] = graphs_ ? gradients_again(prepared) : gradients(prepared);
  if (meanwhile) meanwhile();
  StepResult result = result_of(losses, prepared.draws, norm);
  const Cooldown asked{state.cooldown_from, state.cooldown_steps};
  result.rate = learning_rate(recipe_.optimizer, recipe_.run.steps, state.step, asked);
  if (result.finite) {
    const std::int64_t update = ++state.updates;
    const bool average = update % recipe_.ema.every == 0;
    optimizer_.step(norm, result.rate, update, average, ema_decay(recipe_.ema, update / recipe_.ema.every));
    state.bad_in_row = 0;
  } else {
    result.culprit = find_culprit(prepared);
    ++state.skipped, ++state.bad_in_row;
  }
  ++state.step, ++state.draws;
  state.place = prepared.batch.first + B;
  return result;
}

// Goes through the batch again, looking at each layer's result, then at the gradients that are still there,
// the last layer's first: that is the way they came.
std::string Learner::find_culprit(const Prepared& prepared) {
  if (prepared.batch.pictures.is_floating_point() && !finite(prepared.batch.pictures)) return "the data";
  std::string culprit;
  model_->set_observer([&](std::string_view layer, const at::Tensor& out) {
    if (culprit.empty() && !finite(out)) culprit = layer;
  });
  {
    c10::NoGradGuard no_grad;
    in_parts(prepared, [](const at::Tensor&) {});
  }
  model_->set_observer({});
  if (!culprit.empty()) return "the output of " + culprit;
  const std::string name = parameters_.last_not_finite(parameters_.gradients());
  return name.empty() ? "the loss" : "the gradient of " + name;
}

ValidationResult Learner::validate(const data::Dataset& dataset, std::uint64_t seed) {
  c10::NoGradGuard no_grad;
  const at::Tensor trained = parameters_.values().clone();
  parameters_.values().copy_(optimizer_.ema);
  Parts parts;
  ValidationResult result;
  const std::int64_t total = dataset.size();
  for (std::int64_t first = 0; first < total; first += validation_batch) {
    const data::Batch batch =
        examples(dataset, first, std::min(validation_batch, total - first), result.broken);
    if (!batch.pictures.defined()) continue;
    const at::Tensor x0 = to_latents(batch.pictures);
    const Draw draw = objective_.draw_evenly({seed, validation_draw}, x0, first, total);
    const Condition told = model_->tell_all({batch.labels, batch.captions});
    const Precision precision(device_, recipe_.run.precision);
    parts.losses.push_back(objective_.losses(*model_, x0, draw, told));
    parts.times.push_back(draw.times);
  }
  parameters_.values().copy_(trained);
  check(!parts.losses.empty(), "train: validation: expected examples that can be read, got none of ", total);
  result.loss = at::cat(parts.losses).mean().item<double>();
  LossByTime by_time;
  by_time.add(to_host(parts.losses), to_host(parts.times));
  result.by_time = by_time.means();
  return result;
}

bool Learner::is_finite() const {
  return finite(parameters_.values()) && finite(optimizer_.ema);
}

void Learner::start_from(const models::Weights& weights) {
  parameters_.assign(parameters_.values(), weights);
  parameters_.assign(optimizer_.ema, weights);
}

Checkpoint Learner::snapshot(const State& state) const {
  const Parameters& p = parameters_;
  State saved = state;
  saved.words = words();
  return {.state = saved,
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
