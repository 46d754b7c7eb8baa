#include "pom/data/encode.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/codecs/autoencoder_codec.h"
#include "pom/codecs/moments.h"
#include "pom/codecs/t5.h"
#include "pom/data/encode_folder.h"
#include "pom/data/mirror.h"
#include "pom/data/ordered_work.h"
#include "pom/data/resample.h"

namespace pom::data {
namespace {

// An item as a worker leaves it.
struct Decoded {
  std::int64_t index = 0;
  EncodeItem item = {};
  std::string broken = {};  // why
};

void check_encode_options(const EncodeOptions& o) {
  check(!o.output.empty(), "encode: output: expected a folder, got nothing");
  check(!o.vae.empty(), "encode: vae: expected the folder of an autoencoder, got nothing");
  check(o.text.empty() || o.format.clips(), "encode: text: expected it with clips alone");
  check(!o.mirror || !o.format.clips(), "encode: mirror: expected it with pictures alone");
  check(o.format.clips() || o.format.crop != "homm-clips",
        "encode: crop: homm-clips: expected it with clips");
  check(o.format.width >= 1 && o.format.height >= 1, "encode: size: expected at least 1x1, got ",
        o.format.width, "x", o.format.height);
  check_crop(o.format.crop, o.format.width, o.format.height);
  check(o.format.fps > 0, "encode: fps: expected above 0, got ", o.format.fps);
  check(o.store == "moments" || o.store == "latent", "encode: store: expected moments or latent, got ",
        o.store);
  check(o.stored_dtype == "fp16" || o.stored_dtype == "fp32",
        "encode: stored dtype: expected fp16 or fp32, got ", o.stored_dtype);
  check(o.seed >= 0 && o.seed < (1 << 23), "encode: seed: expected 0 to ", (1 << 23) - 1, ", got ", o.seed);
  check(o.batch >= 1, "encode: batch: expected at least 1, got ", o.batch);
  check(o.workers >= 0, "encode: workers: expected at least 0, got ", o.workers);
  check(o.parts >= 1 && o.part >= 0 && o.part < o.parts, "encode: part: expected 0/", o.parts, " to ",
        o.parts - 1, "/", o.parts, ", got ", o.part, "/", o.parts);
  const std::int64_t copies = o.mirror ? 2 : 1;
  check(o.per_shard >= 1 && o.per_shard % copies == 0, "encode: samples in a shard: expected ",
        copies == 2 ? "an even number, as mirrored images follow," : "at least 1,", " got ", o.per_shard);
}

std::int64_t worker_count(const EncodeOptions& options) {
  if (options.workers > 0) return options.workers;
  return std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 32);
}

std::string digits_of(std::int64_t index) {
  const std::string digits = std::to_string(index);
  return std::string(digits.size() < 9 ? 9 - digits.size() : 0, '0') + digits;
}

ShardArray array_of(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return {type == at::kHalf    ? io::NpyType::half
          : type == at::kFloat ? io::NpyType::single
                               : io::NpyType::boolean,
          tensor.sizes().vec(),
          {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}};
}

const char* name_of_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf       ? "fp16"
         : dtype == at::kBFloat16 ? "bf16"
         : dtype == at::kDouble   ? "fp64"
                                  : "fp32";
}

}  // namespace

struct EncodeRun::Impl {
  EncodeOptions options;
  std::unique_ptr<EncodeSource> source;
  std::unique_ptr<codecs::MomentEncoder> encoder;
  std::unique_ptr<codecs::T5> text;
  std::int64_t copies, shard_items;    // samples of an item, items of a shard
  std::int64_t all_shards;             // of all parts
  ShardRange range;                    // of this one
  std::int64_t first_item, last_item;  // likewise

  explicit Impl(EncodeOptions wanted);
  void open_networks();
  std::vector<std::int64_t> stored_shape() const;
  ShardSetInfo info(bool with_hashes) const;
  EncodeRecord record() const;
  std::int64_t sample_bytes() const;
  std::int64_t items_before(std::int64_t shards) const;
  Decoded decode(std::int64_t index) const;
  EncodeResult run(const EncodeWatcher& watcher);
  bool write_shards(ShardWriter& writer, const EncodeWatcher& watcher);
  at::Tensor pixels_of(const std::vector<Decoded>& batch) const;
  std::vector<ShardSample> samples_of(const std::vector<Decoded>& batch) const;
  void write_batch(std::vector<Decoded>& batch, ShardWriter& writer, const EncodeWatcher& watcher);
  void add_text(std::vector<ShardSample>& samples, std::vector<at::Tensor>& kept,
                const EncodeWatcher& watcher) const;
};

