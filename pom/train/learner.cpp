#include "pom/train/learner.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/train/device.h"
#include "pom/train/encoders.h"
#include "pom/train/refusal.h"
#include "pom/train/schedule.h"

namespace pom::train {
namespace {

constexpr std::int64_t validation_batch = 64;

bool finite(const at::Tensor& x) {
  return at::isfinite(x).all().item<bool>();
}

std::vector<float> to_host(const at::Tensor& t) {
  const at::Tensor host = t.to(at::kCPU, at::kFloat).contiguous();
  const float* values = host.const_data_ptr<float>();
  return {values, values + host.numel()};
}

// All that the host wants to know of a step, in one transfer.
StepResult result_of(const at::Tensor& losses, const at::Tensor& times, const at::Tensor& norm) {
  const at::Tensor host = at::cat({losses.mean().reshape(1), norm.reshape(1).to(losses.scalar_type()), losses,
                                   times.to(losses.scalar_type())})
                              .to(at::kCPU, at::kDouble);
  const double* values = host.const_data_ptr<double>();
  const std::int64_t B = losses.numel();
  StepResult result;
  result.loss = values[0];
  result.norm = values[1];
  result.finite = std::isfinite(result.loss) && std::isfinite(result.norm);
  result.losses.assign(values + 2, values + 2 + B);
  result.times.assign(values + 2 + B, values + 2 + 2 * B);
  return result;
}

// In order, whatever the number of threads.
at::Tensor ordered_sum(const at::Tensor& sums) {
  if (!sums.is_cpu()) return sums.sum();
  double total = 0;
  const double* each = sums.const_data_ptr<double>();
  for (std::int64_t i = 0; i < sums.numel(); ++i) total += each[i];
  return at::scalar_tensor(total, sums.options());
}

// The ranks that share the tokens of this one's examples: `count` neighbours.
parallel::Ranks sequence_of(const parallel::Ranks& ranks, std::int64_t count) {
  if (count == 1) return {};
  refuse_unless(ranks.size() % count == 0,
                "train: parallel.sequence: expected a divisor of the number of ranks (", ranks.size(),
                "), got ", count);
  return ranks.split([count](int rank) { return rank / static_cast<int>(count); });
}

// Work on a GPU can be captured where what ranks exchange is work of the GPU too.
bool can_be_captured(const parallel::Ranks& ranks, const at::Device& device) {
  return ranks.alone() || ranks.backend(device.type()) == "nccl";
}

bool divides_parameters(const Recipe& recipe, const parallel::Ranks& ranks) {
  return recipe.parallel.shard == "parameters" && !ranks.alone();
}

// Those that can be read.
data::Batch examples(const data::Dataset& dataset, std::int64_t first, std::int64_t count,
                     std::vector<std::int64_t>& read, std::vector<std::string>& broken) {
  std::vector<at::Tensor> pictures;
  std::vector<std::int64_t> labels;
  std::vector<std::string> captions;
  for (std::int64_t i = first; i < first + count; ++i) {
    try {
      const data::Example example = dataset.get(i, 0);
      pictures.push_back(example.picture);
      labels.push_back(example.label);
      captions.push_back(example.caption);
      captions.insert(captions.end(), example.later.begin(), example.later.end());
      read.push_back(i);
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
  const auto each = captions.size() / static_cast<std::size_t>(batch.labels.size(0));  // of an example
  const auto rows = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
  return {batch.labels.narrow(0, first, count),
          captions.subspan(static_cast<std::size_t>(first) * each, static_cast<std::size_t>(count) * each),
          rows(batch.text), rows(batch.text_mask)};
}

// Each clip cut into so many, which follow each other: (B, C, T, H, W) -> (B·pieces, C, T / pieces, H, W).
at::Tensor in_pieces(const at::Tensor& clips, std::int64_t pieces) {
  if (pieces == 1) return clips;
  return clips.unflatten(2, {pieces, clips.size(2) / pieces}).transpose(1, 2).flatten(0, 1);
}

// The captions of these, from those of `clips` clips: a clip's for each of its pieces, or, where its parts
// have captions, those of the parts that a piece has.
std::vector<std::string> captions_of_pieces(const std::vector<std::string>& captions, std::int64_t clips,
                                            std::int64_t pieces) {
  if (std::ssize(captions) != clips) return captions;
  std::vector<std::string> all;
  for (const std::string& text : captions) all.insert(all.end(), static_cast<std::size_t>(pieces), text);
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

Learner::Learner(const Recipe& recipe, const at::Device& device, const std::string& words,
                 const parallel::Ranks& ranks)
    : recipe_(recipe),
      device_(device),
      ranks_(ranks),
      sequence_(sequence_of(ranks, recipe.parallel.sequence)),
      division_(divide(recipe.batch, recipe.parallel, device.is_cpu() || recipe.parallel.exact,
                       ranks.rank() / sequence_.size(), ranks.size() / sequence_.size())),
      codec_(codec_of(recipe, device)),
      model_(
          make_training_model(recipe, device, divides_parameters(recipe, ranks) ? at::kCPU : device, words)),
      parameters_(model_->parameters(), model_->forward_order(), ranks.size(),
                  divides_parameters(recipe, ranks)),
      shares_(parameters_, ranks, recipe.parallel.shard != "none", recipe.optimizer.kind == "muon"),
      layers_(layer_store()),
      copies_(weight_copies()),
      optimizer_(parameters_, recipe.optimizer, shares_, !device.is_cpu() && division_.exact, copies_.get()),
      sum_(std::make_unique<GradientSum>(parameters_, shares_, ranks,
                                         GradientSumOptions{.exact = division_.exact,
                                                            .narrow = recipe.parallel.gradients == "bf16",
                                                            .own_alone = recipe.parallel.divides_gradients(),
                                                            .overlap = recipe.parallel.overlap})),
      objective_(recipe) {
  if (can_be_captured(ranks, device))
    graphs_ = ops::cuda::graphs_on(device, ops::cuda::GraphWeights::changing);
}

std::unique_ptr<LayerStore> Learner::layer_store() {
  if (!divides_parameters(recipe_, ranks_)) return nullptr;
  auto store = std::make_unique<LayerStore>(parameters_, shares_, ranks_, device_);
  model_->set_layer_visitor(store.get());
  return store;
}

// Not of divided parameters, whose memory has the weights of one layer after another.
std::unique_ptr<ops::WeightCopies> Learner::weight_copies() {
  if (device_.is_cpu() || recipe_.run.precision != "bf16" || layers_) return nullptr;
  return std::make_unique<ops::WeightCopies>(parameters_.values(), parameters_.tensors());
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
                         .captions = captions_of_pieces(batch.captions, batch.labels.size(0), pieces),
                         .text = each(batch.text),
                         .text_mask = each(batch.text_mask)};
  const std::int64_t part = division_.size;
  for (std::size_t i = 0; i < division_.mine.size(); ++i) {
    // What is drawn for an example follows from its place in the whole batch.
    const std::int64_t here = static_cast<std::int64_t>(i) * part, place = division_.mine[i] * part * pieces;
    prepared.x0.push_back(in_pieces(to_latents(batch.pictures.narrow(0, here, part)), pieces));
    prepared.draws.push_back(objective_.draw(key, prepared.x0.back(), place));
    prepared.told.push_back(model_->tell(annotations_of(told, here * pieces, part * pieces), key, place));
  }
  return prepared;
}

Learner::Parts Learner::in_parts(const Prepared& prepared,
                                 const std::function<void(const at::Tensor&)>& use) {
  Parts parts;
  for (std::size_t i = 0; i < prepared.x0.size(); ++i) {
    const Precision precision(device_, recipe_.run.precision);
    const at::Tensor losses = losses_of(prepared.x0[i], prepared.draws[i], prepared.told[i]);
    use(losses);
    parts.losses.push_back(losses.detach());
    parts.times.push_back(prepared.draws[i].times);
  }
  return parts;
}

// Of ranks that share examples, each has a part of the loss (add), or all of them the same.
at::Tensor Learner::of_batch(const at::Tensor& share, bool add) const {
  const at::Tensor each = ranks_.gather(share).unflatten(0, {-1, sequence_.size()});
  const at::Tensor all = add ? each.sum(1) : each.select(1, 0);  // (data ranks, parts of a rank · examples)
  if (!recipe_.parallel.divides_gradients()) return all.flatten();
  return all.unflatten(1, {std::ssize(division_.mine), -1}).transpose(0, 1).flatten();  // interleaved
}

// Of each example; where ranks share its tokens, this rank's part of it.
at::Tensor Learner::losses_of(const at::Tensor& x0, const Draw& draw, const Condition& told) {
  if (sequence_.alone()) return objective_.losses(*model_, x0, draw, told);
  const models::SequenceSplit split{.ranks = sequence_, .whole = x0.size(2), .exact = division_.exact};
  model_->set_sequence(split);
  const at::Tensor part = models::sequence_part(x0, recipe_.network, split);
  const Draw own{models::sequence_part(draw.noise, recipe_.network, split), draw.times};
  const double share = static_cast<double>(part.numel()) / static_cast<double>(x0.numel());
  return objective_.losses(*model_, part, own, told) * share;
}

// Its bits follow from the gradient's alone, where that matters.
at::Tensor Learner::gradient_norm() {
  const at::Tensor& gradient = sum_->result();
  if (!device_.is_cpu() && !division_.exact && !shares_.divided()) return at::linalg_vector_norm(gradient);
  at::Tensor squares = squares_of_pieces(gradient, shares_, parameters_.total());
  if (shares_.divided()) ranks_.sum(squares);  // each is one rank's, and zero elsewhere
  const Slice& last = parameters_.slices().back();
  const std::int64_t pieces = (last.begin + last.count + flat_piece - 1) / flat_piece;
  return ordered_sum(squares.narrow(0, 0, pieces)).sqrt().to(parameters_.values().scalar_type());
}

Learner::Computed Learner::gradients(const Prepared& prepared) {
  const auto parts = std::ssize(prepared.x0);
  const auto B = static_cast<double>(division_.parts * prepared.x0[0].size(0));
  if (layers_) layers_->forget();  // so that a graph of this holds whatever was here before
  sum_->begin(parts);
  std::int64_t part = 0;
  const Parts all = in_parts(prepared, [&](const at::Tensor& losses) {
    sum_->before(part);
    (losses.sum() / B).backward();
    sum_->after(part++);
  });
  sum_->finish();
  const at::Tensor losses = at::cat(all.losses), times = at::cat(all.times).to(losses.scalar_type());
  if (ranks_.alone()) return {losses, times, gradient_norm()};
  return {of_batch(losses, /*add=*/true), of_batch(times, /*add=*/false), gradient_norm()};
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
  for (std::size_t i = 0; i < prepared.x0.size(); ++i) {
    const Draw& draw = prepared.draws[i];
    buffers.x0.push_back(at::empty_like(prepared.x0[i]));
    buffers.draws.push_back({at::empty_like(draw.noise), at::empty_like(draw.times)});
    buffers.told.emplace_back();
    for (const at::Tensor& told : prepared.told[i]) buffers.told.back().push_back(at::empty_like(told));
  }
  const std::int64_t B = division_.parts * prepared.x0[0].size(0);
  const at::TensorOptions options = prepared.x0[0].options();
  workplaces_.push_back(
      {std::move(buffers), {at::empty({B}, options), at::empty({B}, options), at::empty({}, options)}});
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
    w.computed.times.copy_(now.times);
    w.computed.norm.copy_(now.norm);
  });
  return w.computed;
}

StepResult Learner::step(const Prepared& prepared, State& state, const std::function<void()>& meanwhile) {
  const auto [losses, times, norm] = graphs_ ? gradients_again(prepared) : gradients(prepared);
  if (meanwhile) meanwhile();
  StepResult result = result_of(losses, times, norm);
  const Cooldown asked{state.cooldown_from, state.cooldown_steps};
  result.rate = learning_rate(recipe_.optimizer, recipe_.run.steps, state.step, asked);
  if (result.finite) {
    const std::int64_t update = ++state.updates;
    const bool average = update % recipe_.ema.every == 0;
    optimizer_.step(sum_->result(), norm, result.rate, update, average,
                    ema_decay(recipe_.ema, update / recipe_.ema.every));
    weights_changed();
    state.bad_in_row = 0;
  } else {
    result.culprit = agreed_culprit(find_culprit(prepared));
    ++state.skipped, ++state.bad_in_row;
  }
  ++state.step, ++state.draws;
  state.place = prepared.batch.first + recipe_.batch.size;
  return result;
}

// Goes through the batch again, looking at each layer's result, then at the gradients that are still there,
// the last layer's first: that is the way they came.
std::string Learner::find_culprit(const Prepared& prepared) {
  std::string culprit;
  model_->set_observer([&](std::string_view layer, const at::Tensor& out) {
    if (culprit.empty() && !finite(out)) culprit = layer;
  });
  {
    c10::NoGradGuard no_grad;
    in_parts(prepared, [](const at::Tensor&) {});
  }
  model_->set_observer({});
  if (prepared.batch.pictures.is_floating_point() && !finite(prepared.batch.pictures)) return "the data";
  if (!culprit.empty()) return "the output of " + culprit;
  if (parameters_.gradients().numel() == 0) return {};
  const std::string name = parameters_.last_not_finite(parameters_.gradients());
  return name.empty() ? "" : "the gradient of " + name;
}

// The first rank that found something says what. Gradients are sums by now, the same on all ranks, and
// nobody's.
std::string Learner::agreed_culprit(const std::string& found) const {
  const std::vector<std::string> all = ranks_.gather_text(found);
  for (const bool summed : {false, true})
    for (std::size_t r = 0; r < all.size(); ++r)
      if (!all[r].empty() && all[r].starts_with("the gradient") == summed)
        return ranks_.alone() || summed ? all[r] : detail::concat(all[r], " on rank ", r);
  return "the loss";
}

void Learner::weights_changed() {
  if (layers_) layers_->renew();
}

ValidationResult Learner::validate(const data::Dataset& dataset, std::uint64_t seed) {
  c10::NoGradGuard no_grad;
  const at::Tensor trained = parameters_.values().clone();
  parameters_.values().copy_(parameters_.divided() ? optimizer_.ema : shares_.whole(optimizer_.ema));
  weights_changed();
  ValidationResult result;
  const std::int64_t total = dataset.size();
  // Of each example: its loss, its time, and whether it could be read. Batches are dealt out to the ranks.
  at::Tensor all = at::zeros({3, total}, parameters_.values().options());
  const int sharing = sequence_.size(), group = ranks_.rank() / sharing, groups = ranks_.size() / sharing;
  for (std::int64_t round = 0; round < total; round += groups * validation_batch) {
    const std::int64_t first = round + group * validation_batch;
    const std::int64_t count = std::clamp<std::int64_t>(total - first, 0, validation_batch);
    std::vector<std::int64_t> read;
    const data::Batch batch = examples(dataset, first, count, read, result.broken);
    if (!batch.pictures.defined()) {
      if (layers_) layers_->pass();
      continue;
    }
    const at::Tensor x0 = to_latents(batch.pictures);
    const Draw draw = objective_.draw_evenly({seed, validation_draw}, x0, first, total);
    const Condition told = model_->tell_all({batch.labels, batch.captions});
    const Precision precision(device_, recipe_.run.precision);
    const at::Tensor places = at::tensor(read, at::kLong).to(device_);
    all[0].index_copy_(0, places, losses_of(x0, draw, told).to(all.scalar_type()));
    if (!sequence_.first()) continue;  // one of those who share them says the rest
    all[1].index_copy_(0, places, draw.times.to(all.scalar_type()));
    all[2].index_fill_(0, places, 1);
  }
  parameters_.values().copy_(trained);
  weights_changed();
  ranks_.sum(all);  // each is one rank's, and zero elsewhere
  const at::Tensor host = all.to(at::kCPU);
  const at::Tensor there = host[2] > 0, losses = host[0].masked_select(there);
  check(losses.numel() > 0, "train: validation: expected examples that can be read, got none of ", total);
  result.loss = losses.mean().item<double>();
  LossByTime by_time;
  by_time.add(to_host(losses), to_host(host[1].masked_select(there)));
  result.by_time = by_time.means();
  return result;
}

bool Learner::is_finite() const {
  const bool here = finite(parameters_.values()) && finite(optimizer_.ema);
  return ranks_.largest({here ? 0 : 1})[0] == 0;
}

// Memory like the parameters or of own parts, with what the first rank has.
void Learner::fill_from_first(at::Tensor& t, const models::Weights& weights) const {
  at::Tensor host;
  if (ranks_.first()) {
    host = at::zeros({parameters_.total()}, t.options().device(at::kCPU));
    parameters_.assign(host, weights);
  }
  for (const Bucket& bucket : shares_.buckets()) {
    at::Tensor piece = at::empty({bucket.count()}, t.options());
    if (ranks_.first()) piece.copy_(host.narrow(0, bucket.begin(), bucket.count()));
    ranks_.broadcast(piece, 0);
    shares_.put(bucket, piece, t);
  }
}

void Learner::start_from(const models::Weights& weights) {
  c10::NoGradGuard no_grad;
  fill_from_first(parameters_.values(), weights);
  fill_from_first(optimizer_.ema, weights);
  weights_changed();
}

Checkpoint Learner::snapshot(const State& state) const {
  const Parameters& p = parameters_;
  Checkpoint checkpoint;
  checkpoint.state = state;
  checkpoint.state.words = words();
  const auto named = [&](const at::Tensor& own) {
    const at::Tensor flat = shares_.whole_on_first(own);
    return flat.defined() ? p.named(flat) : models::Weights();
  };
  if (p.divided())
    checkpoint.weights = named(p.values());
  else if (ranks_.first())
    checkpoint.weights = p.named(p.values());
  checkpoint.ema = named(optimizer_.ema);
  checkpoint.moment1 = named(optimizer_.moment1);
  checkpoint.moment2 = named(optimizer_.moment2);
  return checkpoint;
}

void Learner::restore(const Checkpoint& checkpoint) {
  c10::NoGradGuard no_grad;
  fill_from_first(parameters_.values(), checkpoint.weights);
  fill_from_first(optimizer_.ema, checkpoint.ema);
  fill_from_first(optimizer_.moment1, checkpoint.moment1);
  fill_from_first(optimizer_.moment2, checkpoint.moment2);
  weights_changed();
}

}  // namespace pom::train
