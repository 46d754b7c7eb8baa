#include "pom/models/clip_text.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/models/clip_parts.h"
#include "pom/models/vdipom.h"
#include "pom/ops/block/training.h"

namespace pom::models {

// ---- what is read ----

namespace {

template <class Body>
void each_tensor(TextRead& a, const TextRead& b, const Body& body) {
  for (const auto part :
       {&TextRead::means, &TextRead::scales, &TextRead::keys, &TextRead::values, &TextRead::mask})
    body(a.*part, b.*part);
}

}  // namespace

TextRead TextRead::empty_like() const {
  TextRead other;
  each_tensor(other, *this, [](at::Tensor& made, const at::Tensor& like) {
    if (like.defined()) made = at::empty(like.sizes(), like.options());
  });
  return other;
}
bool TextRead::shaped_as(const TextRead& other) const {
  bool same = true;
  TextRead ours = *this;
  each_tensor(ours, other, [&](at::Tensor& a, const at::Tensor& b) {
    same = same && a.defined() == b.defined() && (!a.defined() || a.sizes() == b.sizes());
  });
  return same;
}
void TextRead::copy_(const TextRead& other) {
  each_tensor(*this, other, [](at::Tensor& to, const at::Tensor& from) {
    if (from.defined()) to.copy_(from);
  });
}

// ---- what is told ----

ClipTexts::ClipTexts(const NetworkConfig& config, WeightReader& weights, at::ScalarType dtype)
    : config_(config), dtype_(dtype), stored_(stored_as(dtype)) {
  if (config.learns_no_text()) no_text_ = weights.take("no_text", arithmetic_of(dtype));
  text_proj_ = weights.dense("text_proj");
  stream_ = text_proj_.weight.options().dtype(arithmetic_of(dtype));
}

void ClipTexts::plan(std::int64_t batch, const std::vector<Evaluation>& evaluations) {
  batch_ = batch, evaluations_ = evaluations;
  told_ = {};
  read_.assign(evaluations_.size(), {});
}

void ClipTexts::check_text(const at::Tensor& text, const at::Tensor& mask, const char* name) const {
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

namespace {

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && at::equal(a, b);
}

}  // namespace

void ClipTexts::tell(const Condition& condition) {
  check(condition.classes.empty(), "Denoiser: classes: expected a text, got classes: this network has none");
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
  read_.assign(evaluations_.size(), {});
}

// ---- reading ----

// No text, as a row for all: the learned token, or one that does not count.
nn::TextContext ClipTexts::nothing_told() const {
  const at::TensorOptions keys = told_.mask.options();
  if (no_text_.defined()) return {no_text_.view({1, 1, config_.dim}), at::ones({1, 1}, keys)};
  return {at::zeros({1, 1, config_.dim}, stream_), at::zeros({1, 1}, keys)};
}

// Texts of items or of their blocks, a row each, behind the linear map.
nn::TextContext ClipTexts::mapped(const at::Tensor& text, const at::Tensor& mask) const {
  const std::int64_t L = text.size(-2), R = text.numel() / (L * config_.text_width);
  at::Tensor out = at::empty({R * L, config_.dim}, stream_);
  ops::linear_rows(text.view({R * L, -1}), text_proj_, out);
  return with_no_text(out.view({R, L, config_.dim}), mask.view({R, L}), no_text_);
}

// (R, kD), what a mixer's queries see of the texts.
at::Tensor ClipTexts::means_of(std::size_t layer, const nn::TextContext& told,
                               const ops::Modulation& reading) const {
  const at::Tensor normal =
      ops::modulated_norm(told.tokens, reading.scale.contiguous(), reading.shift.contiguous(), reading.eps)
          .to(stored_);
  const at::Tensor sum = ops::mixer_summary(normal, layers_[layer].mixer, config_.order, told.keys);
  return sum / (told.keys.sum(1, /*keepdim=*/true).to(sum.scalar_type()) + 1e-7);
}

// (R, L, 2 d), keys and values beside each other.
at::Tensor ClipTexts::keys_of(std::size_t layer, const nn::TextContext& told,
                              const ops::Modulation& reading) const {
  at::Tensor both =
      at::empty({told.tokens.size(0), told.tokens.size(1), 2 * config_.dim}, stream_.dtype(stored_));
  ops::modulated_linear(told.tokens, reading, layers_[layer].key_value, both);
  return both;
}

const TextRead& ClipTexts::read(std::int64_t evaluation, ModulationTable& table) {
  TextRead& now = read_[static_cast<std::size_t>(evaluation)];
  if (now.defined()) return now;
  const bool both = evaluations_[static_cast<std::size_t>(evaluation)].both;
  const at::Tensor row = table.rows(evaluation);
  const nn::TextContext told = mapped(told_.text, told_.mask);
  nn::TextContext away;
  if (both) away = told_.away_text.defined() ? mapped(told_.away_text, told_.away_mask) : nothing_told();
  const auto reading = [&](std::int64_t layer, const nn::TextContext& text) {
    return table.modulation(row.expand({text.tokens.size(0), row.size(1)}), layer, ClipPart::scale_text,
                            ClipPart::shift_text);
  };
  // The rows with text, then those that guidance leads away from, which may be all one. Texts become as long
  // as the longer of both; what is added does not count.
  const std::int64_t R = told.tokens.size(0);
  const std::int64_t L = both ? std::max(told.tokens.size(1), away.tokens.size(1)) : told.tokens.size(1);
  const auto longer = [&](const at::Tensor& t) {  // (R or 1, L', ...) -> (R, L, ...)
    const std::int64_t missing = L - t.size(1);
    const at::Tensor padded =
        t.dim() == 2 ? at::constant_pad_nd(t, {0, missing}) : at::constant_pad_nd(t, {0, 0, 0, missing});
    std::vector<std::int64_t> shape = padded.sizes().vec();
    shape[0] = R;
    return padded.expand(shape);
  };
  std::vector<at::Tensor> means, keys, values;
  for (std::int64_t l = 0; l < config_.depth; ++l) {
    const auto layer = static_cast<std::size_t>(l);
    if (config_.attention()) {
      at::Tensor all = keys_of(layer, told, reading(l, told));
      if (both) all = at::cat({longer(all), longer(keys_of(layer, away, reading(l, away)))});
      keys.push_back(all.narrow(2, 0, config_.dim)),
          values.push_back(all.narrow(2, config_.dim, config_.dim));
    } else {
      const at::Tensor with = means_of(layer, told, reading(l, told));
      means.push_back(both ? at::cat({with, means_of(layer, away, reading(l, away)).expand_as(with)}) : with);
    }
  }
  if (config_.attention()) {
    now.keys = at::stack(keys), now.values = at::stack(values);
    now.mask = (both ? at::cat({longer(told.keys), longer(away.keys)}) : told.keys).unsqueeze(1).unsqueeze(1);
    return now;
  }
  now.means = at::stack(means);
  if (dtype_ == at::kFloat8_e4m3fn) now.scales = ops::means_scales(now.means);
  return now;
}

}  // namespace pom::models
