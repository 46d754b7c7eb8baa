#include "pom/codecs/t5_network.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace pom::codecs {
namespace {

// Scores at a time: rows of queries and prompts are split where there are more.
std::int64_t most_scores(const c10::Device& device) {
  return std::int64_t{1} << (device.is_cpu() ? 24 : 27);
}

// The dtype of the stream, of scores and of sums.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

double lowest(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::lowest() : std::numeric_limits<float>::lowest();
}

}  // namespace

T5Network::T5Network(const T5Config& config, const WeightFolder& weights, at::ScalarType dtype,
                     const c10::Device& device)
    : config_(config) {
  const auto read = [&](const std::string& name) { return weights.read(name, dtype).to(device); };
  const auto stacked = [&](const std::string& of, const std::vector<const char*>& names, std::int64_t rows) {
    const auto count = static_cast<std::int64_t>(names.size());
    const at::Tensor all =
        at::empty({count * rows, config_.d_model}, at::TensorOptions().dtype(dtype).device(device));
    for (std::int64_t i = 0; i < count; ++i)
      all.narrow(0, i * rows, rows)
          .copy_(weights.read(of + names[static_cast<std::size_t>(i)] + ".weight", dtype));
    return all;
  };
  table_ = read("shared.weight");
  for (std::int64_t i = 0; i < config_.num_layers; ++i) {
    const std::string of = "encoder.block." + std::to_string(i) + ".layer.";
    const std::string own = of + "0.SelfAttention.", dense = of + "1.DenseReluDense.";
    const at::ScalarType wo_dtype = dtype == at::kHalf ? at::kFloat : dtype;
    if (i == 0) biases_ = read(own + "relative_attention_bias.weight");
    blocks_.push_back({
        .attention_norm = read(of + "0.layer_norm.weight"),
        .qkv = stacked(own, {"q", "k", "v"}, config_.inner()),
        .o = read(own + "o.weight"),
        .dense_norm = read(of + "1.layer_norm.weight"),
        .wi = config_.gated() ? stacked(dense, {"wi_0", "wi_1"}, config_.d_ff) : read(dense + "wi.weight"),
        .wo = weights.read(dense + "wo.weight", wo_dtype).to(device),
    });
  }
  final_norm_ = read("encoder.final_layer_norm.weight");
}

void T5Network::to(const c10::Device& device) {
  for (at::Tensor* tensor : {&table_, &biases_, &final_norm_}) *tensor = tensor->to(device);
  for (Block& block : blocks_)
    for (at::Tensor* tensor :
         {&block.attention_norm, &block.qkv, &block.o, &block.dense_norm, &block.wi, &block.wo})
      *tensor = tensor->to(device);
}

T5Network::Bias T5Network::bias_of(std::int64_t length) const {
  std::vector<std::int64_t> buckets = t5_buckets(config_, length);
  const at::Tensor numbers = at::tensor(buckets, at::kLong).to(device());
  Bias bias{at::embedding(biases_, numbers).to(wide(dtype())).t().contiguous(), {}};
  if (config_.num_heads * length * length <= most_scores(device())) bias.whole = bias_rows(bias, 0, length);
  return bias;
}

// Of `count` queries from the one at `first` on: (1, h, count, L).
at::Tensor T5Network::bias_rows(const Bias& bias, std::int64_t first, std::int64_t count) {
  if (bias.whole.defined()) return bias.whole.narrow(2, first, count);
  const std::int64_t h = bias.by_distance.size(0), L = (bias.by_distance.size(1) + 1) / 2;
  const auto options = bias.by_distance.options().dtype(at::kLong);
  const at::Tensor queries = at::arange(first, first + count, options).unsqueeze(1);
  const at::Tensor distances = at::arange(L, options) - queries + (L - 1);  // (count, L)
  return bias.by_distance.index_select(1, distances.flatten()).view({1, h, count, L});
}

