#include "cli/bench_network.h"

#include <cmath>
#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"
#include "pom/train/device.h"
#include "pom/train/optimizer.h"

namespace pom::cli {
namespace {

// Matrices keep the variance of what goes through them; vectors are small.
void randomise(at::Tensor& values) {
  const double in = values.dim() > 1 ? static_cast<double>(values[0].numel()) : 2500;
  values.normal_(0, 1 / std::sqrt(in));
}

models::Weights random_weights(const models::NetworkConfig& config, const at::Device& device) {
  models::Weights weights;
  for (const models::TensorSpec& spec : models::expected_tensors(config)) {
    at::Tensor values = at::empty(spec.shape, at::TensorOptions(at::kFloat).device(device));
    randomise(values);
    weights.emplace(spec.name, std::move(values));
  }
  return weights;
}

at::Tensor random_latents(const models::NetworkConfig& config, const at::Device& device,
                          const BatchSize& size) {
  const std::int64_t side = size.side * config.patch;
  return at::randn({size.pictures, config.channels, side, side},
                   at::TensorOptions(at::kFloat).device(device));
}

}  // namespace

Call evaluation(const models::NetworkConfig& config, at::ScalarType dtype, const at::Device& device,
                const BatchSize& size) {
  constexpr double time = 0.5;
  const auto network = std::make_shared<models::Denoiser>(config, random_weights(config, device), dtype);
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < size.pictures; ++i) classes.push_back(i % config.classes);
  const std::int64_t side = size.side * config.patch;
  network->plan(classes, side, side, std::vector{time});
  return [network, x = random_latents(config, device, size)] { (*network)(x, time, false); };
}

struct Trainee::Impl {
  Impl(const models::NetworkConfig& config, std::string with, const at::Device& where, bool update)
      : network(config), precision(std::move(with)), device(where) {
    network->to(device);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& values : network->parameters()) randomise(values);
    }
    if (!update) return;
    parameters.emplace(network);
    optimizer.emplace(*parameters, train::OptimizerConfig{.clip = 0});
  }

  void step(const at::Tensor& x, const at::Tensor& t, const at::Tensor& y) {
    if (parameters)
      parameters->gradients().zero_();
    else
      network->zero_grad();
    {
      const train::Precision lower(device, precision);
      network->forward(x, t, y).to(at::kFloat).square().mean().backward();
    }
    if (!optimizer) return;
    constexpr double rate = 1e-6;
    optimizer->step(at::ones({}, x.options()), rate, ++updates, /*average=*/false, /*decay=*/0);
  }

  models::DiPoM network;
  std::string precision;
  at::Device device;
  std::optional<train::Parameters> parameters;
  std::optional<train::AdamW> optimizer;
  std::int64_t updates = 0;
};

Trainee::Trainee(const models::NetworkConfig& config, std::string precision, const at::Device& device,
                 bool update)
    : impl_(std::make_unique<Impl>(config, std::move(precision), device, update)) {}
Trainee::~Trainee() = default;

Call Trainee::step(const BatchSize& size) {
  Impl& impl = *impl_;
  const models::NetworkConfig& config = impl.network->config();
  const at::Tensor x = random_latents(config, impl.device, size);
  const at::Tensor t = at::rand({size.pictures}, x.options());
  const at::Tensor y = at::randint(config.classes, {size.pictures}, x.options().dtype(at::kLong));
  return [&impl, x, t, y] { impl.step(x, t, y); };
}

}  // namespace pom::cli
