// Denoiser of networks that make clips from text: V-DiPoM and its baseline V-DiT. A block of a clip sees
// itself and the blocks before it, of which only the mixers' states are kept (of attention: its keys and
// values). Every evaluation of a block has states of its own, one for each layer: at its evaluation i a block
// sees what those before it were at theirs. Blocks that are evaluated together are rows of one batch: R = B
// or 2B sequences, n blocks of each, K tokens of a block.
#include <algorithm>
#include <optional>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/denoiser_core.h"
#include "pom/models/vdipom.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/training.h"
#include "pom/ops/sequence.h"
#include "pom/ops/state.h"

namespace pom::models {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 32;  // of a stream: more than anyone will see

struct ClipLayer {
  ops::LayerWeights c_pom, pom;             // these two, or
  ops::Dense c_query, c_key_value, c_proj;  // of attention to the text
  ops::Dense qkv, proj;                     // of attention
  ops::Dense up, down;
};

ClipLayer take_clip_layer(WeightReader& weights, const NetworkConfig& config, std::int64_t i) {
  const std::string name = "layers." + std::to_string(i) + ".";
  ClipLayer layer;
  if (config.attention()) {
    layer.c_query = weights.dense(name + "c_attn.q");
    layer.c_key_value = weights.dense(name + "c_attn.kv");
    layer.c_proj = weights.dense(name + "c_attn.proj");
    layer.qkv = weights.dense(name + "attn.qkv");
    layer.proj = weights.dense(name + "attn.proj");
  } else {
    layer.c_pom = weights.mixer(name + "c_pom");
    layer.pom = weights.mixer(name + "pom");
  }
  layer.up = weights.dense(name + "ffw.0");
  layer.down = weights.dense(name + "ffw.2");
  return layer;
}

// What a layer reads of the texts in one evaluation: a row for each sequence, or for each block of it.
struct LayerText {
  at::Tensor context;             // (rows, kD), the mixer's mean over the text; or
  at::Tensor keys, values, mask;  // (rows, L, d) twice and (rows, 1, 1, L), of attention
};

// What a layer keeps of the blocks before, in one evaluation.
struct LayerPast {
  ops::MixerState sums;
  nn::KeyValueCache cache;
};

at::Tensor per_block(const at::Tensor& rows, std::int64_t n) {
  return rows.defined() && n > 1 ? rows.repeat_interleave(n, 0) : rows;
}

class ClipDenoiser final : public Denoiser {
  // The parts of a layer's modulations, in the order of the network's weights.
  enum Part {
    scale_x,
    shift_x,
    scale_text,
    shift_text,
    scale_1,
    shift_1,
    scale_2,
    shift_2,
    gate_text,
    gate_1,
    gate_2,
    parts
  };
  static constexpr int kGates = 3;

 public:
  ClipDenoiser(const NetworkConfig& c, Weights weights, at::ScalarType dtype)
      : config_(c),
        dtype_(dtype),
        time_code_(nn::TimeCode::named(c.time_code, c.time_period)),
        position_form_(nn::position_form(c.position)) {
    check_config(c, "Denoiser: ");
    check(c.video(), "Denoiser: kind: expected vdipom, got ", c.kind);
    check_weights(weights, c, "Denoiser: weights");
    check(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
          "Denoiser: dtype: expected fp32, bf16, fp16 or fp64 for clips, got ", dtype);
    WeightReader reader(weights, dtype);
    if (c.learns_no_text()) no_text_ = reader.take("no_text", arithmetic_of(dtype));
    text_proj_ = reader.dense("text_proj");
    stream_ = text_proj_.weight.options().dtype(arithmetic_of(dtype));
    in_conv_ = reader.dense("in_conv");
    in_conv_.weight = in_conv_.weight.flatten(1);
    for (std::int64_t i = 0; i < c.depth; ++i) layers_.push_back(take_clip_layer(reader, c, i));
    table_.emplace(reader, c, parts, kGates, stream_);
    out_proj_ = reader.dense("out_proj");
  }

