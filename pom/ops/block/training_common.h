// Private to the room: what the operations of training.h and training_branch.h ask of their arguments, and
// the dtypes they compute in.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "pom/base/error.h"
#include "pom/ops/mixer.h"
#include "pom/ops/problem.h"

namespace pom::ops::detail {

using torch::autograd::variable_list;

inline at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// What a branch computes in: autocast's dtype where it is on, else that of the stream.
inline at::ScalarType branch_type(const at::Tensor& x) {
  const c10::DeviceType device = x.device().type();
  const bool lowered = x.scalar_type() != at::kDouble && at::autocast::is_autocast_enabled(device);
  return lowered ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

inline void check_stream(const char* op, const char* name, const at::Tensor& x) {
  check(x.defined(), op, ": ", name, ": expected a tensor, got none");
  check_tokens(op, name, x, 3);
  check(x.size(2) >= 1, op, ": ", name, ": expected at least one channel, got shape ", shape_text(x));
}
inline void check_branch(const char* op, const at::Tensor& y, const at::Tensor& x) {
  check_stream(op, "y", y);
  check(y.sizes() == x.sizes() && y.device() == x.device(), op, ": y: expected shape ", shape_text(x), " on ",
        x.device(), " like x, got ", shape_text(y), " on ", y.device());
}
inline void check_rows(const char* op, const char* name, const at::Tensor& rows, const at::Tensor& x) {
  check(rows.defined() && rows.dim() == 2 && rows.size(0) == x.size(0) && rows.size(1) == x.size(2) &&
            rows.is_floating_point() && rows.device() == x.device(),
        op, ": ", name, ": expected real numbers of shape (", x.size(0), ", ", x.size(2), ") on ", x.device(),
        ", got ", rows.defined() ? shape_text(rows) : "none");
}

inline void check_linear(const char* op, const char* name, const at::Tensor& weight, const at::Tensor& bias,
                         std::int64_t in) {
  check(weight.defined() && weight.dim() == 2 && weight.size(1) == in && weight.size(0) >= 1, op, ": ", name,
        ": expected a weight (out, ", in, "), got ", weight.defined() ? shape_text(weight) : "none");
  check(bias.defined() && bias.dim() == 1 && bias.size(0) == weight.size(0), op, ": ", name,
        "_bias: expected (", weight.size(0), "), got ", bias.defined() ? shape_text(bias) : "none");
}
// Where a sequence has several texts, (T, L, any), its tokens are as many sequences.
inline at::Tensor by_text(const at::Tensor& x, const at::Tensor& texts) {
  return x.reshape({texts.size(0), x.size(0) * x.size(1) / texts.size(0), x.size(2)});
}

// Asked for, or in forward mode.
inline bool composed_only(const variable_list& inputs) {
  if (path() == Path::composed) return true;
  for (const at::Tensor& t : inputs)
    if (t._fw_grad(0).defined()) return true;
  return false;
}

inline bool wants_graph(const variable_list& inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& t : inputs)
    if (t.requires_grad()) return true;
  return false;
}

// These operations choose their dtypes themselves.
class NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace pom::ops::detail
