#include "pom/generate/engine.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/cat.h>

#include "pom/base/build_info.h"
#include "pom/base/error.h"
#include "pom/codecs/text_cache.h"
#include "pom/generate/device.h"
#include "pom/generate/engine_impl.h"
#include "pom/generate/folder_parts.h"
#include "pom/generate/images.h"
#include "pom/generate/init_file.h"
#include "pom/generate/plan.h"
#include "pom/generate/text_folder.h"
#include "pom/io/sha256.h"
#include "pom/ops/block/inference.h"
#include "pom/ops/cuda/device.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

// Latents that a run was given: one for each item, or `one` for all of them.
void check_given(const at::Tensor& given, const char* name, std::vector<std::int64_t> expected, bool one) {
  if (!given.defined()) return;
  std::vector<std::int64_t> for_all = expected;
  for_all[0] = 1;
  check(given.is_floating_point() && (given.sizes() == at::IntArrayRef(expected) ||
                                      (one && given.sizes() == at::IntArrayRef(for_all))),
        "sample: ", name, ": expected floating point of shape ", at::IntArrayRef(expected), ", got ",
        given.scalar_type(), " of shape ", given.sizes());
}

// The first so many frames of clips (B, C, T, H, W), the last one again where there are fewer.
at::Tensor filled_up(const at::Tensor& clips, std::int64_t frames) {
  if (clips.size(2) >= frames) return clips.narrow(2, 0, frames);
  at::Tensor last = clips.narrow(2, -1, 1);
  std::vector<std::int64_t> shape = last.sizes().vec();
  shape[2] = frames - clips.size(2);
  return at::cat({clips, last.expand(shape)}, 2);
}

void check_dtype(const Job& job, c10::Device device) {
  if (dtype_of(job.first()) != at::kFloat8_e4m3fn) return;
  const std::string reason = ops::fp8_refusal(device);
  check(reason.empty(), "sample: dtype: ", reason);
}

// Of a file that an item begins with; empty where there is none, and of a folder.
std::string hash_of(const std::string& file) {
  std::error_code ignored;
  return fs::is_regular_file(file, ignored) ? io::sha256_file(file) : std::string();
}

}  // namespace

Engine::Impl::Impl(const fs::path& where, c10::Device on)
    : folder(where),
      device(on),
      files(open_model(where)),
      config(files.config),
      name(config.name),
      codec(files.codec.get()) {
  if (name.empty()) name = folder_name(folder);
  encoder = files.text ? open_text(*files.text, config) : std::move(files.encoder);
  if (!encoder) return;
  if (const char* cache = std::getenv("POM_TEXT_CACHE"); cache != nullptr && *cache != 0 && !files.text)
    encoder = std::make_unique<codecs::CachedText>(std::move(encoder), codecs::TextCache(cache));
  encoder->to(device);
}

const codecs::EncodedText& Engine::Impl::encoded(const std::string& prompt) {
  constexpr std::size_t most = 256;  // a prompt of the largest encoder is some megabytes
  if (const auto found = texts.find(prompt); found != texts.end()) return found->second;
  if (texts.size() >= most) texts.clear();
  codecs::EncodedText made = encoder->encode({&prompt, 1});
  made.tokens = made.tokens.to(at::kFloat);
  return texts.emplace(prompt, std::move(made)).first->second;
}

ModelShape Engine::Impl::shape() const {
  const bool clips = config.network.video();
  return {.factor = codec->factor(),
          .block_frames = clips ? config.network.patch_time * codec->time_factor() : 1};
}

std::int64_t Engine::Impl::stored_bytes(const Request& request) const {
  if (denoisers.contains({dtype_of(request), network_of(config, request).window})) return 0;
  return files.weights.in_memory() ? 1 : files.weights.bytes();
}

models::Denoiser& Engine::Impl::denoiser(const Request& request) {
  const models::NetworkConfig network = network_of(config, request);
  std::unique_ptr<models::Denoiser>& made = denoisers[{dtype_of(request), network.window}];
  if (!made) made = new_denoiser(request);
  return *made;
}

std::unique_ptr<models::Denoiser> Engine::Impl::new_denoiser(const Request& request) {
  models::Weights weights = files.weights.take();
  if (!device.is_cpu())
    for (auto& [tensor_name, tensor] : weights) tensor = tensor.to(device);
  return models::Denoiser::make(network_of(config, request), std::move(weights), dtype_of(request));
}

Work Engine::Impl::work(const Job& job) const {
  return {.items = std::ssize(job.items),
          .blocks = job.blocks,
          .clip = job.clip,
          .stream = job.stream,
          .on_gpu = !device.is_cpu()};
}

