// A batch of a job, from noise to frames: what it shows is told to the network, blocks are sampled, decoded
// and given to the observer.
#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/generate/classes.h"
#include "pom/generate/engine_impl.h"
#include "pom/generate/images.h"
#include "pom/generate/tensor_file.h"
#include "pom/io/clip.h"

namespace pom::generate {
namespace {

std::int64_t class_number(const std::string& name, const ModelConfig& config) {
  return parse_classes(name, config.classes, config.network.classes).at(0);
}

// The rows of a tensor that has one for each item of a job, or one for all of them.
at::Tensor rows_of_batch(const at::Tensor& all, std::int64_t first, std::int64_t count) {
  if (!all.defined() || all.size(0) > 1) return all.defined() ? all.narrow(0, first, count) : all;
  std::vector<std::int64_t> shape = all.sizes().vec();
  shape[0] = count;
  return all.expand(shape);
}

}  // namespace

BatchRun::BatchRun(Engine::Impl& engine, models::Denoiser& network, const Job& job, std::int64_t first,
                   std::int64_t count, const Observer& observer, const Inputs& inputs,
                   const parallel::Ranks& ranks)
    : engine_(engine),
      job_(job),
      first_(first),
      count_(count),
      observer_(observer),
      ranks_(ranks),
      inputs_{rows_of_batch(inputs.noise, first, count), rows_of_batch(inputs.init, first, count)},
      sampler_(network, engine.sampling(job, items(), ranks)) {
  if (engine_.config.network.video()) decoder_ = engine_.codec->clip_decoder();
  for (const Request& item : items()) prompts_.push_back(item.subject());
}

std::span<const Request> BatchRun::items() const {
  return std::span(job_.items).subspan(static_cast<std::size_t>(first_), static_cast<std::size_t>(count_));
}

// ---- what the items show ----

models::Condition BatchRun::class_condition() const {
  models::Condition condition;
  for (const Request& item : items()) {
    condition.classes.push_back(class_number(*item.class_name, engine_.config));
    if (item.negative_class)
      condition.away_classes.push_back(class_number(*item.negative_class, engine_.config));
  }
  return condition;
}

// Of as many prompts as rows are wanted. Each is encoded alone: the last bit of a product may depend on how
// many rows it has, and what an item shows must not depend on those beside it.
models::Condition BatchRun::condition(std::span<const std::string> prompts) const {
  std::map<std::string, codecs::EncodedText> encoded;
  std::int64_t longest = 1;
  for (const std::string& prompt : prompts) {
    if (!encoded.contains(prompt)) encoded.emplace(prompt, engine_.encoded(prompt));
    longest = std::max(longest, encoded.at(prompt).tokens.size(1));
  }
  std::vector<at::Tensor> tokens, masks;
  for (const std::string& prompt : prompts) {
    const codecs::EncodedText& one = encoded.at(prompt);
    const std::int64_t missing = longest - one.tokens.size(1);
    tokens.push_back(at::constant_pad_nd(one.tokens, {0, 0, 0, missing}));
    masks.push_back(at::constant_pad_nd(one.mask, {0, missing}));
  }
  models::Condition condition{.text = at::cat(tokens), .mask = at::cat(masks)};
  if (const std::optional<std::string>& away = job_.first().negative_prompt; away && !away->empty()) {
    const codecs::EncodedText led = engine_.encoded(*away);
    const auto all = static_cast<std::int64_t>(prompts.size());
    condition.away_text = led.tokens.expand({all, -1, -1});
    condition.away_mask = led.mask.expand({all, -1});
  }
  return condition;
}

// Whether it is for an item of this run.
bool BatchRun::apply(const Job::Change& change) {
  if (change.item < 0) {
    prompts_.assign(prompts_.size(), change.prompt);
    return true;
  }
  if (change.item < first_ || change.item >= first_ + count_) return false;
  prompts_[static_cast<std::size_t>(change.item - first_)] = change.prompt;
  return true;
}

// What the blocks from `block` on show, of this run; nothing is told where nothing changes.
void BatchRun::tell_blocks(std::int64_t block, std::int64_t blocks) {
  if (engine_.encoder == nullptr) return sampler_.tell(class_condition());
  std::vector<std::string> prompts;
  bool changes = std::exchange(told_, false) || (block == 0 && !job_.keeps_text);
  for (std::int64_t b = block; b < block + blocks; ++b) {
    for (const Job::Change& change : job_.changes)
      if (change.block == b) changes |= apply(change);
    prompts.insert(prompts.end(), prompts_.begin(), prompts_.end());
  }
  if (!changes) return;
  if (job_.changes.empty() || blocks == 1) return sampler_.tell(condition(prompts_));
  models::Condition all = condition(prompts);  // a row for each block of each item, blocks first
  for (at::Tensor* const rows : {&all.text, &all.mask, &all.away_text, &all.away_mask})
    if (rows->defined()) *rows = rows->unflatten(0, {blocks, count_}).transpose(0, 1).contiguous();
  sampler_.tell(all);
}

// ---- latents ----

BlockStart BatchRun::start(std::int64_t block, std::int64_t blocks) const {
  const auto part = [&](const at::Tensor& all) {
    if (!all.defined() || all.dim() == 4) return all;
    const std::int64_t pt = engine_.config.network.patch_time;
    return all.narrow(2, block * pt, blocks * pt);
  };
  return {part(inputs_.noise), part(inputs_.init)};
}

at::Tensor BatchRun::make(std::int64_t block, std::int64_t blocks, const SamplingHooks& hooks) {
  const BlockStart from = start(block, blocks);
  if (!samples(job_.first())) return from.init;
  tell_blocks(block, blocks);
  SamplingHooks own = hooks;
  if (observer_.left && !job_.clip)
    own.left = [this](std::int64_t row) { return observer_.left(first_ + row); };
  if (observer_.preview_every > 0 && observer_.on_preview)
    own.on_step = [&](const diffusion::StepInfo& info) { preview(info, block); };
  return sampler_.next(blocks, own, from);
}

void BatchRun::begin() {
  if (job_.continue_from.empty()) return;
  const StreamModel model{engine_.files.weights.hash(), engine_.encoder->hash(), engine_.encoder->limit()};
  StateNotes notes = restore_stream(job_.continue_from, sampler_, model);
  std::erase_if(notes.tensors, [](const auto& each) { return each.first.starts_with(state_file_prefix); });
  decoder_->set_state(notes.tensors);
}

void BatchRun::tell(const std::string& prompt) {
  prompts_.assign(prompts_.size(), prompt);
  told_ = true;
}

void BatchRun::run(const SamplingHooks& hooks) {
  const at::NoGradGuard no_gradients;
  begin();
  try {
    run_blocks(hooks);
  } catch (const Stopped&) {
    save();
    throw;
  } catch (const io::ClosedPipe&) {
    save();
    throw;
  }
  save();
}

void BatchRun::run_blocks(const SamplingHooks& hooks) {
  const std::int64_t at_once = job_.stream ? 1 : job_.blocks;
  for (std::int64_t block = 0; job_.blocks == 0 || block < job_.blocks; block += at_once)
    pass(block, at_once, hooks);
}

void BatchRun::pass(std::int64_t block, std::int64_t blocks, const SamplingHooks& hooks) {
  const at::NoGradGuard no_gradients;
  const at::Tensor latents = make(block, blocks, hooks).to(at::kCPU);
  if (ranks_.alone() && !job_.stream && observer_.stop != nullptr &&
      observer_.stop->load(std::memory_order_relaxed))
    throw Stopped();
  passed_ = block + blocks;
  if (!ranks_.first()) return;
  if (observer_.on_latents) observer_.on_latents(first_, latents);
  if (latents.dim() == 4) return give(latents, block);
  const std::int64_t pt = engine_.config.network.patch_time;
  for (std::int64_t b = 0; b < blocks; ++b) give(latents.narrow(2, b * pt, pt), block + b);
}

void BatchRun::save() const {
  if (!job_.save_state.empty()) save_to(job_.save_state);
}

bool BatchRun::save_to(const std::filesystem::path& path, const StateNotes& more) const {
  if (sampler_.block() == 0) return false;
  Request request = job_.first();
  request.prompt.clear(), request.prompt_at.clear(), request.frames.reset(), request.fps.reset();
  request.stream = false, request.continue_from.clear();
  StateNotes notes = more;
  notes.texts[state_note::request] = request_json(request);
  notes.texts[state_note::prompt] = prompts_.front();
  notes.texts[state_note::fps] = number_text(job_.fps);
  for (const auto& [name, tensor] : decoder_->state()) notes.tensors[name] = tensor;
  save_stream(path, sampler_,
              {engine_.files.weights.hash(), engine_.encoder->hash(), engine_.encoder->limit()}, notes);
  return true;
}

// ---- frames ----

// decoded (B, C, H, W), or of a block (B, C, t, H, W), cut where the clip ends.
std::vector<Frames> BatchRun::frames_of(const at::Tensor& decoded, std::int64_t block,
                                        std::span<const std::int64_t> rows) const {
  const at::Tensor values = decoded.dim() == 4 ? decoded.unsqueeze(2) : decoded;
  const std::int64_t begin = block * engine_.shape().block_frames;
  const std::int64_t left = job_.frames == 0 ? values.size(2) : job_.frames - begin;
  std::vector<Frames> all;
  for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
    const std::int64_t b = rows[static_cast<std::size_t>(i)];
    const Request& item = items()[static_cast<std::size_t>(b)];
    const auto name = [&](std::int64_t frame) {
      if (job_.clip) return detail::concat("frame ", begin + frame, " of the clip");
      return item.class_name ? "the image of class " + *item.class_name : std::string("the image");
    };
    const at::Tensor wanted = values[i].transpose(0, 1).slice(0, 0, left);
    all.push_back({.item = first_ + b,
                   .first = begin,
                   .images = to_images(wanted, job_.clip, item, name),
                   .last = job_.frames != 0 && left <= values.size(2)});
  }
  return all;
}

