#include "pom/codecs/t5.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/io/sha256.h"

namespace pom::codecs {
namespace {

constexpr const char* tokenizer_file = "spiece.model";
constexpr const char *shared_table = "shared.weight", *encoder_table = "encoder.embed_tokens.weight";

// Where the encoder is in a folder.
std::string t5_within(const io::OpenFolder& folder) {
  return folder.has(std::string(text_folder) + "/config.json") ? text_folder : "";
}

// Old files have the table of pieces under the encoder's name, or twice; and whole models have a decoder.
void expect_t5(WeightFolder& weights, const T5Config& config) {
  const bool both = weights.has(shared_table) && weights.has(encoder_table);
  weights.expect(t5_tensors(config), {.renamed =
                                          [both](const std::string& name) {
                                            return name == encoder_table && !both ? std::string(shared_table)
                                                                                  : name;
                                          },
                                      .other =
                                          [both](const std::string& name) {
                                            return name.starts_with("decoder.") || name == "lm_head.weight" ||
                                                   (both && name == encoder_table);
                                          }});
}

// The first few of what the vocabulary has no pieces for.
std::string unknown_pieces_text(const std::vector<std::string>& texts) {
  constexpr std::size_t most = 5;
  std::string list;
  for (std::size_t i = 0; i < std::min(texts.size(), most); ++i)
    list += detail::concat(i == 0 ? "" : ", ", '"', shown(texts[i], 40), '"');
  if (texts.size() > most) list += detail::concat(" and ", texts.size() - most, " more");
  return list + (texts.size() == 1 ? " is not in the text encoder's vocabulary and means nothing to it"
                                   : " are not in the text encoder's vocabulary and mean nothing to it");
}

// A piece as a person wrote it.
std::string without_marks(std::string_view text) {
  constexpr std::string_view mark = "\xe2\x96\x81";  // stands for a space
  std::string written;
  while (!text.empty()) {
    const bool marked = text.starts_with(mark);
    if (!marked || !written.empty()) written.push_back(marked ? ' ' : text.front());
    text.remove_prefix(marked ? mark.size() : 1);
  }
  return written;
}

}  // namespace

T5::T5(const TextConfig& config, const io::OpenFolder& folder, std::optional<at::ScalarType> dtype)
    : weights_(folder, t5_within(folder), "model"),
      config_(read_t5_config(weights_.config_text(), weights_.config_source())),
      limit_(config.limit),
      mask_(config.mask) {
  expect_t5(weights_, config_);
  dtype_ = dtype.value_or(weights_.stored_dtype(shared_table));
  check(dtype_ == at::kFloat || dtype_ == at::kDouble || dtype_ == at::kBFloat16 || dtype_ == at::kHalf,
        "text: dtype: expected fp32, fp64, bf16 or fp16, got ", dtype_);
  for (const char* place : {"text_encoder/", "tokenizer/", ""}) {
    const std::string name = std::string(place) + tokenizer_file;
    searched_ += (searched_.empty() ? "" : ", ") + name;
    if (tokenizer_ || !folder.has(name)) continue;
    const std::string path = folder.path_of(name);
    tokenizer_ = std::make_unique<io::SentencePieces>(io::read_sentence_pieces(folder, name), path);
    check(tokenizer_->size() <= config_.vocab_size, path, ": expected at most ", config_.vocab_size,
          " pieces, as vocab_size of ", weights_.config_source(), " says, got ", tokenizer_->size());
    check(tokenizer_->size() > end && tokenizer_->piece(end).type == io::SentencePiece::control, path,
          ": expected </s>, a control piece, as piece ", end);
  }
  searched_ = detail::concat("looked for ", searched_, " in ", folder.path().string());
}

T5::~T5() = default;

const io::SentencePieces& T5::tokenizer() const {
  check(tokenizer_ != nullptr, "text: no ", tokenizer_file, ": ", searched_);
  return *tokenizer_;
}

T5::Ids T5::ids(std::span<const std::string> prompts) const {
  const auto B = static_cast<std::int64_t>(prompts.size());
  Ids result{at::full({B, limit_}, padding, at::kLong), at::zeros({B, limit_}, at::kBool), {}};
  for (std::int64_t b = 0; b < B; ++b) {
    std::vector<std::string> unknown;
    std::vector<std::int64_t> row;
    for (const io::SentencePieces::Part& part : tokenizer().split(prompts[static_cast<std::size_t>(b)])) {
      row.push_back(part.id);
      if (part.id != tokenizer().unknown()) continue;
      std::string written = without_marks(part.text);
      if (std::ranges::find(unknown, written) == unknown.end()) unknown.push_back(std::move(written));
    }
    const auto most = static_cast<std::size_t>(limit_), count = row.size() + 1;
    if (count > most) {
      row.resize(most - 1);
      result.warnings.push_back(detail::concat("prompt: expected at most ", most, " pieces of text, got ",
                                               count, ": truncated to ", most));
    }
    if (!unknown.empty()) result.warnings.push_back(unknown_pieces_text(unknown));
    row.push_back(end);
    std::ranges::copy(row, result.ids.data_ptr<std::int64_t>() + b * limit_);
    std::fill_n(result.mask.data_ptr<bool>() + b * limit_, row.size(), true);
  }
  return result;
}

EncodedText T5::encode(std::span<const std::string> prompts) const {
  Ids read = ids(prompts);
  at::Tensor tokens = encode_ids(read.ids, mask_ ? read.mask : at::Tensor());
  const at::Tensor mask = (mask_ ? read.mask : at::ones_like(read.mask)).to(device_);
  return {std::move(tokens), mask, std::move(read.warnings)};
}

at::Tensor T5::encode_ids(const at::Tensor& ids, const at::Tensor& mask) const {
  const at::NoGradGuard no_grad;
  check(ids.defined() && ids.dim() == 2 && ids.size(1) >= 1 && ids.scalar_type() == at::kLong,
        "encode_ids: ids: expected (B, L) int64 with L at least 1, got ",
        ids.defined() ? detail::concat(ids.sizes(), " ", ids.scalar_type()) : "nothing");
  check(!mask.defined() || mask.sizes() == ids.sizes(), "encode_ids: mask: expected ", ids.sizes(),
        ", as ids, got ", mask.defined() ? mask.sizes() : at::IntArrayRef());
  if (ids.numel() == 0) return at::empty({0, ids.size(1), width()}, at::dtype(dtype_).device(device_));
  const std::int64_t least = ids.min().item<std::int64_t>(), most = ids.max().item<std::int64_t>();
  check(least >= 0 && most < config_.vocab_size, "encode_ids: ids: expected 0 to ", config_.vocab_size - 1,
        ", got ", least < 0 ? least : most);
  const at::Tensor tokens = network().forward(ids, mask.defined() ? mask.ne(0) : mask);
  check(dtype_ != at::kHalf || at::isfinite(tokens).all().item<bool>(), where(),
        ": expected finite tokens, got others in fp16: the weights are too large for it; use bf16 or fp32");
  return tokens;
}

const T5Network& T5::network() const {
  if (network_) return *network_;
  if (weights_.has(shared_table) && weights_.has(encoder_table))
    check(at::equal(weights_.read_stored(shared_table).to(dtype_),
                    weights_.read_stored(encoder_table).to(dtype_)),
          where(), ": expected ", shared_table, " and ", encoder_table, " to be equal, got two that differ");
  network_ = std::make_unique<T5Network>(config_, weights_, dtype_, device_);
  return *network_;
}

void T5::to(const c10::Device& device) {
  device_ = device;
  if (network_) network_->to(device);
}

void T5::unload() {
  network_.reset();
}

const std::string& T5::hash() const {
  if (!hash_.empty()) return hash_;
  io::Sha256 sum;
  sum.update(weights_.hash());
  if (tokenizer_) sum.update(tokenizer_->sha256());
  hash_ = sum.hex();
  return hash_;
}

std::string T5::settings() const {
  return detail::concat("t5 ", dtype_, mask_ ? " masked" : " unmasked");
}

std::int64_t T5::weight_bytes() const {
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : t5_tensors(config_)) {
    const bool wide = dtype_ == at::kHalf && tensor.name.ends_with(".wo.weight");
    std::int64_t values = 1;
    for (const std::int64_t side : tensor.shape) values *= side;
    bytes += values * static_cast<std::int64_t>(wide ? 4 : c10::elementSize(dtype_));
  }
  return bytes;
}

}  // namespace pom::codecs
