// Denoiser of networks that make clips from text: V-DiPoM and its baseline V-DiT. A block of a clip sees
// itself and the blocks before it, of which only the mixers' states are kept (of attention: its keys and
// values). Every evaluation of a block has states of its own: at its evaluation i a block sees what those
// before it were at theirs (clip_past.h). Blocks that are evaluated together are rows of one batch: R = B or
// 2B sequences, n blocks of each, K tokens of a block.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/clip_past.h"
#include "pom/models/denoiser_core.h"
#include "pom/models/vdipom.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/training.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/sequence.h"

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

// What the layers read of the texts in one evaluation: a row for each sequence, or for each block of it.
struct TextKeys {                 // of attention
  at::Tensor keys, values, mask;  // (rows, L, d) twice and (rows, 1, 1, L)
};
struct TextRead {
  at::Tensor means;            // (depth, rows, kD), of mixers; or
  std::vector<TextKeys> keys;  // of each layer
  bool defined() const { return means.defined() || !keys.empty(); }
};

// What an evaluation reads and leaves, beside the patches: with a graph these are buffers.
struct Evaluated {
  at::Tensor modulation;  // (1, width): the time alone conditions
  TextRead text;
  at::Tensor positions;                // (n K, d)
  at::Tensor tokens_seen, tokens_own;  // (n): 1e-7 + of how many tokens a block sees the sums, and its own
  ClipPast past, left;
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
    std::vector<std::int64_t> with_past = layers_with_past(c);
    place_.assign(static_cast<std::size_t>(c.depth), -1);
    for (std::size_t i = 0; i < with_past.size(); ++i)
      place_[static_cast<std::size_t>(with_past[i])] = static_cast<std::int64_t>(i);
    if (!c.attention()) graphs_ = ops::cuda::graphs_on(stream_.device());
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
    if (plan.batch != batch_ || plan.height / config_.patch != rows_ ||
        plan.width / config_.patch != columns_)
      drop_buffers();
    clip_blocks_ = plan.blocks;
    ranks_ = plan.ranks;
    batch_ = plan.batch, evaluations_ = plan.evaluations;
    rows_ = plan.height / config_.patch, columns_ = plan.width / config_.patch;
    places_ = nn::clip_place_code(rows_, columns_, config_.dim, arithmetic_of(dtype_), position_form_)
                  .to(stream_.device());
    positions_ = tokens_seen_ = at::Tensor();
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
      check(pending_[static_cast<std::size_t>(i)].past.defined(), "Denoiser: advance: expected all ", count(),
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
    for (std::int64_t i = 0; i < count() && block_ > 0; ++i)
      add_state(all, i, past_[static_cast<std::size_t>(i)], config_, block_, rows_ * columns_);
    return all;
  }

  void set_state(const std::map<std::string, at::Tensor>& all) override {
    const at::NoGradGuard no_gradients;
    check(batch_ > 0, "Denoiser: set_state: expected a plan before, got none");
    const at::Tensor& number = state_tensor(all, "block");
    check(number.numel() == 1 && number.scalar_type() == at::kLong, "Denoiser: state: block: expected ",
          "one int64, got ", number.scalar_type(), " of shape ", number.sizes());
    const std::int64_t passed = number.item<std::int64_t>();
    check(passed >= 0 && passed <= kMostBlocks, "Denoiser: state: block: expected 0 to ", kMostBlocks,
          ", got ", passed);
    Condition condition{.text = state_tensor(all, "text"), .mask = state_tensor(all, "mask").to(at::kBool)};
    if (all.contains("away_text")) {
      condition.away_text = state_tensor(all, "away_text");
      condition.away_mask = state_tensor(all, "away_mask").to(at::kBool);
    }
    tell(condition);
    start_states();
    block_ = passed;
    for (std::int64_t i = 0; i < count() && block_ > 0; ++i)
      past_[static_cast<std::size_t>(i)] =
          past_of_state(all, i, config_, rows_of(i), block_, rows_ * columns_, stream_, dtype_);
  }

 private:
  std::int64_t rows_of(std::int64_t i) const {
    return evaluations_[static_cast<std::size_t>(i)].both ? 2 * batch_ : batch_;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(evaluations_.size()); }

  // ---- the blocks before ----

  void start_states() {
    past_.clear();
    std::map<std::int64_t, ClipPast> nothing;  // of so many rows: only read, so one serves all
    for (std::int64_t i = 0; i < count(); ++i)
      past_.push_back(nothing.try_emplace(rows_of(i), config_, rows_of(i), stream_).first->second);
    pending_.assign(evaluations_.size(), {});
  }

