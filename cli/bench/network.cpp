#include "cli/bench/network.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include "cli/bench/bench.h"
#include "cli/bench/cuda.h"
#include "pom/base/error.h"
#include "pom/models/denoiser.h"
#include "pom/models/dipom.h"
#include "pom/models/vdipom.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/weight_copies.h"
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
  std::vector<std::int64_t> shape = {size.pictures, config.channels};
  if (config.video()) shape.push_back(size.blocks * config.patch_time);
  shape.push_back(size.side * config.patch), shape.push_back(size.width() * config.patch);
  return at::randn(shape, at::TensorOptions(at::kFloat).device(device));
}

struct Text {
  at::Tensor states, mask;
};
Text random_text(const models::NetworkConfig& config, const at::Device& device, const BatchSize& size) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  return {at::randn({size.pictures, size.words, config.text_width}, options),
          at::ones({size.pictures, size.words}, options.dtype(at::kBool))};
}

models::Condition random_condition(const models::NetworkConfig& config, const at::Device& device,
                                   const BatchSize& size) {
  if (config.video()) {
    const Text text = random_text(config, device, size);
    return {.text = text.states, .mask = text.mask};
  }
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < size.pictures; ++i) classes.push_back(i % config.classes);
  return {.classes = classes};
}

}  // namespace

models::NetworkConfig sized(models::NetworkConfig named, const BenchOptions& options) {
  named.variant.clear();
  named.ffw_expand = options.ffw_expand.value_or(4);
  named.dim = options.dim.value_or(named.dim);
  named.depth = options.depth.value_or(named.depth);
  named.heads = options.heads.value_or(named.heads);
  named.order = options.order.value_or(2);
  named.order_expand = options.expand.value_or(2);
  return named;
}

Call evaluation(const models::NetworkConfig& config, at::ScalarType dtype, const at::Device& device,
                const BatchSize& size, std::int64_t before) {
  const c10::NoGradGuard no_gradients;
  const std::shared_ptr<models::Denoiser> network =
      models::Denoiser::make(config, random_weights(config, device), dtype);
  network->plan({.batch = size.pictures,
                 .height = size.side * config.patch,
                 .width = size.width() * config.patch,
                 .evaluations = {{0.5, config.video()}},
                 .blocks = before + size.blocks});
  network->tell(random_condition(config, device, size));
  const at::Tensor x = random_latents(config, device, size);
  for (std::int64_t block = 0; block < before; ++block) {
    (*network)(x.narrow(2, 0, config.patch_time), 0);
    network->advance();
  }
  return [network, x] { (*network)(x, 0); };
}

struct Trainee::Impl {
  struct Batch {
    at::Tensor x, t, y;
    Text text;  // of clips, in place of classes
  };

  Impl(const models::NetworkConfig& of, Options asked, const at::Device& where)
      : config(of), options(std::move(asked)), device(where) {
    if (config.video())
      clips = models::VDiPoM(config);
    else
      images = models::DiPoM(config);
    network().to(device);
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& values : network().parameters()) randomise(values);
    }
    parameters.emplace(train::named_parameters(network()), train::forward_names(config));
    if (device.is_cuda() && options.precision == "bf16")
      copies = std::make_unique<ops::WeightCopies>(parameters->values(), parameters->tensors());
    if (!options.update) return;
    shares.emplace(*parameters, parallel::Ranks(), /*divided=*/false, /*whole_matrices=*/false);
    optimizer.emplace(*parameters, train::OptimizerConfig{.clip = 0}, *shares, /*one_by_one=*/false,
                      copies.get());
  }

  torch::nn::Module& network() {
    if (config.video()) return *clips;
    return *images;
  }

  Batch batch(const BatchSize& size) const {
    const at::Tensor x = random_latents(config, device, size);
    Batch b{.x = x, .t = at::rand({size.pictures}, x.options()), .y = {}, .text = {}};
    if (config.video())
      b.text = random_text(config, device, size);
    else
      b.y = at::randint(config.classes, {size.pictures}, x.options().dtype(at::kLong));
    return b;
  }

  at::Tensor forward(const Batch& b) {
    if (config.video()) return clips->forward(b.x, b.t, b.text.states, b.text.mask);
    return images->forward(b.x, b.t, b.y);
  }

  void gradients(const Batch& b) {
    if (optimizer)
      parameters->gradients().zero_();
    else
      network().zero_grad();
    const train::Precision lower(device, options.precision);
    forward(b).to(at::kFloat).square().mean().backward();
  }

  // Its numbers of the step are the host's: outside of a graph.
  void update() {
    if (!optimizer) return;
    constexpr double rate = 1e-6;
    const at::Tensor norm = at::ones({}, at::TensorOptions(at::kFloat).device(device));
    optimizer->step(parameters->gradients(), norm, rate, ++updates, /*average=*/false, /*decay=*/0);
  }

  // What the gradients take beside themselves and the weights: looked at when algorithms are chosen and
  // gradients are there.
  std::int64_t bytes_of(const Batch& b) {
    gradients(b);
    const std::int64_t before = start_peak(device);
    gradients(b);
    synchronize(device);
    return std::max<std::int64_t>(0, peak_bytes(device) - before);
  }

  Prepared one_by_one(const Batch& b) {
    Prepared prepared([this, b] { gradients(b), update(); });
    if (device.is_cuda()) prepared.graph = false;
    return prepared;
  }

  Prepared in_graph(const Batch& b) {
    constexpr std::int64_t sharers = 3;  // this, its rival, and all the rest
    const std::int64_t bytes = bytes_of(b);
    if (bytes > total_bytes(device) / sharers) return one_by_one(b);
    give_back_memory(device);  // for a graph to take
    struct Graph {
      std::unique_ptr<ops::cuda::GraphedEvaluations> evaluations;
      int runs = 0;  // of the function that is captured: a graph does not call it
    };
    const auto graph =
        std::make_shared<Graph>(ops::cuda::graphs_on(device, ops::cuda::GraphWeights::changing));
    if (!graph->evaluations) return one_by_one(b);
    const auto run = [this, b, graph] { graph->evaluations->run(0, [&] { ++graph->runs, gradients(b); }); };
    run();  // captured here, if it can be
    const int before = graph->runs;
    run();
    if (graph->runs != before) return one_by_one(b);
    Prepared prepared([this, run] { run(), update(); });
    prepared.bytes = bytes, prepared.graph = true;
    return prepared;
  }

  models::NetworkConfig config;
  models::DiPoM images{nullptr};
  models::VDiPoM clips{nullptr};
  Options options;
  at::Device device;
  std::optional<train::Parameters> parameters;
  std::unique_ptr<ops::WeightCopies> copies;  // which the update writes, as the learner's does
  std::optional<train::Shares> shares;
  std::optional<train::Optimizer> optimizer;
  std::int64_t updates = 0;
};

Trainee::Trainee(const models::NetworkConfig& config, Options options, const at::Device& device)
    : impl_(std::make_unique<Impl>(config, std::move(options), device)) {}
Trainee::~Trainee() = default;

Prepared Trainee::step(const BatchSize& size) {
  const Impl::Batch batch = impl_->batch(size);
  if (impl_->device.is_cuda() && impl_->options.graphs) return impl_->in_graph(batch);
  return impl_->one_by_one(batch);
}

}  // namespace pom::cli
