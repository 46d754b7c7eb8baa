#include "pom/ops/mixer.h"

#include <cstdlib>
#include <string_view>

#include "pom/base/error.h"
#include "pom/ops/dispatcher/operators.h"

namespace pom::ops {
namespace {

// What threads begin with: POM_PATH, or the library's choice.
Path first_path() {
  const char* value = std::getenv("POM_PATH");
  const std::string_view name = value == nullptr ? "" : value;
  if (name.empty() || name == "automatic") return Path::automatic;
  if (name == "fused") return Path::fused;
  check(name == "composed", "POM_PATH: expected automatic, fused or composed, got ", name);
  return Path::composed;
}

Path& current_path() {
  thread_local Path current = first_path();
  return current;
}

}  // namespace

Path path() {
  return current_path();
}
Path set_path(Path path) {
  return std::exchange(current_path(), path);
}

at::Tensor polynomial_mixer(const at::Tensor& ho, const at::Tensor& se, std::int64_t order, const Mask& mask,
                            const Packing& packing) {
  static const auto op = find_op<MixerFn>("pom::mixer");
  return op.call(ho, se, order, optional_of(mask.visible), mask.block, mask.window, optional_of(packing.cu_q),
                 optional_of(packing.cu_k));
}

at::Tensor mixer_layer(const at::Tensor& xq, const at::Tensor& xc, const LayerWeights& w, std::int64_t order,
                       const Mask& mask, const Packing& packing) {
  static const auto op = find_op<LayerFn>("pom::mixer_layer");
  return op.call(xq, xc, w.ho_weight, optional_of(w.ho_bias), w.se_weight, optional_of(w.se_bias),
                 w.ag_weight, optional_of(w.ag_bias), order, optional_of(mask.visible), mask.block,
                 mask.window, optional_of(packing.cu_q), optional_of(packing.cu_k));
}

at::Tensor mixer_summary(const at::Tensor& xc, const LayerWeights& w, std::int64_t order,
                         const at::Tensor& keys) {
  static const auto op = find_op<SummaryFn>("pom::mixer_summary");
  return op.call(xc, w.ho_weight, optional_of(w.ho_bias), order, optional_of(keys));
}

at::Tensor mixer_select(const at::Tensor& xq, const at::Tensor& H, const LayerWeights& w) {
  static const auto op = find_op<SelectFn>("pom::mixer_select");
  return op.call(xq, H, w.se_weight, optional_of(w.se_bias), w.ag_weight, optional_of(w.ag_bias));
}

std::pair<at::Tensor, at::Tensor> mixer_scan(const at::Tensor& x, const LayerWeights& w, std::int64_t order,
                                             const at::Tensor& sum, const at::Tensor& count) {
  static const auto op = find_op<ScanFn>("pom::mixer_scan");
  auto [out, last] = op.call(x, w.ho_weight, optional_of(w.ho_bias), w.se_weight, optional_of(w.se_bias),
                             w.ag_weight, optional_of(w.ag_bias), order, sum, count);
  return {out, last};
}

}  // namespace pom::ops