std::vector<std::int64_t> BatchRun::wanted() const {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < count_; ++row)
    if (job_.clip || !observer_.left || !observer_.left(first_ + row)) rows.push_back(row);
  return rows;
}

void BatchRun::give(const at::Tensor& all, std::int64_t block) {
  const std::vector<std::int64_t> rows = wanted();
  if (rows.empty()) return;
  at::Tensor latents = all;
  if (std::ssize(rows) < count_) latents = all.index_select(0, at::tensor(rows));
  engine_.make_room(job_.first(), std::ssize(rows));
  const at::Tensor decoded = decoder_ ? decoder_->next(latents) : engine_.codec->decode(latents);
  for (const std::string& remark : engine_.codec->take_remarks())
    if (observer_.on_remark) observer_.on_remark(remark);
  if (observer_.on_frames)
    for (Frames& frames : frames_of(decoded, block, rows)) observer_.on_frames(std::move(frames));
  if (observer_.on_block) observer_.on_block();
}

// What is decoded now is not what the decoder will remember.
void BatchRun::preview(const diffusion::StepInfo& info, std::int64_t block) {
  const std::int64_t step = (job_.stream ? block : 0) * info.steps + info.step;
  if (step % observer_.preview_every != 0) return;
  const std::vector<std::int64_t> rows = wanted();
  if (rows.empty()) return;
  at::Tensor x0 = info.x0.to(at::kCPU);
  if (std::ssize(rows) < count_) x0 = x0.index_select(0, at::tensor(rows));
  if (!decoder_) return observer_.on_preview(step, frames_of(engine_.codec->decode(x0), block, rows));
  const std::unique_ptr<codecs::ClipDecoder> decoder = engine_.codec->clip_decoder();
  decoder->set_state(decoder_->state());
  observer_.on_preview(step, frames_of(decoder->next(x0), block, rows));
}

}  // namespace pom::generate
