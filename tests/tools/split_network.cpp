// torch.ops.pom_tests: the networks of pom/models for referees in Python, whole or as a rank's part of a
// sequence. Loaded by python/tests/split_network_program.py; processes cannot be joined from C++ alone.
#include <tuple>

#include <ATen/ATen.h>
#include <ATen/core/Dict.h>
#include <torch/library.h>

#include "pom/base/error.h"
#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"
#include "pom/models/vdipom.h"

namespace {

using namespace pom;
using Fields = c10::Dict<std::string, std::string>;
// The output, the gradients of x, and those of the parameters one after another.
using Result = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

struct SetGiven {
  const Fields& given;
  template <class T>
  void operator()(const Field& field, T& value) const {
    const auto found = given.find(std::string(field.name));
    if (found == given.end()) return;
    if constexpr (std::is_same_v<T, std::string>)
      value = found->value();
    else
      value = static_cast<T>(std::stoll(found->value()));
  }
};

models::NetworkConfig config_of(const Fields& given) {
  models::NetworkConfig config;
  config.fields(SetGiven{given});
  return config;
}

// Every parameter is drawn, so that no gate or projection is zero.
template <class Network>
Network drawn(const models::NetworkConfig& config, at::ScalarType dtype) {
  Network network(config);
  network->to(dtype);
  torch::NoGradGuard no_grad;
  at::manual_seed(11);
  for (const at::Tensor& p : network->parameters()) p.copy_(at::randn(p.sizes(), at::kDouble) * 0.2);
  return network;
}

models::SequenceSplit split_of(const std::string& group, std::int64_t whole) {
  if (group.empty()) return {};
  return {parallel::Ranks::of_group(group), whole};
}

template <class Network, class Forward>
Result result_of(Network& network, const at::Tensor& x, const at::Tensor& dy, const Forward& forward) {
  const at::Tensor in = x.detach().clone().requires_grad_(true);
  const at::Tensor out = forward(in);
  out.backward(dy);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : network->parameters())
    gradients.push_back(p.grad().defined() ? p.grad().flatten() : at::zeros({p.numel()}, p.options()));
  return {out.detach(), in.grad(), at::cat(gradients)};
}

Result pictures(const Fields& fields, const at::Tensor& x, const at::Tensor& t, const at::Tensor& y,
                const at::Tensor& dy, const std::string& group, std::int64_t whole, bool checkpointing) {
  auto network = drawn<models::DiPoM>(config_of(fields), x.scalar_type());
  network->set_sequence(split_of(group, whole));
  network->set_checkpointing(checkpointing);
  return result_of(network, x, dy, [&](const at::Tensor& in) { return network->forward(in, t, y); });
}

Result clips(const Fields& fields, const at::Tensor& x, const at::Tensor& t, const at::Tensor& text,
             const at::Tensor& mask, const at::Tensor& first, const at::Tensor& dy, const std::string& group,
             std::int64_t whole) {
  auto network = drawn<models::VDiPoM>(config_of(fields), x.scalar_type());
  network->set_sequence(split_of(group, whole));
  return result_of(network, x, dy,
                   [&](const at::Tensor& in) { return network->forward(in, t, text, mask, first); });
}

// What guidance asks of a network made ready to sample, by the ranks of a group together: 2 B rows.
at::Tensor denoised(const Fields& fields, const at::Tensor& x, const at::Tensor& text, const at::Tensor& mask,
                    const std::string& group) {
  const models::NetworkConfig config = config_of(fields);
  models::Weights weights;
  at::manual_seed(11);
  for (const models::TensorSpec& spec : models::expected_tensors(config))
    weights[spec.name] = at::randn(spec.shape, at::kDouble) * 0.2;
  const auto denoiser = models::Denoiser::make(config, std::move(weights), x.scalar_type());
  denoiser->plan({.batch = x.size(0),
                  .height = x.size(-2),
                  .width = x.size(-1),
                  .evaluations = {{0.7, true}},
                  .blocks = config.video() ? x.size(2) / config.patch_time : 0,
                  .ranks = split_of(group, 0).ranks});
  if (config.video())
    denoiser->tell({.text = text, .mask = mask});
  else
    denoiser->tell({.classes = std::vector<std::int64_t>(static_cast<std::size_t>(x.size(0)), 1)});
  at::Tensor out = (*denoiser)(x, 0).clone();
  denoiser->advance();
  return out;
}

// {first, count} of a rank, in latent rows or frames.
std::tuple<std::int64_t, std::int64_t> share(const Fields& fields, std::int64_t whole, std::int64_t ranks,
                                             std::int64_t rank) {
  const parallel::Share s =
      models::sequence_share(config_of(fields), whole, static_cast<int>(ranks), static_cast<int>(rank));
  return {s.first, s.count};
}

at::Tensor whole_of(const Fields& fields, const at::Tensor& part, const std::string& group,
                    std::int64_t whole) {
  return models::sequence_whole(part, config_of(fields), split_of(group, whole));
}

}  // namespace

TORCH_LIBRARY(pom_tests, m) {
  m.def(
      "pictures(Dict(str, str) fields, Tensor x, Tensor t, Tensor y, Tensor dy, str group, int whole, bool "
      "checkpointing) -> (Tensor, Tensor, Tensor)",
      pictures);
  m.def(
      "clips(Dict(str, str) fields, Tensor x, Tensor t, Tensor text, Tensor mask, Tensor first, Tensor dy, "
      "str group, int whole) -> (Tensor, Tensor, Tensor)",
      clips);
  m.def("denoised(Dict(str, str) fields, Tensor x, Tensor text, Tensor mask, str group) -> Tensor", denoised);
  m.def("share(Dict(str, str) fields, int whole, int ranks, int rank) -> (int, int)", share);
  m.def("whole_of(Dict(str, str) fields, Tensor part, str group, int whole) -> Tensor", whole_of);
}
