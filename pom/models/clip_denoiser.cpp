// Denoiser of networks that make clips from text: V-DiPoM and its baseline V-DiT. A block of a clip sees
// itself and the blocks before it, of which only the mixers' states are kept (of attention: its keys and
// values). Every evaluation of a block has states of its own: at its evaluation i a block sees what those
// before it were at theirs (clip_past.h). Blocks that are evaluated together are rows of one batch: R = B or
// 2B sequences, n blocks of each, K tokens of a block.
//
// In fp8 the scale of each layer's hidden values is measured before the first block, by its first evaluation
// in bf16, and holds for the whole clip: the evaluation itself follows in fp8 like all others. So it is the
// same whether blocks are made together or one by one, and a state carries it to those that go on from it.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/clip_parts.h"
#include "pom/models/clip_past.h"
#include "pom/models/clip_text.h"
#include "pom/models/denoiser_core.h"
#include "pom/models/measured_scales.h"
#include "pom/models/vdipom.h"
#include "pom/nn/clip_attention.h"
#include "pom/nn/embeddings.h"
#include "pom/nn/key_values.h"
#include "pom/ops/block/training.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/sequence.h"

namespace pom::models {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 32;  // of a stream: more than anyone will see
// Attention that sees more keys than these takes longer than launching what is around it, and kernels that
// are given its length do better than one that finds it on the device.
constexpr std::int64_t kMostKeysOfGraph = 8192;

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

// What an evaluation reads and leaves, beside the patches: with a graph these are buffers.
struct Evaluated {
  at::Tensor modulation;  // (1, width): the time alone conditions
  TextRead text;
  at::Tensor positions;                // (n K, d)
  at::Tensor tokens_seen, tokens_own;  // (n): 1e-7 + of how many tokens a block sees the sums, and its own
  ClipPast past, left;
  // Of attention, its sequences among those of all evaluations: the first, or with a graph their rows.
  std::int64_t first_sequence = 0;
  nn::KeyValues::Places places = {};
};

// From the patches to the pixels, for as long as there are as many blocks.
struct Workspace {
  at::Tensor patches, tokens, pixels;  // (B, n K, values), (B n or 2B n, K, d), (..., K, values)
  at::Tensor tokens_own;               // (n)
};

class ClipDenoiser final : public Denoiser, private ClipPart {
 public:
  ClipDenoiser(const NetworkConfig& c, Weights weights, at::ScalarType dtype)
      : config_(c),
        dtype_(dtype),
        stored_(stored_as(dtype)),
        time_code_(nn::TimeCode::named(c.time_code, c.time_period)),
        position_form_(nn::position_form(c.position)) {
    check_config(c, "Denoiser: ");
    check(c.video(), "Denoiser: kind: expected vdipom, got ", c.kind);
    check_weights(weights, c, "Denoiser: weights");
    check(
        dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf || fp8(),
        "Denoiser: dtype: expected fp32, bf16, fp16, fp64 or fp8, got ", dtype);
    if (fp8()) {
      const std::string reason = ops::fp8_refusal(weights.at("text_proj.weight").device());
      check(reason.empty(), "Denoiser: dtype: ", reason);
    }
    WeightReader reader(weights, stored_);
    texts_.emplace(c, reader, dtype);
    stream_ = texts_->stream();
    in_conv_ = reader.dense("in_conv");
    in_conv_.weight = in_conv_.weight.flatten(1);
    for (std::int64_t i = 0; i < c.depth; ++i) {
      layers_.push_back(take_clip_layer(reader, c, i));
      texts_->add({layers_.back().c_pom, layers_.back().c_key_value});
    }
    table_.emplace(reader, c, parts, gates, stream_);
    out_proj_ = reader.dense("out_proj");
    std::vector<std::int64_t> with_past = layers_with_past(c);
    place_.assign(static_cast<std::size_t>(c.depth), -1);
    for (std::size_t i = 0; i < with_past.size(); ++i)
      place_[static_cast<std::size_t>(with_past[i])] = static_cast<std::int64_t>(i);
    if (fp8()) scales_.emplace(c.depth, stream_);
    graphs_ = ops::cuda::graphs_on(stream_.device());
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
    check(!fp8() || plan.ranks.alone(), "Denoiser: dtype: fp8 has no kernels for a clip split over ranks");
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
    texts_->plan(batch_, evaluations_);
    make_keys();
    start_states();
  }