EncodeRun::Impl::Impl(EncodeOptions wanted) : options(std::move(wanted)) {
  check_encode_options(options);
  source = open_encode_source(options.source, options.format.clips());
  open_networks();
  copies = options.mirror ? 2 : 1;
  shard_items = options.per_shard / copies;
  all_shards = (source->size() + shard_items - 1) / shard_items;
  range.first = all_shards * options.part / options.parts;
  range.most = all_shards * (options.part + 1) / options.parts - range.first;
  first_item = items_before(range.first);
  last_item = items_before(range.first + range.most);
}

void EncodeRun::Impl::open_networks() {
  codecs::CodecOptions how;
  how.device = options.device, how.dtype = options.dtype, how.chunks = options.chunks;
  encoder = codecs::open_moment_encoder(options.vae, how);
  const EncodeFormat& format = options.format;
  check(encoder->of_clips() == format.clips(), "encode: vae: ", options.vae, ": expected an autoencoder of ",
        format.clips() ? "clips (AutoencoderKLCogVideoX)" : "pictures (AutoencoderKL)", ", got ",
        encoder->kind());
  const std::int64_t factor = encoder->factor();
  check(format.width % factor == 0 && format.height % factor == 0, "encode: size: expected multiples of ",
        factor, ", the autoencoder's factor, got ", format.width, "x", format.height);
  encoder->latent_frames(format.frames);  // for its error alone
  if (options.text.empty()) return;
  codecs::TextConfig config;
  config.kind = "t5", config.limit = options.text_limit;
  text = std::make_unique<codecs::T5>(config, io::OpenFolder(options.text, "encode: text"), options.dtype);
  text->to(options.device);
}

std::int64_t EncodeRun::Impl::items_before(std::int64_t shards) const {
  return std::min(source->size(), shards * shard_items);
}

// (2 z, h, w) of moments of pictures.
std::vector<std::int64_t> EncodeRun::Impl::stored_shape() const {
  const EncodeFormat& format = options.format;
  std::vector<std::int64_t> shape = {encoder->channels() * (options.store == "moments" ? 2 : 1)};
  if (format.clips()) shape.push_back(encoder->latent_frames(format.frames));
  shape.push_back(format.height / encoder->factor());
  shape.push_back(format.width / encoder->factor());
  return shape;
}

ShardSetInfo EncodeRun::Impl::info(bool with_hashes) const {
  const EncodeFormat& format = options.format;
  const bool plain = format.clips() && options.chunks == "alone";  // the authors' latents are unscaled
  ShardSetInfo info;
  info.kind = format.clips() ? "clips" : "pictures";
  info.stored = options.store;
  info.codec = encoder->kind();
  info.scale = options.scale.value_or(plain ? 1 : encoder->scale());
  info.shift = options.shift.value_or(plain ? 0 : encoder->shift());
  info.channels = encoder->channels();
  info.size = {format.width, format.height};
  info.frames = format.frames;
  info.fps = format.clips() ? format.fps : 0;
  info.crop = format.crop;
  info.mirror = options.mirror;
  info.classes = source->classes();
  if (text) info.text_tokens = text->limit(), info.text_width = text->width();
  if (with_hashes) info.codec_hash = encoder->hash();
  if (with_hashes && text) info.text_hash = text->hash();
  return info;
}

EncodeRecord EncodeRun::Impl::record() const {
  return {.items = source->size(),
          .list = source->list_hash(),
          .per_shard = options.per_shard,
          .parts = options.parts,
          .seed = options.seed,
          .stored_dtype = options.stored_dtype,
          .dtype = name_of_dtype(options.dtype),
          .device = options.device.is_cpu() ? "cpu" : "cuda",
          .chunks = options.format.clips() ? options.chunks : "",
          .batch = options.device.is_cpu() ? 0 : options.batch};
}