  // Sums for each layer, for the next n blocks. A GPU's stream always has as many, and so one graph.
  std::int64_t sums_kept(std::int64_t n) const {
    if (config_.window == 0) return 1;
    return graphs_ && n == 1 ? config_.window : std::min(config_.window, block_ + n);
  }

  // (n), of the next n blocks.
  at::Tensor tokens_seen(std::int64_t n) const {
    std::vector<double> seen;
    for (std::int64_t b = block_ + 1; b <= block_ + n; ++b) {
      const std::int64_t blocks = config_.window > 0 ? std::min(config_.window, b) : b;
      seen.push_back(1e-7 + static_cast<double>(blocks * rows_ * columns_));
    }
    return at::tensor(seen, at::kDouble).to(stream_);
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

  const TextRead& texts_of(std::int64_t i) {
    TextRead& now = texts_[static_cast<std::size_t>(i)];
    if (now.defined()) return now;
    const at::Tensor m = table_->rows(i);
    const nn::TextContext told = mapped(told_.text, told_.mask);
    nn::TextContext away;
    if (rows_of(i) > batch_)
      away = told_.away_text.defined() ? mapped(told_.away_text, told_.away_mask) : nothing_told();
    std::vector<at::Tensor> means;
    for (std::int64_t l = 0; l < config_.depth; ++l) {
      const bool both = rows_of(i) > batch_;
      if (config_.attention()) {
        const TextKeys with = keys_of(l, told, m);
        now.keys.push_back(both ? joined(with, keys_of(l, away, m)) : with);
      } else {
        const at::Tensor with = means_of(l, told, m);
        means.push_back(both ? at::cat({with, means_of(l, away, m).expand_as(with)}) : with);
      }
    }
    if (!means.empty()) now.means = at::stack(means);
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

  ops::Modulation reading_of(std::int64_t l, const at::Tensor& row, std::int64_t rows) const {
    return table_->modulation(row.expand({rows, row.size(1)}), l, scale_text, shift_text);
  }
  // (R, kD), what a mixer's queries see of the texts.
  at::Tensor means_of(std::int64_t l, const nn::TextContext& told, const at::Tensor& row) const {
    const at::Tensor sum =
        ops::mixer_summary(norm(told.tokens, reading_of(l, row, told.tokens.size(0))),
                           layers_[static_cast<std::size_t>(l)].c_pom, config_.order, told.keys);
    return sum / (told.keys.sum(1, /*keepdim=*/true).to(sum.scalar_type()) + 1e-7);
  }
  TextKeys keys_of(std::int64_t l, const nn::TextContext& told, const at::Tensor& row) const {
    const std::int64_t R = told.tokens.size(0);
    at::Tensor both = at::empty({R, told.tokens.size(1), 2 * config_.dim}, stream_.dtype(dtype_));
    ops::modulated_linear(told.tokens, reading_of(l, row, R),
                          layers_[static_cast<std::size_t>(l)].c_key_value, both);
    const std::vector<at::Tensor> split = both.chunk(2, -1);
    return {split[0], split[1], told.keys.unsqueeze(1).unsqueeze(1)};
  }

  // The rows with text, then those that guidance leads away from, which may be all one. Texts become as long
  // as the longer of both; what is added does not count.
  TextKeys joined(const TextKeys& with, const TextKeys& away) const {
    const std::int64_t R = with.keys.size(0), L = std::max(with.keys.size(1), away.keys.size(1));
    const auto longer = [&](const at::Tensor& t) {  // (R or 1, L', d) -> (R, L, d)
      return at::constant_pad_nd(t, {0, 0, 0, L - t.size(1)}).expand({R, L, config_.dim});
    };
    const auto longer_mask = [&](const at::Tensor& t) {
      return at::constant_pad_nd(t, {0, L - t.size(3)}).expand({R, 1, 1, L});
    };
    return {at::cat({longer(with.keys), longer(away.keys)}),
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
    make_buffers(n);
    patches_.copy_(clip_patchify(x.to(stream_), config_).view_as(patches_));
    Evaluated now{table_->rows(i),
                  texts_of(i),
                  positions(n),
                  seen_of(n),
                  tokens_own_,
                  past_[static_cast<std::size_t>(i)],
                  {}};
    now.past = now.past.padded(sums_kept(n));
    now.left = now.past.next();
    if (graphs_ && !split.split())
      run_graph(now, R, n);
    else
      run_network(now, R, n);
    pending_[static_cast<std::size_t>(i)] = {std::move(now.left), all};
    const at::Tensor pixels = pixels_.narrow(0, 0, R * n).view({R, n * rows_ * columns_, config_.values()});
    const at::Tensor out = clip_unpatchify(pixels, x.sizes(), config_);
    return out.is_alias_of(pixels_) ? out.clone() : out;  // patches of one pixel lie as they are
  }

  void drop_buffers() {
    if (graphs_) graphs_->drop();
    patches_ = tokens_ = pixels_ = at::Tensor();
    buffers_ = {};
  }

  // What evaluations of n blocks read and write, for as long as there are as many.
  void make_buffers(std::int64_t n) {
    const std::int64_t K = rows_ * columns_;
    const bool both = std::ranges::any_of(evaluations_, &Evaluation::both);
    const std::int64_t rows = (both ? 2 : 1) * batch_ * n;
    if (patches_.defined() && patches_.size(1) == n * K && tokens_.size(0) == rows) return;
    drop_buffers();
    patches_ = at::empty({batch_, n * K, config_.values()}, stream_);
    tokens_ = at::empty({rows, K, config_.dim}, stream_);
    pixels_ = at::empty({rows, K, config_.values()}, stream_);
    tokens_own_ = at::full({n}, 1e-7 + static_cast<double>(K), stream_);
  }

  // The same work on buffers that stay where they are, which is captured once for each number of rows and
  // then launched for every evaluation of every block.
  void run_graph(Evaluated& now, std::int64_t R, std::int64_t n) {
    const bool both = R > batch_;
    Evaluated& buffers = buffers_[both];
    if (!buffers.modulation.defined() || buffers.text.means.sizes() != now.text.means.sizes() ||
        buffers.past.sums.sizes() != now.past.sums.sizes()) {
      if (buffers.modulation.defined()) graphs_->drop();
      buffers = {at::empty_like(now.modulation),
                 {at::empty_like(now.text.means), {}},
                 at::empty_like(now.positions),
                 at::empty_like(now.tokens_seen),
                 now.tokens_own,
                 now.past.next(),
                 now.past.next()};
    }
    buffers.modulation.copy_(now.modulation), buffers.text.means.copy_(now.text.means);
    buffers.positions.copy_(now.positions), buffers.tokens_seen.copy_(now.tokens_seen);
    buffers.past.sums.copy_(now.past.sums);
    graphs_->run(2 * static_cast<int>(ops::path()) + both, [&] { run_network(buffers, R, n); });
    now.left.sums.copy_(buffers.left.sums);
  }

  // From the patches to the pixels, and to what is left for the blocks to come.
  void run_network(Evaluated& e, std::int64_t R, std::int64_t n) {
    at::Tensor tokens = tokens_.narrow(0, 0, R * n), pixels = pixels_.narrow(0, 0, R * n);
    embed(e.positions, R > batch_, n);
    for (std::int64_t l = 0; l < config_.depth; ++l) {
      if (config_.attention())
        attend_layer(l, tokens, e, n);
      else
        mix_layer(l, tokens, e, n);
      ops::add_feed_forward(tokens, part_modulation(e, l, scale_2, shift_2, R * n), layer_of(l).up,
                            layer_of(l).down, gate_of(e, l, gate_2, R * n));
    }
    ops::modulated_linear(tokens, table_->output(e.modulation.expand({R * n, table_->width()})), out_proj_,
                          pixels);
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

  const at::Tensor& seen_of(std::int64_t n) {
    if (!tokens_seen_.defined() || seen_block_ != block_ || tokens_seen_.size(0) != n)
      tokens_seen_ = tokens_seen(n), seen_block_ = block_;
    return tokens_seen_;
  }

  void embed(const at::Tensor& positions, bool both, std::int64_t n) {
    const std::int64_t K = rows_ * columns_, d = config_.dim;
    at::Tensor first = tokens_.narrow(0, 0, batch_ * n), flat = first.view({batch_ * n * K, d});
    ops::linear_rows(patches_.view({batch_ * n * K, -1}), in_conv_, flat);
    first.view({batch_, n * K, d}).add_(positions);
    if (both) tokens_.narrow(0, batch_ * n, batch_ * n).copy_(first);
  }

  at::Tensor norm(const at::Tensor& x, const ops::Modulation& modulation) const {
    return ops::modulated_norm(x, modulation.scale.contiguous(), modulation.shift.contiguous(),
                               modulation.eps)
        .to(dtype_);
  }

  const ClipLayer& layer_of(std::int64_t l) const { return layers_[static_cast<std::size_t>(l)]; }
  ops::Modulation part_modulation(const Evaluated& e, std::int64_t l, int scale, int shift,
                                  std::int64_t rows) const {
    return table_->modulation(e.modulation.expand({rows, table_->width()}), l, scale, shift);
  }
  at::Tensor gate_of(const Evaluated& e, std::int64_t l, int which, std::int64_t rows) const {
    return table_->part(e.modulation, l, which).expand({rows, config_.dim});
  }

  // x (R n, K, d). Rows that share a text, and have one time anyway, are one sequence for it.
  void mix_layer(std::int64_t l, at::Tensor& x, Evaluated& e, std::int64_t n) const {
    const ClipLayer& layer = layer_of(l);
    const at::Tensor told = context_here(e.text.means[l], x.size(0) / n, n);
    const std::int64_t texts = told.size(0), rows = x.size(0);
    at::Tensor reading = x.view({texts, -1, config_.dim});
    ops::add_selection(reading, part_modulation(e, l, scale_x, shift_x, texts), told, layer.c_pom,
                       gate_of(e, l, gate_text, texts));
    const ops::Modulation mixing = part_modulation(e, l, scale_1, shift_1, rows);
    const at::Tensor gate = gate_of(e, l, gate_1, rows);
    if (tokens_split_.split()) {
      const at::Tensor mixed = mix_split(norm(x, mixing), config_.window_of(l), layer.pom, n);
      x.copy_(ops::gated_add(x, mixed, gate.contiguous(), 0));
      return;
    }
    if (config_.block_causal())
      return ops::add_mixer(x, mixing, layer.pom, config_.order, gate, seen_by(l, e));
    at::Tensor whole = x.view({rows / n, -1, config_.dim});  // blocks that all see each other
    ops::add_mixer(whole, part_modulation(e, l, scale_1, shift_1, rows / n), layer.pom, config_.order,
                   gate_of(e, l, gate_1, rows / n));
  }

  // Of the blocks that are evaluated.
  ops::PastSums seen_by(std::int64_t l, const Evaluated& e) const {
    const std::int64_t place = place_[static_cast<std::size_t>(l)];
    if (place < 0) return {.window = 1, .past = {}, .left = {}, .tokens_seen = e.tokens_own};
    return {.window = config_.window > 0 ? e.past.sums.size(2) : 0,
            .past = e.past.sums[place],
            .left = e.left.sums[place],
            .tokens_seen = e.tokens_seen};
  }

  // (R n, kD), of texts of R items or of all their blocks: a row for each of those that are here, if they
  // differ.
  at::Tensor context_here(const at::Tensor& context, std::int64_t R, std::int64_t n) const {
    if (told_.text.dim() == 3) return context;
    return context.unflatten(0, {R, -1}).narrow(1, first_here_, n).flatten(0, 1);
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

  void attend_layer(std::int64_t l, at::Tensor& x, Evaluated& e, std::int64_t n) const {
    const ClipLayer& layer = layer_of(l);
    const std::int64_t rows = x.size(0), repeats = told_.text.dim() == 4 ? 1 : n;
    const TextKeys& told = e.text.keys[static_cast<std::size_t>(l)];
    const at::Tensor q = projected(x, part_modulation(e, l, scale_x, shift_x, rows), layer.c_query);
    const at::Tensor answer = nn::attend(q, per_block(told.keys, repeats), per_block(told.values, repeats),
                                         config_.heads, per_block(told.mask, repeats));
    ops::add_linear(x, ready(answer), layer.c_proj, gate_of(e, l, gate_text, rows));
    attend_clip(layer, x, part_modulation(e, l, scale_1, shift_1, rows),
                e.left.caches[static_cast<std::size_t>(l)], gate_of(e, l, gate_1, rows), n);
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

  // What an evaluation of the blocks to come has left.
  struct Pending {
    ClipPast past = {};
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
  std::vector<TextRead> texts_;      // of each evaluation; undefined where not yet read
  std::vector<ClipPast> past_;       // likewise, before the blocks to come
  std::vector<Pending> pending_;     // and after them
  std::vector<std::int64_t> place_;  // of each layer among those with a past, or -1
  at::Tensor tokens_seen_;           // of the blocks from seen_block_ on
  at::Tensor tokens_own_;
  std::int64_t seen_block_ = 0;

  at::Tensor patches_, tokens_, pixels_;  // (B, n K, values), (B n or 2B n, K, d), (… , K, values)
  std::array<Evaluated, 2> buffers_;      // of B rows and of 2B, with graphs
  std::unique_ptr<ops::cuda::GraphedEvaluations> graphs_;  // of mixers on CUDA; goes before the buffers
};

}  // namespace

std::unique_ptr<Denoiser> make_clip_denoiser(const NetworkConfig& config, Weights weights,
                                             at::ScalarType dtype) {
  return std::make_unique<ClipDenoiser>(config, std::move(weights), dtype);
}

}  // namespace pom::models
