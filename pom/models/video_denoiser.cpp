#include "pom/models/video_denoiser.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/shelf.h"
#include "pom/models/vdipom.h"
#include "pom/nn/embeddings.h"
#include "pom/ops/block/training.h"
#include "pom/ops/state.h"

namespace pom::models {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 32;  // of a stream: more than anyone will see
constexpr std::int64_t kTableEvaluations = 64;               // whose modulations are kept at a time

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

struct VideoLayer {
  ops::LayerWeights c_pom, pom;             // these two, or
  ops::Dense c_query, c_key_value, c_proj;  // of attention to the text
  ops::Dense qkv, proj;                     // of attention
  ops::Dense up, down;
};

VideoLayer take_video_layer(Shelf& shelf, const NetworkConfig& config, std::int64_t i) {
  const std::string name = "layers." + std::to_string(i) + ".";
  VideoLayer layer;
  if (config.attention()) {
    layer.c_query = shelf.dense(name + "c_attn.q");
    layer.c_key_value = shelf.dense(name + "c_attn.kv");
    layer.c_proj = shelf.dense(name + "c_attn.proj");
    layer.qkv = shelf.dense(name + "attn.qkv");
    layer.proj = shelf.dense(name + "attn.proj");
  } else {
    layer.c_pom = shelf.mixer(name + "c_pom");
    layer.pom = shelf.mixer(name + "pom");
  }
  layer.up = shelf.dense(name + "ffw.0");
  layer.down = shelf.dense(name + "ffw.2");
  return layer;
}

// What the time sets, as one matrix: scales, shifts and gates of all blocks (11 d each), then of the output.
ops::Dense take_time_conditioning(Shelf& shelf, const NetworkConfig& config) {
  std::vector<at::Tensor> weights, biases;
  const auto add = [&](const std::string& name) {
    ops::Dense part = shelf.dense(name);
    weights.push_back(std::move(part.weight)), biases.push_back(std::move(part.bias));
  };
  for (std::int64_t i = 0; i < config.depth; ++i)
    for (const char* part : {"cond_mlp.1", "gate_mlp.1"}) add(pom::detail::concat("layers.", i, ".", part));
  add("out_mod.1");
  return {at::cat(weights), at::cat(biases)};
}

// What a layer hears of the text in one evaluation, rows as the stream's.
struct Heard {
  at::Tensor context;             // (rows, kD), the mixer's mean over the text; or
  at::Tensor keys, values, mask;  // (rows, L, d) twice and (rows, 1, 1, L), of attention
};

// What a layer has seen of the blocks before, in one evaluation.
struct Seen {
  ops::MixerState sums;
  nn::KeyValueCache cache;
};

}  // namespace

struct VideoDenoiser::Impl {
  Impl(const NetworkConfig& c, Weights weights, at::ScalarType dtype)
      : config(c), dtype(dtype), time_code(nn::TimeCode::named(c.time_code, c.time_period)) {
    check_config(c, "VideoDenoiser: ");
    check(c.video(), "VideoDenoiser: kind: expected vdipom, got ", c.kind);
    check(c.block_causal(), "VideoDenoiser: temporal_mask: expected block-causal, got ", c.temporal_mask,
          ": every block sees all others, so none can be made before the others");
    check_weights(weights, c, "VideoDenoiser: weights");
    check(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
          "VideoDenoiser: dtype: expected fp32, bf16, fp16 or fp64, got ", dtype);
    Shelf shelf(weights, dtype);
    no_text = weights.extract("no_text").mapped().detach().to(arithmetic()).contiguous();
    stream = no_text.options();
    text_proj = shelf.dense("text_proj");
    time_up = shelf.dense("time_emb.0"), time_down = shelf.dense("time_emb.2");
    in_conv = shelf.dense("in_conv");
    in_conv.weight = in_conv.weight.flatten(1);
    for (std::int64_t i = 0; i < c.depth; ++i) layers.push_back(take_video_layer(shelf, c, i));
    conditioning = take_time_conditioning(shelf, c), out_proj = shelf.dense("out_proj");
  }

  at::ScalarType arithmetic() const { return dtype == at::kDouble ? at::kDouble : at::kFloat; }
  std::int64_t rows_of(std::int64_t i) const {
    return evaluations[static_cast<std::size_t>(i)].both ? 2 * batch : batch;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(evaluations.size()); }