Plan Engine::Impl::plan(const Job& job, const Limits& limits) const {
  const std::scoped_lock lock(codec_options);
  codecs::CodecOptions options{.device = device, .dtype = codec_dtype(job.first())};
  codec->set_options(options);
  const Plan plan = make_plan(config, *codec, job.first(), work(job), limits, stored_bytes(job.first()));
  options.memory = plan.decode_memory;
  codec->set_options(options);
  return plan;
}

void Engine::Impl::make_room(const Request& request, std::int64_t items) const {
  if (!device.is_cuda() || config.network.video()) return;
  const std::scoped_lock lock(codec_options);
  codecs::CodecOptions options{.device = device, .dtype = codec_dtype(request)};
  codec->set_options(options);
  const std::int64_t each = codec->decode_bytes(*request.height, *request.width);
  const std::int64_t wanted = std::max(each, std::min(codecs::Codec::enough_at_once, items * each));
  constexpr double share = 0.9;  // of what is free: it lies in pieces
  const auto room = [&] {
    return static_cast<std::int64_t>(share * static_cast<double>(ops::cuda::free_bytes(device)));
  };
  if (room() == 0 || wanted <= room()) return;
  at::accelerator::emptyCache();  // what torch keeps of the network's work
  if (wanted <= room()) return;
  options.memory = std::max<std::int64_t>(1, room());
  codec->set_options(options);
}

Plan Engine::Impl::plan_of_run(const Job& job, const Limits& limits) const {
  Job part = job;
  if (const parallel::Share& items = limits.items; items.count > 0)
    part.items = {job.items.begin() + items.first, job.items.begin() + items.end()};
  Plan own = plan(part, limits);
  if (limits.ranks.alone()) return own;
  const std::vector<std::int64_t> worst = limits.ranks.largest({-own.batch, own.fits ? 0 : 1});
  Limits agreed = limits;
  agreed.batch = std::max<std::int64_t>(1, -worst[0]);
  own = plan(part, agreed);
  check(worst[1] == 0 || !own.fits, "sample: memory: expected enough on all ", limits.ranks.size(),
        " ranks, got too little on another one, which says how much");
  return own;
}

BatchSampling Engine::Impl::sampling(const Job& job, std::span<const Request> items,
                                     const parallel::Ranks& ranks) const {
  const Request& r = items.front();
  BatchSampling sampling{.height = *r.height / codec->factor(),
                         .width = *r.width / codec->factor(),
                         .seeds = {},
                         .path = path_of(config.diffusion),
                         .sampler = *r.sampler,
                         .options = sampler_options(r),
                         .guidance = guidance_of(r),
                         .blocks = job.blocks,
                         .ranks = ranks};
  sampling.guidance.channels = config.sample.guidance_channels;
  for (const Request& item : items) sampling.seeds.push_back(static_cast<std::uint64_t>(item.own_seed()));
  return sampling;
}