  const NetworkConfig& config() const override { return config_; }
  at::ScalarType dtype() const override { return dtype_; }
  at::Device device() const override { return stream_.device(); }
  std::int64_t block() const override { return block_; }

  void plan(const SamplingPlan& plan) override {
    const at::NoGradGuard no_gradients;
    check_plan(plan, config_, "Denoiser");
    check(!config_.needs_length() || plan.blocks >= 1,
          "Denoiser: blocks: expected how many the clip will have, since its time code is relative, got ",
          plan.blocks);
    clip_blocks_ = plan.blocks;
    ranks_ = plan.ranks;
    batch_ = plan.batch, evaluations_ = plan.evaluations;
    rows_ = plan.height / config_.patch, columns_ = plan.width / config_.patch;
    places_ = nn::clip_place_code(rows_, columns_, config_.dim, arithmetic_of(dtype_), position_form_)
                  .to(stream_.device());
    positions_ = at::Tensor();
    table_->plan(evaluations_, {});
    block_ = 0;
    start_states();
    told_ = {};
    texts_.assign(evaluations_.size(), {});
  }

  void tell(const Condition& condition) override {
    const at::NoGradGuard no_gradients;
    check(batch_ > 0, "Denoiser: tell: expected a plan before, got none");
    check(condition.classes.empty(),
          "Denoiser: classes: expected a text, got classes: this network has none");
    check_text(condition.text, condition.mask, "text");
    Condition now{.text = condition.text.detach().to(stream_), .mask = condition.mask.to(stream_.device())};
    if (condition.away_text.defined()) {
      check_text(condition.away_text, condition.away_mask, "away_text");
      check(condition.away_text.dim() == condition.text.dim(),
            "Denoiser: away_text: expected one for each item, or for each block, as text has it");
      now.away_text = condition.away_text.detach().to(stream_);
      now.away_mask = condition.away_mask.to(stream_.device());
    }
    if (same(now.text, told_.text) && same(now.mask, told_.mask) && same(now.away_text, told_.away_text) &&
        same(now.away_mask, told_.away_mask))
      return;  // what was read is still true
    for (at::Tensor* const each : {&now.text, &now.mask, &now.away_text, &now.away_mask})
      if (each->defined()) *each = each->clone(at::MemoryFormat::Contiguous);
    told_ = now;
    texts_.assign(evaluations_.size(), {});
  }

  at::Tensor operator()(const at::Tensor& x, std::int64_t i) override {
    const at::NoGradGuard no_gradients;
    check(told_.text.defined(), "Denoiser: text: expected tell() before the first evaluation");
    check(config_.block_causal() || block_ == 0,
          "Denoiser: x: expected all blocks at once, since they see each other, got more after ", block_);
    check(i >= 0 && i < count(), "Denoiser: evaluation: expected 0 to ", count() - 1, ", got ", i);
    const std::int64_t p = config_.patch, pt = config_.patch_time;
    check(x.dim() == 5 && x.size(2) >= pt && x.size(2) % pt == 0 &&
              x.sizes() == at::IntArrayRef({batch_, config_.channels, x.size(2), rows_ * p, columns_ * p}),
          "Denoiser: x: expected what was planned, (", batch_, ", ", config_.channels, ", a multiple of ", pt,
          ", ", rows_ * p, ", ", columns_ * p, "), got ", x.sizes());
    check(ranks_.alone() || block_ == 0,
          "Denoiser: x: expected all blocks of a clip that is split over ranks at once, got more after ",
          block_);
    const SequenceSplit split{.ranks = ranks_, .whole = x.size(2)};
    const at::Tensor part = sequence_part(x, config_, split);
    return sequence_whole(evaluate(part, i, split), config_, split);
  }

