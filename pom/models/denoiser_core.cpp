#include "pom/models/denoiser_core.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/nn/embeddings.h"
#include "pom/nn/modulated_block.h"

namespace pom::models {
namespace {

constexpr std::int64_t kTableRows = 64;  // kept at a time

// The matrices of all blocks and of the output as one; each is given back as soon as it has been copied.
ops::Dense joined(WeightReader& weights, const std::vector<std::string>& names, std::int64_t rows) {
  ops::Dense all;
  std::int64_t at = 0;
  for (const std::string& name : names) {
    const ops::Dense part = weights.dense(name);
    if (at == 0)
      all = {at::empty({rows, part.weight.size(1)}, part.weight.options()),
             at::empty({rows}, part.bias.options())};
    all.weight.narrow(0, at, part.weight.size(0)).copy_(part.weight);
    all.bias.narrow(0, at, part.bias.size(0)).copy_(part.bias);
    at += part.weight.size(0);
  }
  return all;
}

}  // namespace

at::Tensor WeightReader::take(const std::string& name, at::ScalarType dtype) {
  return weights_.extract(name).mapped().detach().to(dtype).contiguous();
}
at::Tensor WeightReader::take(const std::string& name) {
  return take(name, dtype_);
}
ops::Dense WeightReader::dense(const std::string& name) {
  at::Tensor weight = take(name + ".weight");
  return {std::move(weight), take(name + ".bias")};
}
ops::LayerWeights WeightReader::mixer(const std::string& name) {
  const ops::Dense ho = dense(name + ".ho_proj"), se = dense(name + ".se_proj"),
                   ag = dense(name + ".ag_proj");
  return {ho.weight, ho.bias, se.weight, se.bias, ag.weight, ag.bias};
}

ModulationTable::ModulationTable(WeightReader& weights, const NetworkConfig& config, int parts, int gates,
                                 at::TensorOptions stream)
    : parts_(parts),
      gates_(gates),
      depth_(config.depth),
      dim_(config.dim),
      features_(time_features_of(config)),
      one_plus_(!config.attention()),
      stream_(stream) {
  time_up_ = weights.dense("time_emb.0"), time_down_ = weights.dense("time_emb.2");
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < depth_; ++i)
    for (const char* part : {"cond_mlp.1", "gate_mlp.1"})
      names.push_back(pom::detail::concat("layers.", i, ".", part));
  names.push_back("out_mod.1");
  matrix_ = joined(weights, names, width());
}

void ModulationTable::plan(const std::vector<Evaluation>& evaluations, const at::Tensor& conditions) {
  std::vector<double> times;
  time_of_.clear();
  for (const Evaluation& evaluation : evaluations) {
    const auto found = std::ranges::find(times, evaluation.t);
    time_of_.push_back(found - times.begin());
    if (found == times.end()) times.push_back(evaluation.t);
  }
  const at::Tensor features = nn::time_features(at::tensor(times, at::kDouble), features_).to(stream_);
  time_emb_ = at::empty({std::ssize(times), dim_}, stream_);
  ops::silu_mlp_rows(features, time_up_, time_down_, time_emb_);
  conditions_ = conditions;
  first_ = count_ = 0;
}

void ModulationTable::fill(std::int64_t first) {
  const std::int64_t each = conditions_.defined() ? conditions_.size(0) : 1;
  const std::int64_t fit = std::max<std::int64_t>(1, kTableRows / each);
  first_ = first, count_ = std::min(fit, time_emb_.size(0) - first);
  at::Tensor c = time_emb_.narrow(0, first, count_);
  if (conditions_.defined()) c = (c.unsqueeze(1) + conditions_.unsqueeze(0)).reshape({count_ * each, dim_});
  table_ = at::empty({count_ * each, width()}, stream_);
  ops::silu_linear_rows(c, matrix_, table_);
  if (!one_plus_) return;
  const at::Tensor blocks = table_.narrow(1, 0, parts_ * depth_ * dim_);
  blocks.unflatten(1, {depth_, parts_, dim_}).narrow(2, parts_ - gates_, gates_).add_(1);
}

at::Tensor ModulationTable::rows(std::int64_t evaluation) {
  const std::int64_t time = time_of_[static_cast<std::size_t>(evaluation)];
  if (time < first_ || time >= first_ + count_) fill(time);
  const std::int64_t each = table_.size(0) / count_;
  return table_.narrow(0, (time - first_) * each, each);
}

at::Tensor ModulationTable::part(const at::Tensor& rows, std::int64_t layer, int which) const {
  return rows.narrow(1, (layer * parts_ + which) * dim_, dim_);
}
ops::Modulation ModulationTable::modulation(const at::Tensor& rows, std::int64_t layer, int scale,
                                            int shift) const {
  return {part(rows, layer, scale), part(rows, layer, shift), nn::kNormEps};
}
ops::Modulation ModulationTable::output(const at::Tensor& rows) const {
  const std::int64_t at = parts_ * depth_ * dim_;
  return {rows.narrow(1, at, dim_), rows.narrow(1, at + dim_, dim_), nn::kNormEps};
}

std::unique_ptr<Denoiser> Denoiser::make(const NetworkConfig& config, Weights weights, at::ScalarType dtype) {
  return config.video() ? make_clip_denoiser(config, std::move(weights), dtype)
                        : make_image_denoiser(config, std::move(weights), dtype);
}

at::ScalarType stored_as(at::ScalarType dtype) {
  return dtype == at::kFloat8_e4m3fn ? at::kBFloat16 : dtype;
}
at::ScalarType arithmetic_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

void check_plan(const SamplingPlan& plan, const NetworkConfig& config, const char* who) {
  const std::int64_t p = config.patch;
  check(plan.batch >= 1, who, ": batch: expected at least one item, got ", plan.batch);
  check(plan.height >= p && plan.width >= p && plan.height % p == 0 && plan.width % p == 0, who,
        ": size: expected sides that the patch (", p, ") divides, got ", plan.width, "x", plan.height);
  check(!plan.evaluations.empty(), who, ": evaluations: expected at least one, got none");
}

}  // namespace pom::models
