// The operator's dispatcher entries: their schemas, and typed calls of them. The registrations for each key
// are in register_*.cpp; the functions of mixer.h go through here, so that C++ and Python run the same thing.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include "pom/ops/mixer.h"

namespace pom::ops {

using OptTensor = std::optional<at::Tensor>;

#define POM_WEIGHTS \
  "Tensor ho_weight, Tensor? ho_bias, Tensor se_weight, Tensor? se_bias, Tensor ag_weight, Tensor? ag_bias"
#define POM_MASK "Tensor? mask=None, int block=0, int window=0, Tensor? cu_q=None, Tensor? cu_k=None"

namespace schema {
constexpr const char* mixer = "mixer(Tensor ho, Tensor se, int order, " POM_MASK ") -> Tensor";
constexpr const char* mixer_backward =
    "mixer_backward(Tensor dout, Tensor ho, Tensor se, int order, " POM_MASK ") -> (Tensor, Tensor)";
constexpr const char* mixer_layer =
    "mixer_layer(Tensor xq, Tensor xc, " POM_WEIGHTS ", int order, " POM_MASK ") -> Tensor";
constexpr const char* mixer_layer_train =
    "mixer_layer_train(Tensor xq, Tensor xc, " POM_WEIGHTS ", int order, " POM_MASK
    ") -> (Tensor out, Tensor ho, Tensor se, Tensor H)";
constexpr const char* mixer_layer_backward =
    "mixer_layer_backward(Tensor dout, Tensor xq, Tensor xc, " POM_WEIGHTS
    ", Tensor ho, Tensor se, Tensor H, "
    "bool need_x, bool need_w, int order, " POM_MASK
    ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
constexpr const char* mixer_summary =
    "mixer_summary(Tensor xc, Tensor ho_weight, Tensor? ho_bias, int order, Tensor? mask=None) -> Tensor";
constexpr const char* mixer_select =
    "mixer_select(Tensor xq, Tensor H, Tensor se_weight, Tensor? se_bias, Tensor ag_weight, Tensor? ag_bias) "
    "-> Tensor";
constexpr const char* mixer_scan =
    "mixer_scan(Tensor x, " POM_WEIGHTS ", int order, Tensor sum, Tensor count) -> (Tensor, Tensor)";
// Five matrices of every block (ho, se, ag, up, down), and as many biases.
constexpr const char* stack_step =
    "stack_step(Tensor(a!) x, Tensor[] weights, Tensor?[] biases, Tensor modulation, Tensor(b!) sums, "
    "Tensor(c!) count, int order, float eps=1e-6) -> bool";
constexpr const char* set_path = "set_path(int path) -> int";
}  // namespace schema

#define POM_MASK_ARGS \
  const OptTensor &mask, std::int64_t block, std::int64_t window, const OptTensor &cu_q, const OptTensor &cu_k
#define POM_WEIGHT_ARGS                                                               \
  const at::Tensor &ho_weight, const OptTensor &ho_bias, const at::Tensor &se_weight, \
      const OptTensor &se_bias, const at::Tensor &ag_weight, const OptTensor &ag_bias

using Gradients8 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                              at::Tensor, at::Tensor>;
using MixerFn = at::Tensor(const at::Tensor&, const at::Tensor&, std::int64_t, POM_MASK_ARGS);
using MixerBackwardFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                           const at::Tensor&, std::int64_t, POM_MASK_ARGS);
using LayerFn = at::Tensor(const at::Tensor&, const at::Tensor&, POM_WEIGHT_ARGS, std::int64_t,
                           POM_MASK_ARGS);
using LayerTrainFn = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&,
                                                                                const at::Tensor&,
                                                                                POM_WEIGHT_ARGS, std::int64_t,
                                                                                POM_MASK_ARGS);
using LayerBackwardFn = Gradients8(const at::Tensor&, const at::Tensor&, const at::Tensor&, POM_WEIGHT_ARGS,
                                   const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, bool,
                                   std::int64_t, POM_MASK_ARGS);
using SummaryFn = at::Tensor(const at::Tensor&, const at::Tensor&, const OptTensor&, std::int64_t,
                             const OptTensor&);
using SelectFn = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptTensor&,
                            const at::Tensor&, const OptTensor&);
using ScanFn = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, POM_WEIGHT_ARGS, std::int64_t,
                                                  const at::Tensor&, const at::Tensor&);

template <class Fn>
const c10::TypedOperatorHandle<Fn> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Fn>();
}

inline at::Tensor tensor_of(const OptTensor& t) {
  return t.value_or(at::Tensor());
}
inline OptTensor optional_of(const at::Tensor& t) {
  return t.defined() ? OptTensor(t) : std::nullopt;
}
// In place of a part that nobody wants: what an operator returns is defined.
inline at::Tensor empty_part(const at::Tensor& like) {
  return at::empty({0}, like.options());
}
inline at::Tensor or_empty(const at::Tensor& t, const at::Tensor& like) {
  return t.defined() ? t : empty_part(like);
}
inline std::vector<std::int64_t> shape_with(const at::Tensor& x, std::int64_t last) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}
inline Mask mask_of(const OptTensor& mask, std::int64_t block, std::int64_t window) {
  return {tensor_of(mask), block, window};
}
inline Packing packing_of(const OptTensor& cu_q, const OptTensor& cu_k) {
  return {tensor_of(cu_q), tensor_of(cu_k)};
}
inline LayerWeights weights_of(POM_WEIGHT_ARGS) {
  return {ho_weight, tensor_of(ho_bias), se_weight, tensor_of(se_bias), ag_weight, tensor_of(ag_bias)};
}

}  // namespace pom::ops