  void advance() override {
    for (std::int64_t i = 0; i < count(); ++i)
      check(!pending_[static_cast<std::size_t>(i)].past.empty(), "Denoiser: advance: expected all ", count(),
            " evaluations of the block, and number ", i, " is missing");
    const std::int64_t n = pending_.front().blocks;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      check(pending_[i].blocks == n, "Denoiser: advance: expected all evaluations of as many blocks");
      past_[i] = std::move(pending_[i].past);
    }
    pending_.assign(evaluations_.size(), {});
    block_ += n;
  }

  std::map<std::string, at::Tensor> state() const override {
    const at::NoGradGuard no_gradients;
    check(config_.block_causal(),
          "Denoiser: state: expected a block-causal network, got one whose blocks all ", "see each other");
    check(told_.text.defined(), "Denoiser: state: expected tell() before");
    check(ranks_.alone(), "Denoiser: state: expected a clip that one rank makes, got one that is split over ",
          ranks_.size());
    const auto last = [](const at::Tensor& t, std::int64_t dims) {  // what the last of the blocks was told
      return t.dim() > dims ? t.select(1, -1).contiguous() : t;
    };
    std::map<std::string, at::Tensor> all{{"block", at::full({}, block_, at::kLong)},
                                          {"text", last(told_.text, 3)},
                                          {"mask", last(told_.mask, 2).to(at::kByte)}};
    if (told_.away_text.defined()) {
      all["away_text"] = last(told_.away_text, 3);
      all["away_mask"] = last(told_.away_mask, 2).to(at::kByte);
    }
    for (std::int64_t i = 0; i < count() && block_ > 0; ++i) {
      const auto stacked = [&](auto&& of) {
        std::vector<at::Tensor> each;
        for (const std::size_t l : layers_with_past())
          each.push_back(of(past_[static_cast<std::size_t>(i)][l]));
        return at::stack(each);
      };
      const std::string number = pom::detail::concat(".", i);
      if (config_.attention()) {
        all["keys" + number] = stacked([](const LayerPast& layer) { return layer.cache.keys(); });
        all["values" + number] = stacked([](const LayerPast& layer) { return layer.cache.values(); });
      } else {
        all["sums" + number] = stacked([](const LayerPast& layer) { return layer.sums.sums(); });
      }
    }
    if (!config_.attention() && block_ > 0) all["counts"] = past_[0][0].sums.counts()[0];
    return all;
  }

  void set_state(const std::map<std::string, at::Tensor>& all) override {
    const at::NoGradGuard no_gradients;
    check(batch_ > 0, "Denoiser: set_state: expected a plan before, got none");
    const auto find = [&](const std::string& name) -> const at::Tensor& {
      const auto found = all.find(name);
      check(found != all.end(), "Denoiser: state: expected a tensor \"", name, "\", got none");
      return found->second;
    };
    const at::Tensor& number = find("block");
    check(number.numel() == 1 && number.scalar_type() == at::kLong, "Denoiser: state: block: expected ",
          "one int64, got ", number.scalar_type(), " of shape ", number.sizes());
    const std::int64_t passed = number.item<std::int64_t>();
    check(passed >= 0 && passed <= kMostBlocks, "Denoiser: state: block: expected 0 to ", kMostBlocks,
          ", got ", passed);
    Condition condition{.text = find("text"), .mask = find("mask").to(at::kBool)};
    if (all.contains("away_text"))
      condition.away_text = find("away_text"), condition.away_mask = find("away_mask").to(at::kBool);
    tell(condition);
    start_states();
    block_ = passed;
    for (std::int64_t i = 0; i < count() && block_ > 0; ++i) {
      const std::string name = pom::detail::concat(".", i);
      if (config_.attention())
        restore_cache(i, find("keys" + name), find("values" + name));
      else
        restore_sums(i, find("sums" + name), find("counts"));
    }
  }

 private:
  std::int64_t rows_of(std::int64_t i) const {
    return evaluations_[static_cast<std::size_t>(i)].both ? 2 * batch_ : batch_;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(evaluations_.size()); }

