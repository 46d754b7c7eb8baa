#include "pom/generate/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/diffusion/guidance.h"
#include "pom/diffusion/noise.h"
#include "pom/generate/classes.h"
#include "pom/generate/device.h"
#include "pom/generate/engine_impl.h"
#include "pom/generate/folder_parts.h"
#include "pom/generate/pictures.h"
#include "pom/generate/plan.h"
#include "pom/generate/resolve.h"
#include "pom/models/weights.h"
#include "pom/ops/block/inference.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

std::vector<std::int64_t> class_numbers(std::span<const Request> pictures, const ModelConfig& config) {
  std::vector<std::int64_t> numbers;
  for (const Request& r : pictures)
    numbers.push_back(parse_classes(r.class_name, config.classes, config.network.classes).at(0));
  return numbers;
}

}  // namespace

Engine::Impl::Impl(const fs::path& where, c10::Device device)
    : folder(where), device(device), files(open_model(where)), config(files.config), name(config.name) {
  if (name.empty()) name = folder_name(folder);
  check(!config.network.video(), "model folder: ", where.string(),
        ": expected a model for pictures, got one for clips (network.kind is ", config.network.kind, ")");
  codec = codecs::make_codec(config.codec, config.network.channels);
}

std::int64_t Engine::Impl::stored_bytes(const Request& request) const {
  if (denoisers.contains(dtype_of(request))) return 0;
  return files.weights.in_memory() ? 1 : files.weights.bytes();
}

models::Denoiser& Engine::Impl::denoiser(at::ScalarType dtype) {
  const auto found = denoisers.find(dtype);
  if (found != denoisers.end()) return *found->second;
  models::Weights weights = files.weights.take();
  if (!device.is_cpu())
    for (auto& [tensor_name, tensor] : weights) tensor = tensor.to(device);
  return *(denoisers[dtype] = models::Denoiser::make(config.network, std::move(weights), dtype));
}

Plan Engine::Impl::plan(const Request& request, std::int64_t pictures, const Limits& limits) const {
  if (!device.is_cpu()) return make_gpu_plan(config, *codec, request, pictures, limits);
  return make_plan(config, *codec, request, pictures, limits, stored_bytes(request));
}

at::Tensor Engine::Impl::sample_batch(std::span<const Request> pictures, const Hooks& hooks) {
  const at::NoGradGuard no_grad;
  const Request& r = pictures.front();
  const diffusion::SamplerOptions options = sampler_options(r);
  const diffusion::Guidance guidance = guidance_of(r);
  const std::int64_t height = *r.height / codec->factor(), width = *r.width / codec->factor();
  models::Denoiser& network = denoiser(dtype_of(r));
  models::SamplingPlan plan{
      .batch = std::ssize(pictures), .height = height, .width = width, .evaluations = {}};
  for (const double t : diffusion::evaluation_times(*r.sampler, options))
    plan.evaluations.push_back({t, guidance.acts_at(t)});
  network.plan(plan);
  network.tell({.classes = class_numbers(pictures, config)});
  std::vector<std::uint64_t> seeds;
  for (const Request& picture : pictures) seeds.push_back(static_cast<std::uint64_t>(picture.seed));
  at::Tensor noise =
      at::empty({static_cast<std::int64_t>(seeds.size()), config.network.channels, height, width},
                at::TensorOptions(at::kFloat).device(device));
  diffusion::fill_latents(noise, seeds);
  std::size_t next = 0;
  const diffusion::PairModel model = [&](const at::Tensor& x, double t, bool both) {
    if (hooks.before) hooks.before();
    check(next < plan.evaluations.size() && plan.evaluations[next].t == t &&
              plan.evaluations[next].both == both,
          "sample: evaluation ", next, ": expected what was planned, got time ", t);
    at::Tensor answer = network(x, static_cast<std::int64_t>(next++));
    if (hooks.after) hooks.after();
    return answer;
  };
  return diffusion::sample(diffusion::guide(model, guidance), noise, path_of(config.diffusion), *r.sampler,
                           options, diffusion::step_noise(seeds), hooks.on_step);
}

std::vector<Picture> Engine::Impl::decode(const at::Tensor& latents, std::span<const Request> pictures,
                                          std::int64_t first) const {
  std::vector<io::Image> images = to_images(codec->decode(latents.to(at::kCPU)), pictures.data());
  std::vector<Picture> out;
  for (std::size_t i = 0; i < images.size(); ++i)
    out.push_back({std::move(images[i]), pictures[i], first + static_cast<std::int64_t>(i)});
  return out;
}

Engine::Engine(const fs::path& folder, std::string_view device)
    : impl_(std::make_unique<Impl>(folder, device_named(device, "sample"))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

const ModelConfig& Engine::config() const {
  return impl_->config;
}
const fs::path& Engine::folder() const {
  return impl_->folder;
}
const std::string& Engine::name() const {
  return impl_->name;
}
std::string Engine::device() const {
  return impl_->device.str();
}
const std::string& Engine::weights_hash() const {
  return impl_->files.weights.hash();
}

std::vector<Request> Engine::resolve(const Request& request) const {
  std::vector<Request> pictures = generate::resolve(request, impl_->config, impl_->codec->factor());
  if (dtype_of(pictures.front()) != at::kFloat8_e4m3fn) return pictures;
  const std::string reason = ops::fp8_refusal(impl_->device);
  check(reason.empty(), "sample: dtype: ", reason);
  return pictures;
}

void Engine::run(const Request& request, const Limits& limits, const Observer& observer) {
  const std::vector<Request> pictures = resolve(request);
  const Request& r = pictures.front();
  const Plan plan = impl_->plan(r, std::ssize(pictures), limits);
  if (!plan.fits) fail(refusal(plan, advice(impl_->config, *impl_->codec, r, plan, impl_->stored_bytes(r))));
  const std::int64_t total = plan.batches * diffusion::evaluations(*r.sampler, sampler_options(r));
  std::int64_t done = 0;
  for (std::int64_t i = 0; i < plan.batches; ++i) {
    const std::int64_t first = plan.begin(i);
    const auto batch = std::span(pictures).subspan(static_cast<std::size_t>(first),
                                                   static_cast<std::size_t>(plan.begin(i + 1) - first));
    Impl::Hooks hooks;
    hooks.before = [&] {
      if (observer.stop != nullptr && observer.stop->load(std::memory_order_relaxed)) throw Stopped();
    };
    hooks.after = [&] {
      ++done;
      if (observer.on_evaluation) observer.on_evaluation(done, total);
    };
    if (observer.preview_every > 0 && observer.on_preview)
      hooks.on_step = [&](const diffusion::StepInfo& info) {
        if (info.step % observer.preview_every == 0)
          observer.on_preview(info.step, impl_->decode(info.x0, batch, first));
      };
    const at::Tensor latents = impl_->sample_batch(batch, hooks);
    hooks.before();
    for (Picture& picture : impl_->decode(latents, batch, first))
      if (observer.on_picture) observer.on_picture(std::move(picture));
  }
}

std::vector<Picture> Engine::run(const Request& request, const Limits& limits) {
  std::vector<Picture> pictures;
  Observer observer;
  observer.on_picture = [&](Picture&& picture) { pictures.push_back(std::move(picture)); };
  run(request, limits, observer);
  return pictures;
}

}  // namespace pom::generate