// Of a usual one in a tar.
std::int64_t EncodeRun::Impl::sample_bytes() const {
  const auto zeros = [](const std::vector<std::int64_t>& shape, at::ScalarType type) {
    return at::empty(shape, type).zero_();
  };
  const at::Tensor latent = zeros(stored_shape(), options.stored_dtype == "fp16" ? at::kHalf : at::kFloat);
  at::Tensor states, mask;
  ShardSample sample{.key = digits_of(0), .latent = array_of(latent)};
  sample.source = source->name_of(0);
  if (source->classes().empty())
    sample.caption = std::string(80, 'x');
  else
    sample.label = 0;
  if (text) {
    states = zeros({text->limit(), text->width()}, at::kHalf), mask = zeros({text->limit()}, at::kBool);
    sample.text = array_of(states), sample.mask = array_of(mask);
  }
  return std::ssize(shard_sample_bytes(sample, info(false)));
}

Decoded EncodeRun::Impl::decode(std::int64_t index) const {
  Decoded decoded{.index = index};
  try {
    decoded.item = source->read(index, options.format);
  } catch (const Error& error) {
    decoded.broken = error.what();
  }
  return decoded;
}

// (B, 3, H, W) or (B, 3, T, H, W) in [-1, 1], where the autoencoder runs; mirrored ones follow.
at::Tensor EncodeRun::Impl::pixels_of(const std::vector<Decoded>& batch) const {
  const EncodeFormat& format = options.format;
  std::vector<std::int64_t> shape = {std::ssize(batch) * copies, 3};
  if (format.clips()) shape.push_back(format.frames);
  shape.insert(shape.end(), {format.height, format.width});
  at::Tensor bytes = at::empty(shape, at::kByte);
  auto* out = bytes.data_ptr<std::uint8_t>();
  for (const Decoded& decoded : batch)
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      const std::vector<std::uint8_t>& pixels = decoded.item.pixels;
      std::memcpy(out, pixels.data(), pixels.size());
      if (copy == 1) mirror({out, pixels.size()}, format.width);
      out += pixels.size();
    }
  return bytes.to(options.device).to(at::kFloat).div_(127.5).sub_(1);
}

// All but their arrays.
std::vector<ShardSample> EncodeRun::Impl::samples_of(const std::vector<Decoded>& batch) const {
  std::vector<ShardSample> samples;
  for (const Decoded& decoded : batch)
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      ShardSample& sample = samples.emplace_back();
      sample.key = digits_of(decoded.index) + (copy == 1 ? "m" : "");
      sample.label = decoded.item.label;
      sample.caption = decoded.item.caption;
      sample.source = source->name_of(decoded.index);
      sample.mirrored = copy == 1;
    }
  return samples;
}

// One caption at a time on a CPU, where nothing is gained by more and sums may depend on it.
void EncodeRun::Impl::add_text(std::vector<ShardSample>& samples, std::vector<at::Tensor>& kept,
                               const EncodeWatcher& watcher) const {
  const std::size_t at_once = options.device.is_cpu() ? 1 : samples.size();
  for (std::size_t first = 0; first < samples.size(); first += at_once) {
    std::vector<std::string> prompts;
    for (std::size_t i = first; i < first + at_once; ++i) prompts.push_back(samples[i].caption.value_or(""));
    const codecs::EncodedText made = text->encode(prompts);
    if (watcher.on_remark)
      for (const std::string& warning : made.warnings) watcher.on_remark(warning);
    const at::Tensor states = made.tokens.to(at::kHalf).cpu().contiguous();
    const at::Tensor mask = made.mask.cpu().contiguous();
    kept.insert(kept.end(), {states, mask});
    for (std::size_t i = 0; i < at_once; ++i) {
      samples[first + i].text = array_of(states[static_cast<std::int64_t>(i)]);
      samples[first + i].mask = array_of(mask[static_cast<std::int64_t>(i)]);
    }
  }
}