  // ---- the blocks before ----

  void start_states() {
    past_.clear();
    for (std::int64_t i = 0; i < count(); ++i) {
      std::vector<LayerPast> of_layers;
      for (std::int64_t l = 0; l < config_.depth; ++l)
        of_layers.push_back(no_past(rows_of(i), config_.window_of(l)));
      past_.push_back(std::move(of_layers));
    }
    pending_.assign(evaluations_.size(), {});
  }

  LayerPast no_past(std::int64_t rows, std::int64_t window) const {
    LayerPast nothing{.sums = {}, .cache = nn::KeyValueCache(window)};
    if (!config_.attention())
      nothing.sums = ops::MixerState::start(rows, config_.features(), at::empty({0}, stream_), window);
    return nothing;
  }

  // Those that see other blocks than their own, and so have something to keep.
  std::vector<std::size_t> layers_with_past() const {
    std::vector<std::size_t> found;
    for (std::int64_t l = 0; l < config_.depth; ++l)
      if (!config_.sees_own_alone(l)) found.push_back(static_cast<std::size_t>(l));
    return found;
  }

  // ---- the text ----

  void check_text(const at::Tensor& text, const at::Tensor& mask, const char* name) const {
    check(text.defined() && (text.dim() == 3 || text.dim() == 4) && text.size(0) == batch_ &&
              text.size(-2) >= 1 && text.size(-1) == config_.text_width,
          "Denoiser: ", name, ": expected shape (", batch_, ", L, ", config_.text_width, "), got ",
          text.defined() ? text.sizes() : at::IntArrayRef());
    const at::IntArrayRef shape = text.sizes().slice(0, static_cast<std::size_t>(text.dim() - 1));
    check(mask.defined() && mask.scalar_type() == at::kBool && mask.sizes() == shape,
          "Denoiser: mask: expected bool of shape ", shape, ", got ",
          mask.defined() ? c10::toString(mask.scalar_type()) : "nothing", " of shape ",
          mask.defined() ? mask.sizes() : at::IntArrayRef());
  }

  static bool same(const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.sizes() == b.sizes() && at::equal(a, b);
  }

  const std::vector<LayerText>& texts_of(std::int64_t i) {
    std::vector<LayerText>& now = texts_[static_cast<std::size_t>(i)];
    if (!now.empty()) return now;
    const at::Tensor m = table_->rows(i);
    const nn::TextContext told = mapped(told_.text, told_.mask);
    const nn::TextContext away =
        told_.away_text.defined() ? mapped(told_.away_text, told_.away_mask) : nothing_told();
    for (std::int64_t l = 0; l < config_.depth; ++l) {
      const LayerText with = read(l, told, m);
      now.push_back(rows_of(i) == batch_ ? with : joined(with, read(l, away, m)));
    }
    return now;
  }

  // No text, as a row for all: the learned token, or one that does not count.
  nn::TextContext nothing_told() const {
    const at::TensorOptions keys = told_.mask.options();
    if (no_text_.defined()) return {no_text_.view({1, 1, config_.dim}), at::ones({1, 1}, keys)};
    return {at::zeros({1, 1, config_.dim}, stream_), at::zeros({1, 1}, keys)};
  }

  // Texts of items or of their blocks, a row each, behind the linear map.
  nn::TextContext mapped(const at::Tensor& text, const at::Tensor& mask) const {
    const std::int64_t L = text.size(-2), R = text.numel() / (L * config_.text_width);
    at::Tensor out = at::empty({R * L, config_.dim}, stream_);
    ops::linear_rows(text.view({R * L, -1}), text_proj_, out);
    return with_no_text(out.view({R, L, config_.dim}), mask.view({R, L}), no_text_);
  }