at::Tensor T5Network::forward(const at::Tensor& ids, const at::Tensor& mask) const {
  const c10::NoGradGuard no_grad;
  const std::int64_t B = ids.size(0), L = ids.size(1);
  const Bias bias = bias_of(L);
  const std::int64_t room = most_scores(device()) / (config_.num_heads * L * L);
  const std::int64_t together = device().is_cpu() ? 1 : std::clamp<std::int64_t>(room, 1, 64);
  const at::Tensor result = at::empty({B, L, config_.d_model}, table_.options());
  for (std::int64_t first = 0; first < B; first += together) {
    const std::int64_t count = std::min(together, B - first);
    const at::Tensor part = mask.defined() ? mask.narrow(0, first, count).to(device()) : mask;
    result.narrow(0, first, count).copy_(run(ids.narrow(0, first, count).to(device()), part, bias));
  }
  return result;
}

at::Tensor T5Network::run(const at::Tensor& ids, const at::Tensor& mask, const Bias& bias) const {
  at::Tensor x = at::embedding(table_, ids).to(wide(dtype()));  // (B, L, d)
  at::Tensor hidden;                                            // (B, 1, 1, L), added to scores
  if (mask.defined()) {
    const at::Tensor zero = at::zeros({}, x.options());
    hidden = at::where(mask.to(at::kBool), zero, zero + lowest(x.scalar_type())).unsqueeze(1).unsqueeze(1);
  }
  for (const Block& block : blocks_) {
    x = x + attention(block, norm(x, block.attention_norm), hidden, bias);
    x = x + dense(block, norm(x, block.dense_norm));
  }
  return norm(x, final_norm_);
}

// The mean square in fp32 whatever the dtype, as transformers has it; one rounding to the weights' dtype.
at::Tensor T5Network::norm(const at::Tensor& x, const at::Tensor& weight) const {
  const at::Tensor mean = x.to(at::kFloat).square().mean(-1, true);
  return (x * at::rsqrt(mean + config_.layer_norm_epsilon) * weight.to(x.scalar_type()))
      .to(weight.scalar_type());
}

// Without 1 / sqrt(k).
at::Tensor T5Network::attention(const Block& block, const at::Tensor& x, const at::Tensor& hidden,
                                const Bias& bias) const {
  const std::int64_t B = x.size(0), L = x.size(1), h = config_.num_heads;
  const at::Tensor qkv = at::linear(x, block.qkv)
                             .to(wide(dtype()))
                             .view({B, L, 3, h, config_.d_kv})
                             .permute({2, 0, 3, 1, 4});  // (3, B, h, L, k)
  const at::Tensor q = qkv.select(0, 0), k = qkv.select(0, 1).transpose(2, 3), v = qkv.select(0, 2);
  const std::int64_t rows = std::clamp<std::int64_t>(most_scores(device()) / (B * h * L), 1, L);
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < L; first += rows) {
    const std::int64_t count = std::min(rows, L - first);
    at::Tensor scores = at::matmul(q.narrow(2, first, count), k);  // (B, h, rows, L)
    scores += bias_rows(bias, first, count);
    if (hidden.defined()) scores += hidden;
    parts.push_back(at::matmul(at::softmax(scores, -1), v).transpose(1, 2));  // (B, rows, h, k)
  }
  const at::Tensor mixed =
      (parts.size() == 1 ? parts[0] : at::cat(parts, 1)).reshape({B, L, h * config_.d_kv});
  return at::linear(mixed.to(x.scalar_type()), block.o);
}

at::Tensor T5Network::dense(const Block& block, const at::Tensor& x) const {
  at::Tensor u = at::linear(x, block.wi).to(wide(x.scalar_type()));
  if (config_.gated())
    u = at::gelu(u.narrow(-1, 0, config_.d_ff), "tanh") * u.narrow(-1, config_.d_ff, config_.d_ff);
  else
    u = at::relu(u);
  return at::linear(u.to(block.wo.scalar_type()), block.wo);
}

}  // namespace pom::codecs