  // ---- planning ----

  void plan(std::int64_t clips, std::int64_t height, std::int64_t width, std::vector<Evaluation> wanted) {
    const std::int64_t p = config.patch;
    check(clips >= 1, "VideoDenoiser: batch: expected at least one clip, got ", clips);
    check(height >= p && width >= p && height % p == 0 && width % p == 0,
          "VideoDenoiser: size: expected sides that the patch (", p, ") divides, got ", width, "x", height);
    check(!wanted.empty(), "VideoDenoiser: evaluations: expected at least one, got none");
    batch = clips, rows = height / p, columns = width / p, evaluations = std::move(wanted);
    places = nn::clip_place_code(rows, columns, config.dim, arithmetic()).to(stream.device());
    placed_now = at::Tensor();
    embed_times();
    table_first = table_count = 0;
    block = 0;
    start_states();
    text = at::Tensor(), mask = at::Tensor();
    heard.assign(evaluations.size(), {});
  }

  void embed_times() {
    std::vector<double> times;
    for (const Evaluation& evaluation : evaluations) times.push_back(evaluation.t);
    const at::Tensor features = nn::time_features(at::tensor(times, at::kDouble), config.dim).to(stream);
    time_emb = at::empty({count(), config.dim}, stream);
    ops::silu_mlp_rows(features, time_up, time_down, time_emb);
  }

  void start_states() {
    seen.clear();
    for (std::int64_t i = 0; i < count(); ++i) {
      std::vector<Seen> of_layers;
      for (std::int64_t l = 0; l < config.depth; ++l)
        of_layers.push_back(unseen(rows_of(i), config.window_of(l)));
      seen.push_back(std::move(of_layers));
    }
    pending.assign(evaluations.size(), {});
  }

  Seen unseen(std::int64_t rows, std::int64_t window) const {
    Seen nothing{.sums = {}, .cache = nn::KeyValueCache(window)};
    if (!config.attention()) nothing.sums = ops::MixerState::start(rows, config.features(), no_text, window);
    return nothing;
  }

  // Those that see other blocks than their own, and so have something to keep.
  std::vector<std::size_t> layers_with_past() const {
    std::vector<std::size_t> found;
    for (std::int64_t l = 0; l < config.depth; ++l)
      if (!config.sees_own_alone(l)) found.push_back(static_cast<std::size_t>(l));
    return found;
  }

  void tell(const at::Tensor& words, const at::Tensor& counts) {
    check(batch > 0, "VideoDenoiser: tell: expected a plan before, got none");
    check(words.dim() == 3 && words.size(0) == batch && words.size(1) >= 1 &&
              words.size(2) == config.text_width,
          "VideoDenoiser: text: expected shape (", batch, ", L, ", config.text_width, "), got ",
          words.sizes());
    check(counts.scalar_type() == at::kBool && counts.sizes() == words.sizes().slice(0, 2),
          "VideoDenoiser: mask: expected bool of shape (", batch, ", ", words.size(1), "), got ",
          counts.scalar_type(), " of shape ", counts.sizes());
    const at::Tensor tokens = words.detach().to(stream), visible = counts.to(stream.device());
    if (text.defined() && text.sizes() == tokens.sizes() && at::equal(mask, visible) &&
        at::equal(text, tokens))
      return;  // what was heard is still true
    text = tokens.clone(at::MemoryFormat::Contiguous), mask = visible.clone(at::MemoryFormat::Contiguous);
    heard.assign(evaluations.size(), {});
  }

  // ---- modulations: a table of some evaluations ----

  // (rows, 11 depth d + 2 d), equal rows.
  at::Tensor modulations(std::int64_t i) {
    if (i < table_first || i >= table_first + table_count) fill_table(i);
    return table.narrow(0, i - table_first, 1).expand({rows_of(i), table.size(1)}).contiguous();
  }

  void fill_table(std::int64_t first) {
    const std::int64_t width = parts * config.depth * config.dim;
    table_first = first, table_count = std::min(kTableEvaluations, count() - first);
    table = at::empty({table_count, width + 2 * config.dim}, stream);
    ops::silu_linear_rows(time_emb.narrow(0, first, table_count), conditioning, table);
    if (config.attention()) return;
    table.narrow(1, 0, width).unflatten(1, {config.depth, parts, config.dim}).narrow(2, gate_text, 3).add_(1);
  }