  LayerText read(std::int64_t l, const nn::TextContext& told, const at::Tensor& row) const {
    const ClipLayer& layer = layers_[static_cast<std::size_t>(l)];
    const std::int64_t R = told.tokens.size(0);
    const at::Tensor m = row.expand({R, row.size(1)}).contiguous();
    const ops::Modulation modulation = table_->modulation(m, l, scale_text, shift_text);
    if (config_.attention()) {
      at::Tensor both = at::empty({R, told.tokens.size(1), 2 * config_.dim}, stream_.dtype(dtype_));
      ops::modulated_linear(told.tokens, modulation, layer.c_key_value, both);
      const std::vector<at::Tensor> split = both.chunk(2, -1);
      return {{}, split[0], split[1], told.keys.unsqueeze(1).unsqueeze(1)};
    }
    const at::Tensor sum =
        ops::mixer_summary(norm(told.tokens, modulation), layer.c_pom, config_.order, told.keys);
    return {sum / (told.keys.sum(1, /*keepdim=*/true).to(sum.scalar_type()) + 1e-7), {}, {}, {}};
  }

  // The rows with text, then those that guidance leads away from, which may be all one. Texts become as long
  // as the longer of both; what is added does not count.
  LayerText joined(const LayerText& with, const LayerText& away) const {
    if (!config_.attention())
      return {at::cat({with.context, away.context.expand_as(with.context)}), {}, {}, {}};
    const std::int64_t R = with.keys.size(0), L = std::max(with.keys.size(1), away.keys.size(1));
    const auto longer = [&](const at::Tensor& t) {  // (R or 1, L', d) -> (R, L, d)
      return at::constant_pad_nd(t, {0, 0, 0, L - t.size(1)}).expand({R, L, config_.dim});
    };
    const auto longer_mask = [&](const at::Tensor& t) {
      return at::constant_pad_nd(t, {0, L - t.size(3)}).expand({R, 1, 1, L});
    };
    return {{},
            at::cat({longer(with.keys), longer(away.keys)}),
            at::cat({longer(with.values), longer(away.values)}),
            at::cat({longer_mask(with.mask), longer_mask(away.mask)})};
  }

  // ---- one evaluation ----

  // x: this rank's blocks of the clip, or all of them.
  at::Tensor evaluate(const at::Tensor& x, std::int64_t i, const SequenceSplit& split) {
    const std::int64_t pt = config_.patch_time, n = x.size(2) / pt, R = rows_of(i);
    first_here_ = split.split() ? sequence_share(config_, split).first / pt : 0;
    tokens_split_ = split_tokens("Denoiser", x, config_, split);
    const std::int64_t all = split.split() ? split.whole / pt : n;  // blocks, on whatever rank
    check(!config_.needs_length() || block_ + all <= clip_blocks_, "Denoiser: x: expected no more than the ",
          clip_blocks_, " blocks that were planned, got ", block_ + all);
    check(told_.text.dim() == 3 || told_.text.size(1) == all, "Denoiser: text: expected one for each of ",
          all, " blocks, got ", told_.text.dim() == 4 ? told_.text.size(1) : 0);
    const at::Tensor m = table_->rows(i).expand({R * n, table_->width()}).contiguous();
    const std::vector<LayerText>& told = texts_of(i);
    at::Tensor tokens = embed(x, n, R > batch_);
    std::vector<LayerPast> next;
    for (std::int64_t l = 0; l < config_.depth; ++l) {
      next.push_back(past_[static_cast<std::size_t>(i)][static_cast<std::size_t>(l)]);
      run_layer(l, tokens, m, told[static_cast<std::size_t>(l)], next.back(), n);
    }
    pending_[static_cast<std::size_t>(i)] = {std::move(next), all};
    at::Tensor pixels = at::empty({R * n, tokens.size(1), config_.values()}, stream_);
    ops::modulated_linear(tokens, table_->output(m), out_proj_, pixels);
    return clip_unpatchify(pixels.view({R, n * tokens.size(1), config_.values()}), x.sizes(), config_);
  }