void EncodeRun::Impl::write_batch(std::vector<Decoded>& batch, ShardWriter& writer,
                                  const EncodeWatcher& watcher) {
  if (batch.empty()) return;
  at::Tensor made = encoder->moments(pixels_of(batch));
  std::vector<ShardSample> samples = samples_of(batch);
  if (options.store == "latent") {
    std::vector<std::uint64_t> seeds;
    for (const Decoded& decoded : batch)
      for (std::int64_t copy = 0; copy < copies; ++copy)
        seeds.push_back((static_cast<std::uint64_t>(options.seed) << 40) +
                        static_cast<std::uint64_t>(2 * decoded.index + copy));
    made = codecs::drawn_latents(made, seeds);
  }
  made = made.to(options.stored_dtype == "fp16" ? at::kHalf : at::kFloat).cpu().contiguous();
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i].latent = array_of(made[static_cast<std::int64_t>(i)]);
  std::vector<at::Tensor> kept;  // the arrays' memory
  if (text) add_text(samples, kept, watcher);
  if (watcher.on_remark)
    for (const std::string& remark : encoder->take_remarks()) watcher.on_remark(remark);
  for (const ShardSample& sample : samples) writer.add(sample);
  batch.clear();
}

// False where it was asked to stop.
bool EncodeRun::Impl::write_shards(ShardWriter& writer, const EncodeWatcher& watcher) {
  std::int64_t index = items_before(range.first + writer.shards());
  const std::int64_t workers = worker_count(options),
                     batch_items = std::max<std::int64_t>(1, options.batch / copies);
  OrderedWork<Decoded> work(index, last_item, workers, 2 * workers + batch_items,
                            [this](std::int64_t i) { return decode(i); });
  std::vector<Decoded> batch;
  for (std::int64_t shard = range.first + writer.shards(); shard < range.first + range.most; ++shard) {
    for (const std::int64_t end = items_before(shard + 1); index < end; ++index) {
      if (watcher.stop && watcher.stop()) return false;
      Decoded decoded = work.next();
      if (decoded.broken.empty())
        batch.push_back(std::move(decoded));
      else if (watcher.on_broken)
        watcher.on_broken(source->name_of(index), decoded.broken);
      if (std::ssize(batch) == batch_items) write_batch(batch, writer, watcher);
      if (watcher.on_items) watcher.on_items(index + 1 - first_item);
    }
    write_batch(batch, writer, watcher);
    writer.end_shard();
  }
  return true;
}

EncodeResult EncodeRun::Impl::run(const EncodeWatcher& watcher) {
  EncodeFolder folder(options.output, options.part, options.parts, range);
  const ShardSetInfo made = info(true);
  folder.begin(record(), made, options.overwrite);
  ShardWriter writer(folder.path(), EncodeFolder::shards, made, 0, folder.index(), range);
  EncodeResult result;
  result.before = writer.finished();
  const std::int64_t done = items_before(range.first + writer.shards()) - first_item;
  if (watcher.on_items) watcher.on_items(done);
  if (!writer.finished()) result.stopped = !write_shards(writer, watcher);
  result.samples = writer.samples(), result.shards = writer.shards();
  for (const std::int64_t bytes : writer.info().shard_bytes) result.bytes += bytes;
  result.broken = items_before(range.first + writer.shards()) - first_item - result.samples / copies;
  if (result.stopped) return result;
  check(options.parts > 1 || result.samples > 0,
        "encode: expected at least one item that can be read, got none of ", source->size());
  writer.finish();
  result.whole = folder.join();
  return result;
}

EncodeRun::EncodeRun(EncodeOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

EncodeRun::~EncodeRun() = default;

EncodePlan EncodeRun::plan() const {
  const Impl& run = *impl_;
  EncodePlan plan;
  plan.items = run.last_item - run.first_item;
  plan.samples = plan.items * run.copies;
  plan.shards = run.range.most;
  plan.all_items = run.source->size(), plan.all_shards = run.all_shards;
  // The index of a shard, and the end of a tar.
  const std::int64_t index = 512 + 512 * ((run.options.per_shard * 8 + 16 + 511) / 512) + 1024;
  plan.bytes = plan.samples * run.sample_bytes() + plan.shards * index;
  return plan;
}

EncodeResult EncodeRun::run(const EncodeWatcher& watcher) {
  return impl_->run(watcher);
}

}  // namespace pom::data