  // ---- the text ----

  const std::vector<Heard>& listen(std::int64_t i, const at::Tensor& m) {
    std::vector<Heard>& now = heard[static_cast<std::size_t>(i)];
    if (!now.empty()) return now;
    const nn::TextContext told = with_no_text(mapped(text), mask, no_text);
    const nn::TextContext nothing{no_text.view({1, 1, config.dim}), at::ones({1, 1}, mask.options())};
    for (std::int64_t l = 0; l < config.depth; ++l) {
      const Heard with = hear(l, told, m);
      now.push_back(rows_of(i) == batch ? with : joined(with, hear(l, nothing, m)));
    }
    return now;
  }

  at::Tensor mapped(const at::Tensor& words) const {
    const std::int64_t B = words.size(0), L = words.size(1);
    at::Tensor out = at::empty({B * L, config.dim}, stream);
    ops::linear_rows(words.view({B * L, -1}), text_proj, out);
    return out.view({B, L, config.dim});
  }

  Heard hear(std::int64_t l, const nn::TextContext& told, const at::Tensor& m) const {
    const VideoLayer& layer = layers[static_cast<std::size_t>(l)];
    const at::Tensor now = m.narrow(0, 0, told.tokens.size(0));
    const ops::Modulation modulation{part(now, l, scale_text), part(now, l, shift_text), nn::kNormEps};
    if (config.attention()) {
      at::Tensor both =
          at::empty({told.tokens.size(0), told.tokens.size(1), 2 * config.dim}, stream.dtype(dtype));
      ops::modulated_linear(told.tokens, modulation, layer.c_key_value, both);
      const std::vector<at::Tensor> split = both.chunk(2, -1);
      return {{}, split[0], split[1], told.keys.unsqueeze(1).unsqueeze(1)};
    }
    const at::Tensor normal = norm(told.tokens, modulation);
    const at::Tensor sum = ops::mixer_summary(normal, layer.c_pom, config.order, told.keys);
    return {sum / (told.keys.sum(1, /*keepdim=*/true).to(sum.scalar_type()) + 1e-7), {}, {}, {}};
  }

  // The rows with text, then those without, which are all one.
  Heard joined(const Heard& with, const Heard& without) const {
    if (!config.attention())
      return {at::cat({with.context, without.context.expand_as(with.context)}), {}, {}, {}};
    const std::int64_t L = with.keys.size(1);
    const auto longer = [&](const at::Tensor& one) {  // (1, 1, d) -> (B, L, d)
      return at::constant_pad_nd(one, {0, 0, 0, L - 1}).expand_as(with.keys);
    };
    const at::Tensor first = at::constant_pad_nd(without.mask, {0, L - 1}).expand_as(with.mask);
    return {{},
            at::cat({with.keys, longer(without.keys)}),
            at::cat({with.values, longer(without.values)}),
            at::cat({with.mask, first})};
  }

  // ---- one evaluation ----

  at::Tensor evaluate(const at::Tensor& x, std::int64_t i) {
    check(text.defined(), "VideoDenoiser: text: expected tell() before the first evaluation");
    check(i >= 0 && i < count(), "VideoDenoiser: evaluation: expected 0 to ", count() - 1, ", got ", i);
    const std::int64_t p = config.patch, pt = config.patch_time;
    check(x.dim() == 5 && x.sizes() == at::IntArrayRef({batch, config.channels, pt, rows * p, columns * p}),
          "VideoDenoiser: x: expected what was planned, (", batch, ", ", config.channels, ", ", pt, ", ",
          rows * p, ", ", columns * p, "), got ", x.sizes());
    const at::Tensor m = modulations(i);
    const std::vector<Heard>& told = listen(i, m);
    at::Tensor tokens = embed(x, rows_of(i) > batch);
    std::vector<Seen> next;
    for (std::int64_t l = 0; l < config.depth; ++l) {
      next.push_back(seen[static_cast<std::size_t>(i)][static_cast<std::size_t>(l)]);
      run_layer(l, tokens, m, told[static_cast<std::size_t>(l)], next.back());
    }
    pending[static_cast<std::size_t>(i)] = std::move(next);
    return project(tokens, m, x.sizes());
  }