  // (n K, d), of the tokens of the n blocks to come.
  const at::Tensor& positions(std::int64_t n) {
    const std::int64_t first = block_ + first_here_;
    if (!positions_.defined() || placed_block_ != first || positions_.size(0) != n * places_.size(0)) {
      const at::Tensor numbers = at::arange(first, first + n, at::kLong);
      const at::Tensor times = nn::clip_time_code(numbers, config_.dim, time_code_.of_clip(clip_blocks_),
                                                  arithmetic_of(dtype_), position_form_)
                                   .to(stream_.device());
      positions_ = (places_.unsqueeze(0) + times.unsqueeze(1)).flatten(0, 1);
      placed_block_ = first;
    }
    return positions_;
  }

  at::Tensor embed(const at::Tensor& x, std::int64_t n, bool both) {
    const std::int64_t K = rows_ * columns_;
    at::Tensor tokens = at::empty({batch_ * n * K, config_.dim}, stream_);
    ops::linear_rows(clip_patchify(x.to(stream_), config_).view({batch_ * n * K, -1}), in_conv_, tokens);
    const at::Tensor placed = tokens.view({batch_, n * K, config_.dim}) + positions(n);
    return (both ? at::cat({placed, placed}) : placed).view({-1, K, config_.dim});
  }

  at::Tensor norm(const at::Tensor& x, const ops::Modulation& modulation) const {
    return ops::modulated_norm(x, modulation.scale, modulation.shift, modulation.eps).to(dtype_);
  }

  void run_layer(std::int64_t l, at::Tensor& x, const at::Tensor& m, const LayerText& told, LayerPast& past,
                 std::int64_t n) const {
    const ClipLayer& layer = layers_[static_cast<std::size_t>(l)];
    const ops::Modulation reading = table_->modulation(m, l, scale_x, shift_x);
    const ops::Modulation mixing = table_->modulation(m, l, scale_1, shift_1);
    const at::Tensor text_gate = table_->part(m, l, gate_text), gate = table_->part(m, l, gate_1);
    const std::int64_t repeats = told_.text.dim() == 4 ? 1 : n;
    if (config_.attention()) {
      attend_text(layer, x, reading, told, text_gate, repeats);
      attend_clip(layer, x, mixing, past.cache, gate, n);
    } else {
      const at::Tensor context = context_here(told.context, x.size(0) / n, n);
      x = ops::gated_add(x, ops::mixer_select(norm(x, reading), context, layer.c_pom), text_gate, 0);
      x = ops::gated_add(x, mix(norm(x, mixing), past.sums, layer.pom, n), gate, 0);
    }
    ops::add_feed_forward(x, table_->modulation(m, l, scale_2, shift_2), layer.up, layer.down,
                          table_->part(m, l, gate_2));
  }

  // (R n, kD) of texts of R items or of all their blocks.
  at::Tensor context_here(const at::Tensor& context, std::int64_t R, std::int64_t n) const {
    if (told_.text.dim() == 3) return per_block(context, n);
    return context.unflatten(0, {R, -1}).narrow(1, first_here_, n).flatten(0, 1);
  }

  // y (R n, K, d): a block sees itself and those before it, or all blocks each other.
  at::Tensor mix(const at::Tensor& y, ops::MixerState& past, const ops::LayerWeights& weights,
                 std::int64_t n) const {
    if (tokens_split_.split()) return mix_split(y, past.window(), weights, n);
    if (n == 1 && config_.block_causal()) return ops::step(y, past, weights, config_.order);
    const std::int64_t R = y.size(0) / n, K = y.size(1);
    const at::Tensor sums = ops::mixer_summary(y, weights, config_.order).view({R, n, config_.features()});
    if (!config_.block_causal()) {
      const at::Tensor mean = sums.sum(1) / static_cast<double>(n * K);
      return ops::mixer_select(y, per_block(mean, n), weights);
    }
    const at::Tensor tokens = at::full({R}, K, stream_.dtype(at::kLong));
    std::vector<at::Tensor> means;
    for (std::int64_t b = 0; b < n; ++b) {
      past.add(sums.select(1, b), tokens);
      means.push_back(past.mean());
    }
    return ops::mixer_select(y, at::stack(means, 1).flatten(0, 1), weights);
  }

