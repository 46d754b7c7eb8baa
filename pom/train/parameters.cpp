#include "pom/train/parameters.h"

#include <algorithm>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::train {
namespace {

constexpr std::int64_t alignment = 16;  // elements: every parameter starts on a cache line

std::int64_t aligned(std::int64_t count) {
  return (count + alignment - 1) / alignment * alignment;
}

at::Tensor part(const at::Tensor& flat, const Slice& slice) {
  return flat.narrow(0, slice.begin, slice.count).view(slice.shape);
}

}  // namespace

bool decays(std::string_view name, std::int64_t dims) {
  return dims > 1 && !name.starts_with("classes_emb");
}

Parameters::Parameters(models::DiPoM& network) {
  c10::NoGradGuard no_grad;
  auto named = network->named_parameters();
  std::int64_t total = 0;
  for (const bool decaying : {true, false}) {
    for (const auto& item : named) {
      const at::Tensor& p = item.value();
      if (decays(item.key(), p.dim()) != decaying) continue;
      slices_.push_back({item.key(), p.sizes().vec(), total, p.numel()});
      total += aligned(p.numel());
    }
    if (decaying) decayed_ = total;
  }
  values_ = at::zeros({total}, network->out_proj->weight.options().requires_grad(false));
  gradients_ = at::zeros_like(values_);
  for (const Slice& slice : slices_) {
    at::Tensor& parameter = named[slice.name];
    part(values_, slice).copy_(parameter);
    parameter.set_data(part(values_, slice));
    parameter.mutable_grad() = part(gradients_, slice);
  }
  for (const models::TensorSpec& spec : models::expected_tensors(network->config()))
    forward_order_.push_back(spec.name);
}

models::Weights Parameters::named(const at::Tensor& flat) const {
  c10::NoGradGuard no_grad;
  const at::Tensor host = flat.to(at::kCPU);
  models::Weights weights;
  for (const Slice& slice : slices_) weights[slice.name] = part(host, slice).clone();
  return weights;
}

void Parameters::assign(at::Tensor& flat, const models::Weights& weights) const {
  c10::NoGradGuard no_grad;
  at::Tensor host = at::zeros(flat.sizes(), flat.options().device(at::kCPU));
  for (const Slice& slice : slices_) {
    const auto found = weights.find(slice.name);
    check(found != weights.end(), "train: weights: expected ", slice.name, ", got none of that name");
    check(found->second.sizes().vec() == slice.shape, "train: weights: ", slice.name, ": expected shape ",
          at::IntArrayRef(slice.shape), ", got ", found->second.sizes());
    part(host, slice).copy_(found->second);
  }
  flat.copy_(host);
}

std::string Parameters::last_not_finite(const at::Tensor& flat) const {
  c10::NoGradGuard no_grad;
  for (auto name = forward_order_.rbegin(); name != forward_order_.rend(); ++name) {
    const auto slice =
        std::find_if(slices_.begin(), slices_.end(), [&](const Slice& s) { return s.name == *name; });
    if (slice != slices_.end() && !at::isfinite(part(flat, *slice)).all().item<bool>()) return *name;
  }
  return {};
}

}  // namespace pom::train