  // (h * w, d), of the tokens of this block.
  const at::Tensor& positions() {
    if (!placed_now.defined() || placed_block != block) {
      const at::Tensor number = at::full({1}, block, at::kLong);
      placed_now =
          places + nn::clip_time_code(number, config.dim, time_code, arithmetic()).to(stream.device());
      placed_block = block;
    }
    return placed_now;
  }

  at::Tensor embed(const at::Tensor& x, bool both) {
    const std::int64_t n = rows * columns;
    at::Tensor tokens = at::empty({batch * n, config.dim}, stream);
    ops::linear_rows(clip_patchify(x.to(stream), config).view({batch * n, -1}), in_conv, tokens);
    const at::Tensor placed = tokens.view({batch, n, config.dim}) + positions();
    return both ? at::cat({placed, placed}) : placed;
  }

  at::Tensor part(const at::Tensor& m, std::int64_t l, std::int64_t which) const {
    return m.narrow(1, (l * parts + which) * config.dim, config.dim);
  }

  at::Tensor norm(const at::Tensor& x, const ops::Modulation& modulation) const {
    return ops::modulated_norm(x, modulation.scale, modulation.shift, modulation.eps).to(dtype);
  }

  void run_layer(std::int64_t l, at::Tensor& x, const at::Tensor& m, const Heard& told, Seen& before) const {
    const VideoLayer& layer = layers[static_cast<std::size_t>(l)];
    const auto modulation = [&](Part scale, Part shift) {
      return ops::Modulation{part(m, l, scale), part(m, l, shift), nn::kNormEps};
    };
    const ops::Modulation listening = modulation(scale_x, shift_x), mixing = modulation(scale_1, shift_1);
    if (config.attention()) {
      attend_text(layer, x, listening, told, part(m, l, gate_text));
      attend_video(layer, x, mixing, before.cache, part(m, l, gate_1));
    } else {
      const at::Tensor answer = ops::mixer_select(norm(x, listening), told.context, layer.c_pom);
      x = ops::gated_add(x, answer, part(m, l, gate_text), 0);
      const at::Tensor mixed = ops::step(norm(x, mixing), before.sums, layer.pom, config.order);
      x = ops::gated_add(x, mixed, part(m, l, gate_1), 0);
    }
    ops::feed_forward_half(x, modulation(scale_2, shift_2), layer.up, layer.down, part(m, l, gate_2));
  }

  at::Tensor projected(const at::Tensor& x, const ops::Modulation& modulation,
                       const ops::Dense& dense) const {
    at::Tensor y = at::empty({x.size(0), x.size(1), dense.weight.size(0)}, stream.dtype(dtype));
    ops::modulated_linear(x, modulation, dense, y);
    return y;
  }

  // linear_half takes the stream's dtype on the CPU.
  at::Tensor ready(const at::Tensor& y) const { return y.is_cuda() ? y : y.to(arithmetic()).contiguous(); }

  void attend_text(const VideoLayer& layer, at::Tensor& x, const ops::Modulation& modulation,
                   const Heard& told, const at::Tensor& gate) const {
    const at::Tensor q = projected(x, modulation, layer.c_query);
    ops::linear_half(x, ready(nn::attend(q, told.keys, told.values, config.heads, told.mask)), layer.c_proj,
                     gate);
  }

  void attend_video(const VideoLayer& layer, at::Tensor& x, const ops::Modulation& modulation,
                    nn::KeyValueCache& cache, const at::Tensor& gate) const {
    const std::vector<at::Tensor> qkv = projected(x, modulation, layer.qkv).chunk(3, -1);
    cache.append(qkv[1], qkv[2]);
    ops::linear_half(x, ready(nn::attend(qkv[0], cache.keys(), cache.values(), config.heads)), layer.proj,
                     gate);
  }

  at::Tensor project(const at::Tensor& x, const at::Tensor& m, at::IntArrayRef shape) const {
    const std::int64_t d = config.dim, at_output = parts * config.depth * d;
    at::Tensor pixels = at::empty({x.size(0), x.size(1), config.values()}, stream);
    ops::modulated_linear(x, {m.narrow(1, at_output, d), m.narrow(1, at_output + d, d), nn::kNormEps},
                          out_proj, pixels);
    return clip_unpatchify(pixels, shape, config);
  }