  void tell(const Condition& condition) override {
    const at::NoGradGuard no_gradients;
    check(batch_ > 0, "Denoiser: tell: expected a plan before, got none");
    texts_->tell(condition);
  }

  at::Tensor operator()(const at::Tensor& x, std::int64_t i) override {
    const at::NoGradGuard no_gradients;
    check(told().text.defined(), "Denoiser: text: expected tell() before the first evaluation");
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
    if (scales_ && !scales_->known()) measure(part, i);
    return sequence_whole(evaluate(part, i, split), config_, split);
  }

  void advance() override {
    for (std::int64_t i = 0; i < count(); ++i)
      check(pending_[static_cast<std::size_t>(i)].blocks > 0, "Denoiser: advance: expected all ", count(),
            " evaluations of the block, and number ", i, " is missing");
    const std::int64_t n = pending_.front().blocks;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      check(pending_[i].blocks == n, "Denoiser: advance: expected all evaluations of as many blocks");
      past_[i] = std::move(pending_[i].past);
    }
    pending_.assign(evaluations_.size(), {});
    if (keys_) keys_->advance(n);
    block_ += n;
  }

  std::map<std::string, at::Tensor> state() const override {
    const at::NoGradGuard no_gradients;
    check(config_.block_causal(),
          "Denoiser: state: expected a block-causal network, got one whose blocks all ", "see each other");
    check(told().text.defined(), "Denoiser: state: expected tell() before");
    check(ranks_.alone(), "Denoiser: state: expected a clip that one rank makes, got one that is split over ",
          ranks_.size());
    const auto last = [](const at::Tensor& t, std::int64_t dims) {  // what the last of the blocks was told
      return t.dim() > dims ? t.select(1, -1).contiguous() : t;
    };
    std::map<std::string, at::Tensor> all{{"block", at::full({}, block_, at::kLong)},
                                          {"text", last(told().text, 3)},
                                          {"mask", last(told().mask, 2).to(at::kByte)}};
    if (told().away_text.defined()) {
      all["away_text"] = last(told().away_text, 3);
      all["away_mask"] = last(told().away_mask, 2).to(at::kByte);
    }
    if (scales_ && scales_->known()) all[kScales] = scales_->values().clone();
    const std::int64_t kept = kept_after(config_, block_);
    for (std::int64_t i = 0; i < count() && block_ > 0; ++i)
      if (keys_)
        add_state(all, i,
                  {keys_->last_keys(first_sequence(i), rows_of(i), kept),
                   keys_->last_values(first_sequence(i), rows_of(i), kept)});
      else
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
    if (scales_ && all.contains(kScales)) scales_->set(all.at(kScales));
    if (passed > 0) keys_ ? set_keys(all, passed) : set_past(all, passed);
    block_ = passed;
  }

 private:
  std::int64_t rows_of(std::int64_t i) const {
    return evaluations_[static_cast<std::size_t>(i)].both ? 2 * batch_ : batch_;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(evaluations_.size()); }
  const Condition& told() const { return texts_->told(); }
  bool fp8() const { return dtype_ == at::kFloat8_e4m3fn; }

  // ---- the blocks before ----

  void start_states() {
    past_.clear();
    std::map<std::int64_t, ClipPast> nothing;  // of so many rows: only read, so one serves all
    for (std::int64_t i = 0; i < count(); ++i)
      past_.push_back(nothing.try_emplace(rows_of(i), config_, rows_of(i), stream_).first->second);
    pending_.assign(evaluations_.size(), {});
    if (keys_) keys_->clear();
    if (scales_) scales_->forget();
    placed_ = {};
  }

  void set_past(const std::map<std::string, at::Tensor>& all, std::int64_t passed) {
    for (std::int64_t i = 0; i < count(); ++i)
      past_[static_cast<std::size_t>(i)] =
          past_of_state(all, i, config_, rows_of(i), passed, rows_ * columns_, stream_);
  }