at::Tensor Engine::Impl::read_init(const Job& job) const {
  if (job.first().init.empty()) return {};
  const bool clips = config.network.video();
  const std::vector<io::Image> images =
      read_init_frames(job.first().init, clips ? job.blocks * shape().block_frames : 1);
  const at::Tensor clip = from_images(images, codec->picture_channels()).unsqueeze(0);  // (1, C, T, H, W)
  return clips ? clip : clip.squeeze(2);
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
const std::string& Engine::text_hash() const {
  static const std::string none;
  return impl_->encoder ? impl_->encoder->hash() : none;
}
std::string Engine::codec_hash() const {
  return impl_->codec->hash();
}
std::int64_t Engine::block_frames() const {
  return impl_->shape().block_frames;
}

Job Engine::resolve_quickly(const Request& request) const {
  std::optional<InitShape> init;
  if (!request.init.empty()) init = init_shape(request.init);
  Job job = generate::resolve(request, impl_->config, impl_->shape(), init);
  check_dtype(job, impl_->device);
  return job;
}

Job Engine::resolve(const Request& request, const Inputs& inputs) const {
  std::optional<InitShape> init;
  if (inputs.init.defined())
    init = {inputs.init.size(-1), inputs.init.size(-2), inputs.init.dim() == 5 ? inputs.init.size(2) : 1};
  else if (!request.init.empty())
    init = init_shape(request.init);
  Job job = generate::resolve(request, impl_->config, impl_->shape(), init);
  check_dtype(job, impl_->device);
  if (!impl_->encoder) return job;
  const auto remark = [&](const std::string& prompt, const std::string& where) {
    for (const std::string& warning : impl_->encoded(prompt).warnings) job.remarks.push_back(where + warning);
  };
  const std::string* before = nullptr;
  for (const Request& item : job.items) {
    if (before != nullptr && item.subject() == *before) continue;
    remark(item.subject(), job.changes.empty() ? "" : "from frame 0 on: ");
    before = &item.subject();
  }
  for (const Job::Change& change : job.changes)
    remark(change.prompt, detail::concat("from frame ", change.block * block_frames(), " on: "));
  return job;
}

Origin Engine::origin(const Request& item) const {
  return {.request = item,
          .model = name(),
          .model_hash = weights_hash(),
          .text_hash = text_hash(),
          .codec_hash = codec_hash(),
          .init_hash = hash_of(item.init),
          .continue_hash = hash_of(item.continue_from),
          .version = std::string(build_info().version)};
}

void Engine::run(const Job& job, const Limits& limits, const Observer& observer, const Inputs& inputs) {
  const Request& r = job.first();
  const parallel::Ranks& ranks = limits.ranks;
  check(ranks.alone() || !job.stream, "sample: ranks: expected images or clips made whole, got a stream");
  const Plan plan = impl_->plan_of_run(job, limits);
  if (!plan.fits)
    fail(refusal(impl_->work(job), plan,
                 advice(impl_->config, *impl_->codec, r, impl_->work(job), plan, impl_->stored_bytes(r))));
  const Inputs latents = impl_->prepared(job, inputs);
  const std::int64_t total = plan.batches * (job.stream ? job.blocks : 1) * evaluations_of(r);
  std::int64_t done = 0;
  SamplingHooks hooks;
  hooks.before = [&] {
    const bool stop = observer.stop != nullptr && observer.stop->load(std::memory_order_relaxed);
    if (ranks.largest({stop ? 1 : 0})[0] != 0) throw Stopped();  // all at once
  };
  hooks.after = [&] {
    ++done;
    if (observer.on_evaluation) observer.on_evaluation(done, total);
  };
  if (impl_->encoder) {  // all prompts first: a large encoder's memory is free for the network then
    for (const Request& item : job.items) impl_->encoded(item.subject());
    for (const Job::Change& change : job.changes) impl_->encoded(change.prompt);
    if (r.negative_prompt && !r.negative_prompt->empty()) impl_->encoded(*r.negative_prompt);
    impl_->encoder->unload();
  }
  for (std::int64_t i = 0; i < plan.batches; ++i)
    BatchRun(*impl_, impl_->denoiser(r), job, limits.items.first + plan.begin(i),
             plan.begin(i + 1) - plan.begin(i), observer, latents, ranks)
        .run(hooks);
}

Inputs Engine::Impl::prepared(const Job& job, const Inputs& inputs) const {
  const Request& r = job.first();
  const models::NetworkConfig& network = config.network;
  const std::int64_t items = std::ssize(job.items);
  const auto shaped = [&](std::int64_t channels, std::int64_t frames, std::int64_t divided) {
    std::vector<std::int64_t> shape = {items, channels};
    if (network.video()) shape.push_back(frames);
    shape.push_back(*r.height / divided), shape.push_back(*r.width / divided);
    return shape;
  };
  check(job.blocks > 0 || !inputs.noise.defined(), "sample: noise: expected a clip with an end, got none");
  check_given(inputs.noise, "noise",
              shaped(network.channels, job.blocks * network.patch_time, codec->factor()), false);
  at::Tensor pixels = inputs.init.defined() ? inputs.init : read_init(job);
  if (network.video() && pixels.defined() && pixels.dim() == 5)
    pixels = filled_up(pixels, job.blocks * shape().block_frames);
  check_given(pixels, "init", shaped(codec->picture_channels(), job.blocks * shape().block_frames, 1), true);
  check(pixels.defined() || !r.strength, "sample: strength: expected an init to begin with, got none");
  const at::Tensor noise = inputs.noise.defined() ? inputs.noise.to(device, at::kFloat) : inputs.noise;
  if (!pixels.defined()) return {noise, {}};
  pixels = pixels.to(at::kCPU, at::kFloat);
  const at::Tensor latents = network.video() ? codec->encode_clips(pixels) : codec->encode(pixels);
  return {noise, latents.to(device)};
}

std::vector<io::Image> Engine::images(const Job& job, const Limits& limits) {
  std::vector<io::Image> images;
  Observer observer;
  observer.on_frames = [&](Frames&& frames) {
    if (frames.first == 0) images.push_back(std::move(frames.images.front()));
  };
  run(job, limits, observer);
  return images;
}

}  // namespace pom::generate