  void advance() {
    for (std::int64_t i = 0; i < count(); ++i)
      check(!pending[static_cast<std::size_t>(i)].empty(), "VideoDenoiser: advance: expected all ", count(),
            " evaluations of the block, and number ", i, " is missing");
    seen = std::move(pending);
    pending.assign(evaluations.size(), {});
    ++block;
  }

  // ---- the state ----

  std::map<std::string, at::Tensor> state() const {
    check(text.defined(), "VideoDenoiser: state: expected tell() before");
    std::map<std::string, at::Tensor> all{
        {"block", at::full({}, block, at::kLong)}, {"text", text}, {"mask", mask.to(at::kByte)}};
    for (std::int64_t i = 0; i < count() && block > 0; ++i) {
      const auto stacked = [&](auto&& of) {
        std::vector<at::Tensor> each;
        for (const std::size_t l : layers_with_past())
          each.push_back(of(seen[static_cast<std::size_t>(i)][l]));
        return at::stack(each);
      };
      const std::string number = pom::detail::concat(".", i);
      if (config.attention()) {
        all["keys" + number] = stacked([](const Seen& layer) { return layer.cache.keys(); });
        all["values" + number] = stacked([](const Seen& layer) { return layer.cache.values(); });
      } else {
        all["sums" + number] = stacked([](const Seen& layer) { return layer.sums.sums(); });
      }
    }
    if (!config.attention() && block > 0) all["counts"] = seen[0][0].sums.counts()[0];
    return all;
  }

  void set_state(const std::map<std::string, at::Tensor>& all) {
    check(batch > 0, "VideoDenoiser: set_state: expected a plan before, got none");
    const auto find = [&](const std::string& name) -> const at::Tensor& {
      const auto found = all.find(name);
      check(found != all.end(), "VideoDenoiser: state: expected a tensor \"", name, "\", got none");
      return found->second;
    };
    const at::Tensor& number = find("block");
    check(number.numel() == 1 && number.scalar_type() == at::kLong, "VideoDenoiser: state: block: expected ",
          "one int64, got ", number.scalar_type(), " of shape ", number.sizes());
    const std::int64_t passed = number.item<std::int64_t>();
    check(passed >= 0 && passed <= kMostBlocks, "VideoDenoiser: state: block: expected 0 to ", kMostBlocks,
          ", got ", passed);
    tell(find("text"), find("mask").to(at::kBool));
    start_states();
    block = passed;
    for (std::int64_t i = 0; i < count() && block > 0; ++i) {
      const std::string name = pom::detail::concat(".", i);
      if (config.attention())
        restore_cache(i, find("keys" + name), find("values" + name));
      else
        restore_sums(i, find("sums" + name), find("counts"));
    }
  }

  void restore_sums(std::int64_t i, const at::Tensor& sums, const at::Tensor& counts) {
    const std::vector<std::size_t> which = layers_with_past();
    const std::int64_t kept = config.window ? std::min(config.window, block) : 1, depth = std::ssize(which);
    check(sums.scalar_type() == arithmetic() &&
              sums.sizes() == at::IntArrayRef({depth, rows_of(i), kept, config.features()}),
          "VideoDenoiser: state: sums.", i, ": expected ", arithmetic(), " of shape (", depth, ", ",
          rows_of(i), ", ", kept, ", ", config.features(), "), got ", sums.scalar_type(), " of shape ",
          sums.sizes());
    check(counts.scalar_type() == at::kLong && counts.sizes() == at::IntArrayRef({kept}),
          "VideoDenoiser: state: counts: expected int64 of shape (", kept, "), got ", counts.scalar_type(),
          " of shape ", counts.sizes());
    const std::int64_t each = (config.window ? 1 : block) * rows * columns;  // tokens behind a sum
    check(counts.eq(each).all().item<bool>(), "VideoDenoiser: state: counts: expected ", each,
          " tokens behind every sum, got others");
    for (std::int64_t l = 0; l < depth; ++l)
      seen[static_cast<std::size_t>(i)][which[static_cast<std::size_t>(l)]].sums =
          ops::MixerState::from_tensors(
              {{"sums", sums[l].to(stream).clone()},
               {"counts", counts.to(stream.device()).expand({rows_of(i), kept}).clone()},
               {"window", at::full({}, config.window, at::kLong)}});
  }

