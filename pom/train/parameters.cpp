#include "pom/train/parameters.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"

namespace pom::train {
namespace {

constexpr std::int64_t alignment = 16;  // elements: every parameter starts on a cache line

std::int64_t rounded_up(std::int64_t count, std::int64_t to) {
  return (count + to - 1) / to * to;
}

at::Tensor part(const at::Tensor& flat, const Slice& slice) {
  return flat.narrow(0, slice.begin, slice.count).view(slice.shape);
}

int class_of(const NamedParameter& p) {
  return between_layers(p.name, p.tensor.dim()) ? 0 : decays(p.name, p.tensor.dim()) ? 1 : 2;
}

// Matrices between layers as the forward pass meets them, then what else decays, then the rest.
void put_in_order(std::vector<NamedParameter>& parameters, const std::vector<std::string>& forward_order) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < forward_order.size(); ++i) places.emplace(forward_order[i], i);
  const auto key = [&](const NamedParameter& p) {
    const auto place = places.find(p.name);
    return std::pair(class_of(p), class_of(p) == 0 && place != places.end() ? place->second : 0);
  };
  std::ranges::stable_sort(parameters, {}, key);
}

// "blocks.3.mlp.0.weight" -> "blocks.#.mlp.0.weight": the first number is the layer's.
std::string role_of(std::string_view name) {
  const std::size_t begin = name.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::string(name);
  const std::size_t end = std::min(name.find_first_not_of("0123456789", begin), name.size());
  return detail::concat(name.substr(0, begin), "#", name.substr(end));
}

// Which of the layers a matrix belongs to, by its name; −1: none.
std::int64_t layer_of(const NamedParameter& p) {
  constexpr std::string_view prefix = "layers.";
  if (!p.name.starts_with(prefix) || !between_layers(p.name, p.tensor.dim())) return -1;
  return std::atoll(p.name.c_str() + prefix.size());
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

Parameters::Parameters(std::vector<NamedParameter> parameters, std::vector<std::string> forward_order,
                       std::int64_t ranks, bool by_layer)
    : forward_order_(std::move(forward_order)) {
  c10::NoGradGuard no_grad;
  const at::TensorOptions options = parameters.at(0).tensor.options().requires_grad(false);
  put_in_order(parameters, forward_order_);
  std::int64_t total = 0, layer = -1;
  for (const NamedParameter& each : parameters) {
    const auto& [name, p] = each;
    if (const std::int64_t next = layer_of(each); by_layer && next != layer) {
      total = rounded_up(total, flat_piece * ranks);
      if (layer >= 0) layers_.back().count = (matrices_end_ = total) - layers_.back().begin;
      layer = next;
      if (layer >= 0) layers_.push_back({total, 0});
    }
    const bool matrix = between_layers(name, p.dim());
    slices_.push_back({name, p.sizes().vec(), total, p.numel()});
    if (matrix) add_matrix(slices_.back());
    total += rounded_up(p.numel(), matrix ? flat_piece : alignment);
    if (matrix) matrices_end_ = total;
    if (decays(name, p.dim())) decayed_ = total;
    tensors_.push_back(p);
  }
  total_ = rounded_up(total, flat_piece * ranks);
  if (layer >= 0) layers_.back().count = (matrices_end_ = total_) - layers_.back().begin;
  values_ = at::zeros({total_}, options);
  gradients_ = at::zeros_like(values_);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    part(values_, slices_[i]).copy_(tensors_[i]);
    tensors_[i].set_data(part(values_, slices_[i]));
    tensors_[i].mutable_grad() = part(gradients_, slices_[i]);
  }
}

// With the one of the layer before, where they are as far apart as the others.
void Parameters::add_matrix(const Slice& slice) {
  const auto [role, added] = roles_.try_emplace(role_of(slice.name), matrices_.size());
  if (!added) {
    MatrixGroup& group = matrices_[role->second];
    const std::int64_t away = slice.begin - (group.begin + (group.count - 1) * group.stride);
    if (group.rows == slice.shape[0] && group.columns == slice.shape[1] &&
        (group.count == 1 || group.stride == away)) {
      group.stride = away;
      ++group.count;
      return;
    }
    role->second = matrices_.size();
  }
  matrices_.push_back({slice.begin, 1, slice.shape[0], slice.shape[1], rounded_up(slice.count, flat_piece)});
}

at::Tensor MatrixGroup::of(const at::Tensor& flat) const {
  return flat.as_strided({count, rows, columns}, {stride, columns, 1}, flat.storage_offset() + begin);
}

void Parameters::drop_gradients() {
  for (const at::Tensor& tensor : tensors_) tensor.mutable_grad() = at::Tensor();
  gradients_ = at::zeros({0}, values_.options());
}

void Parameters::divide(at::Tensor own, const std::function<at::Tensor(const Slice&)>& memory) {
  c10::NoGradGuard no_grad;
  values_ = std::move(own);
  divided_ = true;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    tensors_[i].mutable_grad() = at::Tensor();
    tensors_[i].set_data(memory(slices_[i]).view(slices_[i].shape));
  }
  drop_gradients();
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