  // The same of a clip whose other blocks are with other ranks.
  at::Tensor mix_split(const at::Tensor& y, std::int64_t window, const ops::LayerWeights& weights,
                       std::int64_t n) const {
    const std::int64_t R = y.size(0) / n, K = y.size(1);
    const ops::Mask mask = config_.block_causal() ? ops::Mask::block_causal(K, window) : ops::Mask::none();
    const at::Tensor whole = y.view({R, n * K, config_.dim});
    return ops::mixer_layer(whole, whole, weights, config_.order, mask, tokens_split_).view_as(y);
  }

  at::Tensor projected(const at::Tensor& x, const ops::Modulation& modulation,
                       const ops::Dense& dense) const {
    at::Tensor y = at::empty({x.size(0), x.size(1), dense.weight.size(0)}, stream_.dtype(dtype_));
    ops::modulated_linear(x, modulation, dense, y);
    return y;
  }

  // add_linear takes the stream's dtype on the CPU.
  at::Tensor ready(const at::Tensor& y) const {
    return y.is_cuda() ? y.contiguous() : y.to(arithmetic_of(dtype_)).contiguous();
  }

  void attend_text(const ClipLayer& layer, at::Tensor& x, const ops::Modulation& modulation,
                   const LayerText& told, const at::Tensor& gate, std::int64_t repeats) const {
    const at::Tensor q = projected(x, modulation, layer.c_query);
    const at::Tensor answer = nn::attend(q, per_block(told.keys, repeats), per_block(told.values, repeats),
                                         config_.heads, per_block(told.mask, repeats));
    ops::add_linear(x, ready(answer), layer.c_proj, gate);
  }

  void attend_clip(const ClipLayer& layer, at::Tensor& x, const ops::Modulation& modulation,
                   nn::KeyValueCache& cache, const at::Tensor& gate, std::int64_t n) const {
    const at::Tensor all = projected(x, modulation, layer.qkv);  // (R n, K, 3 d)
    const std::int64_t R = x.size(0) / n, K = x.size(1);
    if (!config_.block_causal()) {
      const std::vector<at::Tensor> qkv = all.view({R, n * K, -1}).chunk(3, -1);
      const at::Tensor answer = nn::attend(qkv[0], qkv[1], qkv[2], config_.heads);
      return ops::add_linear(x, ready(answer).view(x.sizes()), layer.proj, gate);
    }
    std::vector<at::Tensor> answers;
    for (const at::Tensor& block : all.view({R, n, K, -1}).unbind(1)) {
      const std::vector<at::Tensor> qkv = block.chunk(3, -1);
      cache.append(qkv[1], qkv[2]);
      answers.push_back(nn::attend(qkv[0], cache.keys(), cache.values(), config_.heads));
    }
    ops::add_linear(x, ready(at::stack(answers, 1)).view(x.sizes()), layer.proj, gate);
  }

