#include "pom/train/layer_store.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace pom::train {
namespace {

// Threads that gather and those that send gradients do not wait for each other: with NCCL the streams of one
// group keep their order, with Gloo each has a group.
parallel::Ranks gathering(const parallel::Ranks& ranks, const at::Device& device) {
  if (ranks.backend(device.type()) == "nccl") return ranks;
  return ranks.split([](int) { return 0; });
}

}  // namespace

LayerStore::LayerStore(Parameters& parameters, const Shares& shares, const parallel::Ranks& ranks,
                       const at::Device& device)
    : parameters_(parameters), shares_(shares), ranks_(gathering(ranks, device)) {
  c10::NoGradGuard no_grad;
  find_gaps();
  const at::Tensor own = shares_.own_part(parameters_.values()).to(device);
  std::int64_t largest = 0;
  for (const FlatRange& layer : parameters_.layers()) largest = std::max(largest, layer.count);
  for (Place& place : places_) place.memory = at::zeros({largest}, own.options());
  rest_ = at::zeros({gaps_.empty() ? 0 : gaps_.back().at + gaps_.back().count}, own.options());
  parameters_.divide(own, [this](const Slice& slice) { return memory_of(slice); });
  renew();
}

std::int64_t LayerStore::layers() const {
  return std::ssize(parameters_.layers());
}

void LayerStore::find_gaps() {
  std::int64_t begin = 0, at = 0;
  const auto add = [&](std::int64_t end) {
    if (end > begin) gaps_.push_back({begin, end - begin, at});
    at += end - begin;
  };
  for (const FlatRange& layer : parameters_.layers()) {
    add(layer.begin);
    begin = layer.begin + layer.count;
  }
  add(parameters_.total());
}

at::Tensor LayerStore::memory_of(const Slice& slice) {
  for (std::int64_t i = 0; i < layers(); ++i) {
    const FlatRange& layer = parameters_.layers()[static_cast<std::size_t>(i)];
    if (slice.begin >= layer.begin && slice.begin < layer.begin + layer.count)
      return place_of(i).memory.narrow(0, slice.begin - layer.begin, slice.count);
  }
  const auto gap = std::ranges::find_if(gaps_, [&](const Gap& g) { return slice.begin < g.begin + g.count; });
  return rest_.narrow(0, gap->at + slice.begin - gap->begin, slice.count);
}

void LayerStore::start(std::int64_t layer) {
  Place& place = place_of(layer);
  if (place.layer == layer) return;
  c10::NoGradGuard no_grad;
  for (parallel::Pending& each : place.pending) each.wait();  // of a layer that nobody has used
  place.pending.clear();
  place.layer = layer;
  const FlatRange& range = parameters_.layers()[static_cast<std::size_t>(layer)];
  for (const Bucket& bucket : shares_.buckets())
    if (bucket.begin() >= range.begin && bucket.begin() < range.begin + range.count)
      shares_.start_gather(bucket, parameters_.values(),
                           place.memory.narrow(0, bucket.begin() - range.begin, bucket.count()), ranks_,
                           place.pending);
}

void LayerStore::need(std::int64_t layer) {
  start(layer);
  Place& place = place_of(layer);
  for (parallel::Pending& each : place.pending) each.wait();
  place.pending.clear();
}

void LayerStore::before_forward(std::int64_t layer) {
  need(layer);
  if (layer + 1 < layers()) start(layer + 1);
}

void LayerStore::before_backward(std::int64_t layer) {
  need(layer);
  if (layer > 0) start(layer - 1);
}

void LayerStore::pass() {
  for (std::int64_t i = 0; i < layers(); ++i) before_forward(i);
}

void LayerStore::forget() {
  for (Place& place : places_) {
    for (parallel::Pending& each : place.pending) each.wait();
    place.pending.clear();
    place.layer = -1;
  }
}

void LayerStore::renew() {
  c10::NoGradGuard no_grad;
  forget();
  std::vector<parallel::Pending> pending;
  for (const Bucket& bucket : shares_.buckets()) {
    const auto gap = std::ranges::find_if(
        gaps_, [&](const Gap& g) { return bucket.begin() >= g.begin && bucket.begin() < g.begin + g.count; });
    if (gap == gaps_.end()) continue;
    shares_.start_gather(bucket, parameters_.values(),
                         rest_.narrow(0, gap->at + bucket.begin() - gap->begin, bucket.count()), ranks_,
                         pending);
  }
  for (parallel::Pending& each : pending) each.wait();
}

}  // namespace pom::train