  void restore_cache(std::int64_t i, const at::Tensor& keys, const at::Tensor& values) {
    const std::vector<std::size_t> which = layers_with_past();
    const std::int64_t kept = config.window ? std::min(config.window, block) : block, n = rows * columns;
    const std::int64_t depth = std::ssize(which);
    for (const at::Tensor& each : {keys, values})
      check(each.scalar_type() == dtype &&
                each.sizes() == at::IntArrayRef({depth, rows_of(i), kept * n, config.dim}),
            "VideoDenoiser: state: keys.", i, ", values.", i, ": expected ", dtype, " of shape (", depth,
            ", ", rows_of(i), ", ", kept * n, ", ", config.dim, "), got ", each.scalar_type(), " of shape ",
            each.sizes());
    for (std::int64_t l = 0; l < depth; ++l)
      for (std::int64_t b = 0; b < kept; ++b)
        seen[static_cast<std::size_t>(i)][which[static_cast<std::size_t>(l)]].cache.append(
            keys[l].narrow(1, b * n, n).to(stream.device()),
            values[l].narrow(1, b * n, n).to(stream.device()));
  }

  NetworkConfig config;
  at::ScalarType dtype;
  nn::TimeCode time_code;
  at::TensorOptions stream;
  at::Tensor no_text;
  ops::Dense text_proj, time_up, time_down, in_conv, conditioning, out_proj;
  std::vector<VideoLayer> layers;

  std::int64_t batch = 0, rows = 0, columns = 0, block = 0;
  std::vector<Evaluation> evaluations;
  at::Tensor places;      // (h * w, d)
  at::Tensor placed_now;  // the same with the time of block placed_block
  std::int64_t placed_block = 0;
  at::Tensor time_emb;  // (evaluations, d)
  at::Tensor table;     // (table_count, modulations)
  std::int64_t table_first = 0, table_count = 0;
  at::Tensor text, mask;
  std::vector<std::vector<Heard>> heard;         // of each evaluation and layer; empty where not yet
  std::vector<std::vector<Seen>> seen, pending;  // likewise, before the block and after it
};

VideoDenoiser::VideoDenoiser(const NetworkConfig& config, Weights weights, at::ScalarType dtype)
    : impl_(std::make_unique<Impl>(config, std::move(weights), dtype)) {}
VideoDenoiser::~VideoDenoiser() = default;
VideoDenoiser::VideoDenoiser(VideoDenoiser&&) noexcept = default;
VideoDenoiser& VideoDenoiser::operator=(VideoDenoiser&&) noexcept = default;

const NetworkConfig& VideoDenoiser::config() const {
  return impl_->config;
}
at::ScalarType VideoDenoiser::dtype() const {
  return impl_->dtype;
}
at::Device VideoDenoiser::device() const {
  return impl_->stream.device();
}

void VideoDenoiser::plan(std::int64_t batch, std::int64_t height, std::int64_t width,
                         std::vector<Evaluation> evaluations) {
  const at::NoGradGuard no_gradients;
  impl_->plan(batch, height, width, std::move(evaluations));
}

void VideoDenoiser::tell(const at::Tensor& text, const at::Tensor& mask) {
  const at::NoGradGuard no_gradients;
  impl_->tell(text, mask);
}

at::Tensor VideoDenoiser::operator()(const at::Tensor& x, std::int64_t evaluation) {
  const at::NoGradGuard no_gradients;
  return impl_->evaluate(x, evaluation);
}

void VideoDenoiser::advance() {
  impl_->advance();
}

std::int64_t VideoDenoiser::block() const {
  return impl_->block;
}

std::map<std::string, at::Tensor> VideoDenoiser::state() const {
  const at::NoGradGuard no_gradients;
  return impl_->state();
}

void VideoDenoiser::set_state(const std::map<std::string, at::Tensor>& state) {
  const at::NoGradGuard no_gradients;
  impl_->set_state(state);
}

}  // namespace pom::models