  // Keys and values of all evaluations are sequences of one memory.
  void make_keys() {
    if (!config_.attention() || !config_.block_causal()) return;
    const nn::KeyValues::Sizes sizes{.layers = std::ssize(layers_with_past(config_)),
                                     .sequences = first_sequence(count()),
                                     .tokens = rows_ * columns_,
                                     .width = config_.dim,
                                     .window = config_.window,
                                     .blocks = clip_blocks_};
    if (!keys_ || keys_->sizes() != sizes) keys_.emplace(sizes, stream_.dtype(stored_));  // else graphs go on
  }
  std::int64_t first_sequence(std::int64_t i) const {
    std::int64_t first = 0;
    for (std::int64_t j = 0; j < i; ++j) first += rows_of(j);
    return first;
  }
  void make_room(std::int64_t n) {
    if (!keys_->make_room(n)) return;
    if (graphs_) graphs_->drop();  // which know where it was
    buffers_ = {}, placed_ = {};
  }
  void set_keys(const std::map<std::string, at::Tensor>& all, std::int64_t passed) {
    const std::int64_t kept = kept_after(config_, passed);
    std::vector<StoredKeys> stored;
    for (std::int64_t i = 0; i < count(); ++i)
      stored.push_back(keys_of_state(all, i, config_, rows_of(i), passed, rows_ * columns_, stored_));
    make_room(kept);
    for (std::int64_t i = 0; i < count(); ++i)
      for (std::int64_t l = 0; l < std::ssize(layers_with_past(config_)); ++l)
        keys_->write(l, first_sequence(i), stored[static_cast<std::size_t>(i)].keys[l],
                     stored[static_cast<std::size_t>(i)].values[l]);
    keys_->advance(kept);
  }
  // Of the first rows of all sequences, for the next n blocks.
  const nn::KeyValues::Places& places(std::int64_t n) {
    if (!placed_.written.defined() || placed_keys_ != std::pair{block_, n}) {
      std::int64_t most = 0;
      for (std::int64_t i = 0; i < count(); ++i) most = std::max(most, rows_of(i));
      placed_ = keys_->places(most, n), placed_keys_ = {block_, n};
    }
    return placed_;
  }
  nn::KeyValues::Places first_places(std::int64_t R, std::int64_t n) {
    const nn::KeyValues::Places& all = places(n);
    return {all.written.narrow(0, 0, R * n * rows_ * columns_),
            {all.seen.queries.narrow(0, 0, R * n + 1), all.seen.first.narrow(0, 0, R * n + 1),
             all.seen.rows.narrow(0, 0, R * n), all.seen.most}};
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

  // ---- one evaluation ----

  // x: this rank's blocks of the clip, or all of them.
  at::Tensor evaluate(const at::Tensor& x, std::int64_t i, const SequenceSplit& split) {
    const std::int64_t pt = config_.patch_time, n = x.size(2) / pt, R = rows_of(i);
    first_here_ = split.split() ? sequence_share(config_, split).first / pt : 0;
    tokens_split_ = split_tokens("Denoiser", x, config_, split);
    const std::int64_t all = split.split() ? split.whole / pt : n;  // blocks, on whatever rank
    check(!config_.needs_length() || block_ + all <= clip_blocks_, "Denoiser: x: expected no more than the ",
          clip_blocks_, " blocks that were planned, got ", block_ + all);
    check(!texts_->of_blocks() || told().text.size(1) == all, "Denoiser: text: expected one for each of ",
          all, " blocks, got ", texts_->of_blocks() ? told().text.size(1) : 0);
    make_buffers(n);
    if (keys_) make_room(n);
    put_patches(x, workspace_);
    Evaluated now = prepared(i, n, workspace_);
    if (!split.split() && graphed(n))
      run_graph(now, R, n);
    else
      run_network(workspace_, now, R, n);
    pending_[static_cast<std::size_t>(i)] = {std::move(now.left), all};
    const at::Tensor& made = workspace_.pixels;
    const at::Tensor pixels = made.narrow(0, 0, R * n).view({R, n * rows_ * columns_, config_.values()});
    const at::Tensor out = clip_unpatchify(pixels, x.sizes(), config_);
    return out.is_alias_of(made) ? out.clone() : out;  // patches of one pixel lie as they are
  }

  Evaluated prepared(std::int64_t i, std::int64_t n, const Workspace& workspace) {
    Evaluated now{table_->rows(i),      texts_->read(i, *table_),           positions(n), seen_of(n),
                  workspace.tokens_own, past_[static_cast<std::size_t>(i)], {},           first_sequence(i)};
    now.past = now.past.padded(sums_kept(n));
    now.left = now.past.next();
    return now;
  }

  void put_patches(const at::Tensor& x, Workspace& workspace) const {
    workspace.patches.copy_(clip_patchify(x.to(stream_), config_).view_as(workspace.patches));
  }

  // The first block alone where blocks come one after another: of a stream there are no others yet, and a
  // whole clip is to be the same.
  void measure(const at::Tensor& x, std::int64_t i) {
    const std::int64_t pt = config_.patch_time;
    const at::Tensor first = config_.block_causal() ? x.narrow(2, 0, pt) : x;
    const std::int64_t n = first.size(2) / pt, R = rows_of(i);
    if (keys_) make_room(n);
    Workspace workspace = workspace_for(n);
    put_patches(first, workspace);
    Evaluated now = prepared(i, n, workspace);
    scales_->begin();
    graphs_->run_once([&] { run_network(workspace, now, R, n); });
    scales_->end();
  }
  ops::Fp8 fp8_of(std::int64_t l) const { return scales_ ? scales_->of(l) : ops::Fp8(); }

  // Whether an evaluation of n blocks becomes a graph. Attention that is given its lengths has to be launched
  // anew for each of them.
  bool graphed(std::int64_t n) const {
    if (!graphs_ || !keys_) return graphs_ != nullptr;
    const std::int64_t seen = config_.window > 0 ? std::min(config_.window, block_ + n) : block_ + n;
    return ops::path() != ops::Path::composed && seen * rows_ * columns_ <= kMostKeysOfGraph &&
           ops::has_span_attention(stream_.device(), stored_, config_.dim / config_.heads);
  }

  void drop_buffers() {
    if (graphs_) graphs_->drop();
    workspace_ = {}, buffers_ = {};
  }

  // What evaluations of n blocks read and write, for as long as there are as many.
  void make_buffers(std::int64_t n) {
    const at::Tensor &patches = workspace_.patches, &tokens = workspace_.tokens;
    if (patches.defined() && patches.size(1) == n * rows_ * columns_ && tokens.size(0) == most_rows() * n)
      return;
    drop_buffers();
    workspace_ = workspace_for(n);
  }
  std::int64_t most_rows() const {
    return (std::ranges::any_of(evaluations_, &Evaluation::both) ? 2 : 1) * batch_;
  }
  Workspace workspace_for(std::int64_t n) const {
    const std::int64_t K = rows_ * columns_, rows = most_rows() * n;
    return {at::empty({batch_, n * K, config_.values()}, stream_), at::empty({rows, K, config_.dim}, stream_),
            at::empty({rows, K, config_.values()}, stream_),
            at::full({n}, 1e-7 + static_cast<double>(K), stream_)};
  }

  // The same work on buffers that stay where they are, which is captured once for each number of rows and
  // then launched for every evaluation of every block.
  void run_graph(Evaluated& now, std::int64_t R, std::int64_t n) {
    const bool both = R > batch_, sums = now.past.sums.defined();
    Evaluated& buffers = buffers_[both];
    const nn::KeyValues::Places places = keys_ ? first_places(R, n) : nn::KeyValues::Places();
    if (!buffers.modulation.defined() || !buffers.text.shaped_as(now.text) ||
        (sums && buffers.past.sums.sizes() != now.past.sums.sizes())) {
      if (buffers.modulation.defined()) graphs_->drop();
      buffers = {at::empty_like(now.modulation),
                 now.text.empty_like(),
                 at::empty_like(now.positions),
                 at::empty_like(now.tokens_seen),
                 now.tokens_own,
                 now.past.next(),
                 now.past.next()};
      if (keys_)
        buffers.places = {at::empty_like(places.written),
                          {places.seen.queries, at::empty_like(places.seen.first),
                           at::empty_like(places.seen.rows), places.seen.most}};
    }
    buffers.modulation.copy_(now.modulation), buffers.text.copy_(now.text);
    buffers.positions.copy_(now.positions), buffers.tokens_seen.copy_(now.tokens_seen);
    if (sums) buffers.past.sums.copy_(now.past.sums);
    if (keys_) keys_->shift(places, now.first_sequence, buffers.places);
    graphs_->run(2 * static_cast<int>(ops::path()) + both, [&] { run_network(workspace_, buffers, R, n); });
    if (sums) now.left.sums.copy_(buffers.left.sums);
  }

  // From the patches to the pixels, and to what is left for the blocks to come.
  void run_network(const Workspace& workspace, Evaluated& e, std::int64_t R, std::int64_t n) {
    at::Tensor tokens = workspace.tokens.narrow(0, 0, R * n), pixels = workspace.pixels.narrow(0, 0, R * n);
    embed(workspace, e.positions, R > batch_, n);
    for (std::int64_t l = 0; l < config_.depth; ++l) {
      if (config_.attention())
        attend_layer(l, tokens, e, n);
      else
        mix_layer(l, tokens, e, n);
      ops::add_feed_forward(tokens, part_modulation(e, l, scale_2, shift_2, R * n), layer_of(l).up,
                            layer_of(l).down, gate_of(e, l, gate_2, R * n), fp8_of(l));
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

  void embed(const Workspace& workspace, const at::Tensor& positions, bool both, std::int64_t n) const {
    const std::int64_t K = rows_ * columns_, d = config_.dim;
    at::Tensor first = workspace.tokens.narrow(0, 0, batch_ * n), flat = first.view({batch_ * n * K, d});
    ops::linear_rows(workspace.patches.view({batch_ * n * K, -1}), in_conv_, flat);
    first.view({batch_, n * K, d}).add_(positions);
    if (both) workspace.tokens.narrow(0, batch_ * n, batch_ * n).copy_(first);
  }

  at::Tensor norm(const at::Tensor& x, const ops::Modulation& modulation) const {
    return ops::modulated_norm(x, modulation.scale.contiguous(), modulation.shift.contiguous(),
                               modulation.eps)
        .to(stored_);
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
    const std::int64_t R = x.size(0) / n;
    const at::Tensor told = texts_here(e.text.means[l], R, n);
    const std::int64_t texts = told.size(0), rows = x.size(0);
    at::Tensor reading = x.view({texts, -1, config_.dim});
    ops::Fp8 selecting = fp8_of(l);
    if (e.text.scales.defined()) selecting.means = texts_here(e.text.scales[l], R, n).contiguous();
    ops::add_selection(reading, part_modulation(e, l, scale_x, shift_x, texts), told, layer.c_pom,
                       gate_of(e, l, gate_text, texts), selecting);
    const ops::Modulation mixing = part_modulation(e, l, scale_1, shift_1, rows);
    const at::Tensor gate = gate_of(e, l, gate_1, rows);
    if (tokens_split_.split()) {
      const at::Tensor mixed = mix_split(norm(x, mixing), config_.window_of(l), layer.pom, n);
      x.copy_(ops::gated_add(x, mixed, gate.contiguous(), 0));
      return;
    }
    if (config_.block_causal())
      return ops::add_mixer(x, mixing, layer.pom, config_.order, gate, seen_by(l, e), fp8_of(l));
    at::Tensor whole = x.view({rows / n, -1, config_.dim});  // blocks that all see each other
    ops::add_mixer(whole, part_modulation(e, l, scale_1, shift_1, rows / n), layer.pom, config_.order,
                   gate_of(e, l, gate_1, rows / n), fp8_of(l));
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

  // Of texts of R items their rows, of those of all blocks a row for each of the n that are here.
  at::Tensor texts_here(const at::Tensor& rows, std::int64_t R, std::int64_t n) const {
    if (!texts_->of_blocks()) return rows;
    return rows.unflatten(0, {R, -1}).narrow(1, first_here_, n).flatten(0, 1);
  }

  // The same of a clip whose other blocks are with other ranks.
  at::Tensor mix_split(const at::Tensor& y, std::int64_t window, const ops::LayerWeights& weights,
                       std::int64_t n) const {
    const std::int64_t R = y.size(0) / n, K = y.size(1);
    const ops::Mask mask = config_.block_causal() ? ops::Mask::block_causal(K, window) : ops::Mask::none();
    const at::Tensor whole = y.view({R, n * K, config_.dim});
    return ops::mixer_layer(whole, whole, weights, config_.order, mask, tokens_split_).view_as(y);
  }

  at::Tensor projected(const at::Tensor& x, const ops::Modulation& modulation, const ops::Dense& dense,
                       const ops::Fp8& fp8) const {
    at::Tensor y = at::empty({x.size(0), x.size(1), dense.weight.size(0)}, stream_.dtype(stored_));
    ops::modulated_linear(x, modulation, dense, y, fp8);
    return y;
  }

  // add_linear takes the stream's dtype on the CPU.
  at::Tensor ready(const at::Tensor& y) const {
    return y.is_cuda() ? y.contiguous() : y.to(arithmetic_of(dtype_)).contiguous();
  }

  void attend_layer(std::int64_t l, at::Tensor& x, Evaluated& e, std::int64_t n) {
    const ClipLayer& layer = layer_of(l);
    const std::int64_t rows = x.size(0), R = rows / n;
    const auto told = [&](const at::Tensor& all) {  // a row for each block
      const at::Tensor here = texts_here(all, R, n);
      return here.size(0) == rows ? here : here.repeat_interleave(n, 0);
    };
    const ops::Fp8 fp8 = fp8_of(l);
    const at::Tensor q = projected(x, part_modulation(e, l, scale_x, shift_x, rows), layer.c_query, fp8);
    const at::Tensor answer =
        nn::attend(q, told(e.text.keys[l]), told(e.text.values[l]), config_.heads, told(e.text.mask));
    ops::add_linear(x, ready(answer), layer.c_proj, gate_of(e, l, gate_text, rows), fp8);
    const at::Tensor qkv = projected(x, part_modulation(e, l, scale_1, shift_1, rows), layer.qkv, fp8);
    ops::add_linear(x, ready(attend_clip(l, qkv, e, n)).view(x.sizes()), layer.proj,
                    gate_of(e, l, gate_1, rows), fp8);
  }

  // qkv (R n, K, 3 d) -> (R n, K, d), or of the same order in other shapes.
  at::Tensor attend_clip(std::int64_t l, const at::Tensor& qkv, const Evaluated& e, std::int64_t n) {
    const std::int64_t R = qkv.size(0) / n, K = qkv.size(1), place = place_[static_cast<std::size_t>(l)];
    if (!config_.block_causal()) {
      const std::vector<at::Tensor> whole = qkv.view({R, n * K, -1}).chunk(3, -1);
      return nn::attend(whole[0], whole[1], whole[2], config_.heads);
    }
    if (e.places.written.defined()) {
      const std::vector<at::Tensor> rows = qkv.chunk(3, -1);
      if (place < 0) return nn::attend(rows[0], rows[1], rows[2], config_.heads);
      keys_->write(place, e.places, rows[1], rows[2]);
      return keys_->attend(place, e.places, rows[0], config_.heads);
    }
    if (place >= 0) {
      const std::vector<at::Tensor> whole = qkv.view({R, n * K, -1}).chunk(3, -1);
      keys_->write(place, e.first_sequence, whole[1], whole[2]);
    }
    std::vector<at::Tensor> answers;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::vector<at::Tensor> block = qkv.view({R, n, K, -1}).select(1, i).chunk(3, -1);
      answers.push_back(place < 0 ? nn::attend(block[0], block[1], block[2], config_.heads)
                                  : nn::attend(block[0], keys_->keys(place, e.first_sequence, R, i),
                                               keys_->values(place, e.first_sequence, R, i), config_.heads));
    }
    return at::stack(answers, 1);
  }

  // What an evaluation of the blocks to come has left.
  struct Pending {
    ClipPast past = {};
    std::int64_t blocks = 0;
  };

  static constexpr const char* kScales = "hidden_scales";  // in a state

  NetworkConfig config_;
  at::ScalarType dtype_, stored_;  // of the products, and of their weights
  nn::TimeCode time_code_;
  nn::PositionForm position_form_;
  at::TensorOptions stream_;
  ops::Dense in_conv_, out_proj_;
  std::vector<ClipLayer> layers_;
  std::optional<ClipTexts> texts_;
  std::optional<MeasuredScales> scales_;  // of fp8
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
  std::vector<ClipPast> past_;       // of each evaluation, before the blocks to come
  std::vector<Pending> pending_;     // and after them
  std::vector<std::int64_t> place_;  // of each layer among those with a past, or -1
  at::Tensor tokens_seen_;           // of the blocks from seen_block_ on
  std::int64_t seen_block_ = 0;
  std::optional<nn::KeyValues> keys_;  // of attention to blocks before
  nn::KeyValues::Places placed_;       // for a block and n
  std::pair<std::int64_t, std::int64_t> placed_keys_;

  Workspace workspace_;
  std::array<Evaluated, 2> buffers_;                       // of B rows and of 2B, with graphs
  std::unique_ptr<ops::cuda::GraphedEvaluations> graphs_;  // on CUDA; goes before the buffers
};

}  // namespace

std::unique_ptr<Denoiser> make_clip_denoiser(const NetworkConfig& config, Weights weights,
                                             at::ScalarType dtype) {
  return std::make_unique<ClipDenoiser>(config, std::move(weights), dtype);
}

}  // namespace pom::models
