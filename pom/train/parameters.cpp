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

// Matrices between layers by shape, then what else decays, then the rest.
bool comes_before(const NamedParameter& one, const NamedParameter& other) {
  const auto rank = [](const NamedParameter& p) {
    return between_layers(p.name, p.tensor.dim()) ? 0 : decays(p.name, p.tensor.dim()) ? 1 : 2;
  };
  if (rank(one) != rank(other)) return rank(one) < rank(other);
  return rank(one) == 0 && std::ranges::lexicographical_compare(one.tensor.sizes(), other.tensor.sizes());
}

}  // namespace

bool decays(std::string_view name, std::int64_t dims) {
  for (const std::string_view table : {"classes_emb", "text_encoder.pieces", "text_encoder.places"})
    if (name.starts_with(table)) return false;
  return dims > 1;
}

bool between_layers(std::string_view name, std::int64_t dims) {
  return dims == 2 && decays(name, dims) && !name.starts_with("out_proj");
}

std::vector<NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> all;
  for (const auto& item : module.named_parameters()) all.push_back({item.key(), item.value()});
  return all;
}

std::vector<std::string> forward_names(const models::NetworkConfig& network) {
  std::vector<std::string> names;
  for (const models::TensorSpec& spec : models::expected_tensors(network)) names.push_back(spec.name);
  return names;
}

Parameters::Parameters(models::DiPoM& network)
    : Parameters(named_parameters(*network), forward_names(network->config())) {}

Parameters::Parameters(std::vector<NamedParameter> parameters, std::vector<std::string> forward_order)
    : forward_order_(std::move(forward_order)) {
  c10::NoGradGuard no_grad;
  const at::TensorOptions options = parameters.at(0).tensor.options().requires_grad(false);
  std::ranges::stable_sort(parameters, comes_before);
  std::int64_t total = 0;
  for (const auto& [name, p] : parameters) {
    slices_.push_back({name, p.sizes().vec(), total, p.numel()});
    if (between_layers(name, p.dim())) add_matrix(slices_.back());
    total += aligned(p.numel());
    if (decays(name, p.dim())) decayed_ = total;
  }
  values_ = at::zeros({total}, options);
  gradients_ = at::zeros_like(values_);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    at::Tensor& p = parameters[i].tensor;
    part(values_, slice).copy_(p);
    p.set_data(part(values_, slice));
    p.mutable_grad() = part(gradients_, slice);
  }
}

void Parameters::add_matrix(const Slice& slice) {
  const std::int64_t rows = slice.shape[0], columns = slice.shape[1];
  if (matrices_.empty() || matrices_.back().rows != rows || matrices_.back().columns != columns)
    matrices_.push_back({slice.begin, 0, rows, columns, aligned(slice.count)});
  ++matrices_.back().count;
}

std::int64_t Parameters::matrices_end() const {
  return matrices_.empty() ? 0 : matrices_.back().begin + matrices_.back().count * matrices_.back().stride;
}

at::Tensor MatrixGroup::of(const at::Tensor& flat) const {
  return flat.narrow(0, begin, count * stride)
      .view({count, stride})
      .narrow(1, 0, rows * columns)
      .unflatten(1, {rows, columns});
}

std::int64_t Parameters::count() const {
  std::int64_t count = 0;
  for (const Slice& slice : slices_) count += slice.count;
  return count;
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