  void restore_sums(std::int64_t i, const at::Tensor& sums, const at::Tensor& counts) {
    const std::vector<std::size_t> which = layers_with_past();
    const std::int64_t kept = config_.window ? std::min(config_.window, block_) : 1,
                       depth = std::ssize(which);
    check(sums.scalar_type() == arithmetic_of(dtype_) &&
              sums.sizes() == at::IntArrayRef({depth, rows_of(i), kept, config_.features()}),
          "Denoiser: state: sums.", i, ": expected ", arithmetic_of(dtype_), " of shape (", depth, ", ",
          rows_of(i), ", ", kept, ", ", config_.features(), "), got ", sums.scalar_type(), " of shape ",
          sums.sizes());
    check(counts.scalar_type() == at::kLong && counts.sizes() == at::IntArrayRef({kept}),
          "Denoiser: state: counts: expected int64 of shape (", kept, "), got ", counts.scalar_type(),
          " of shape ", counts.sizes());
    const std::int64_t each = (config_.window ? 1 : block_) * rows_ * columns_;  // tokens behind a sum
    check(counts.eq(each).all().item<bool>(), "Denoiser: state: counts: expected ", each,
          " tokens behind every sum, got others");
    for (std::int64_t l = 0; l < depth; ++l)
      past_[static_cast<std::size_t>(i)][which[static_cast<std::size_t>(l)]].sums =
          ops::MixerState::from_tensors(
              {{"sums", sums[l].to(stream_).clone()},
               {"counts", counts.to(stream_.device()).expand({rows_of(i), kept}).clone()},
               {"window", at::full({}, config_.window, at::kLong)}});
  }

  void restore_cache(std::int64_t i, const at::Tensor& keys, const at::Tensor& values) {
    const std::vector<std::size_t> which = layers_with_past();
    const std::int64_t kept = config_.window ? std::min(config_.window, block_) : block_,
                       n = rows_ * columns_;
    const std::int64_t depth = std::ssize(which);
    for (const at::Tensor& each : {keys, values})
      check(each.scalar_type() == dtype_ &&
                each.sizes() == at::IntArrayRef({depth, rows_of(i), kept * n, config_.dim}),
            "Denoiser: state: keys.", i, ", values.", i, ": expected ", dtype_, " of shape (", depth, ", ",
            rows_of(i), ", ", kept * n, ", ", config_.dim, "), got ", each.scalar_type(), " of shape ",
            each.sizes());
    for (std::int64_t l = 0; l < depth; ++l)
      for (std::int64_t b = 0; b < kept; ++b)
        past_[static_cast<std::size_t>(i)][which[static_cast<std::size_t>(l)]].cache.append(
            keys[l].narrow(1, b * n, n).to(stream_.device()),
            values[l].narrow(1, b * n, n).to(stream_.device()));
  }

  // What an evaluation of the blocks to come has left.
  struct Pending {
    std::vector<LayerPast> past = {};
    std::int64_t blocks = 0;
  };

  NetworkConfig config_;
  at::ScalarType dtype_;
  nn::TimeCode time_code_;
  nn::PositionForm position_form_;
  at::TensorOptions stream_;
  at::Tensor no_text_;  // (d); undefined where a mask of zeros stands for no text
  ops::Dense text_proj_, in_conv_, out_proj_;
  std::vector<ClipLayer> layers_;
  std::optional<ModulationTable> table_;

  std::int64_t batch_ = 0, rows_ = 0, columns_ = 0, block_ = 0;
  parallel::Ranks ranks_;        // who has blocks of the clip
  std::int64_t first_here_ = 0;  // how many of them are with ranks before this one
  ops::SplitTokens tokens_split_;
  std::int64_t clip_blocks_ = 0;  // all that will come, where the time code is relative
  std::vector<Evaluation> evaluations_;
  at::Tensor places_;     // (K, d)
  at::Tensor positions_;  // the same with the times of the blocks from placed_block_ on
  std::int64_t placed_block_ = 0;
  Condition told_;
  std::vector<std::vector<LayerText>> texts_;  // of each evaluation and layer; empty where not yet read
  std::vector<std::vector<LayerPast>> past_;   // likewise, before the blocks to come
  std::vector<Pending> pending_;               // and after them
};

}  // namespace

std::unique_ptr<Denoiser> make_clip_denoiser(const NetworkConfig& config, Weights weights,
                                             at::ScalarType dtype) {
  return std::make_unique<ClipDenoiser>(config, std::move(weights), dtype);
}

}  // namespace pom::models
