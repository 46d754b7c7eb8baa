#include "pom/models/clip_past.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"

namespace pom::models {

std::vector<std::int64_t> layers_with_past(const NetworkConfig& config) {
  std::vector<std::int64_t> found;
  for (std::int64_t l = 0; l < config.depth && config.block_causal(); ++l)
    if (!config.sees_own_alone(l)) found.push_back(l);
  return found;
}

ClipPast::ClipPast(const NetworkConfig& config, std::int64_t rows, at::TensorOptions stream) {
  const std::int64_t kept = config.window > 0 ? 0 : 1;
  if (!config.attention())
    sums = at::zeros({std::ssize(layers_with_past(config)), rows, kept, config.features()}, stream);
}

ClipPast ClipPast::padded(std::int64_t kept) const {
  ClipPast more = *this;
  if (sums.defined() && sums.size(2) < kept)
    more.sums = at::constant_pad_nd(sums, {0, 0, kept - sums.size(2), 0});
  return more;
}

ClipPast ClipPast::next() const {
  ClipPast copy;
  if (sums.defined()) copy.sums = at::empty(sums.sizes(), sums.options());
  return copy;
}

// ---- states ----

namespace {

std::string numbered(const char* name, std::int64_t i) {
  return detail::concat(name, ".", i);
}

}  // namespace

std::int64_t kept_after(const NetworkConfig& config, std::int64_t blocks) {
  if (config.window > 0) return std::min(config.window, blocks);
  return config.attention() ? blocks : 1;
}

const at::Tensor& state_tensor(const std::map<std::string, at::Tensor>& all, const std::string& name) {
  const auto found = all.find(name);
  check(found != all.end(), "Denoiser: state: expected a tensor \"", name, "\", got none");
  return found->second;
}

void add_state(std::map<std::string, at::Tensor>& all, std::int64_t i, const ClipPast& past,
               const NetworkConfig& config, std::int64_t blocks, std::int64_t tokens) {
  const std::int64_t kept = kept_after(config, blocks);
  all[numbered("sums", i)] = past.sums.narrow(2, past.sums.size(2) - kept, kept).contiguous();
  all["counts"] = at::full({kept}, (config.window > 0 ? 1 : blocks) * tokens, at::kLong);
}

namespace {

void check_shape(const at::Tensor& tensor, const std::string& name, at::ScalarType dtype,
                 at::IntArrayRef shape) {
  if (tensor.scalar_type() == dtype && tensor.sizes() == shape) return;
  std::string wanted;
  for (const std::int64_t size : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
  fail("Denoiser: state: ", name, ": expected ", dtype == at::kLong ? "int64" : c10::toString(dtype),
       " of shape (", wanted, "), got ", tensor.scalar_type(), " of shape ", tensor.sizes());
}

}  // namespace

void add_state(std::map<std::string, at::Tensor>& all, std::int64_t i, const StoredKeys& keys) {
  all[numbered("keys", i)] = keys.keys, all[numbered("values", i)] = keys.values;
}

StoredKeys keys_of_state(const std::map<std::string, at::Tensor>& all, std::int64_t i,
                         const NetworkConfig& config, std::int64_t rows, std::int64_t blocks,
                         std::int64_t tokens, at::ScalarType dtype) {
  const StoredKeys stored{state_tensor(all, numbered("keys", i)), state_tensor(all, numbered("values", i))};
  const std::int64_t depth = std::ssize(layers_with_past(config)), kept = kept_after(config, blocks);
  check_shape(stored.keys, numbered("keys", i), dtype, {depth, rows, kept * tokens, config.dim});
  check_shape(stored.values, numbered("values", i), dtype, {depth, rows, kept * tokens, config.dim});
  return stored;
}

ClipPast past_of_state(const std::map<std::string, at::Tensor>& all, std::int64_t i,
                       const NetworkConfig& config, std::int64_t rows, std::int64_t blocks,
                       std::int64_t tokens, at::TensorOptions stream) {
  ClipPast past(config, rows, stream);
  const std::int64_t kept = kept_after(config, blocks), depth = std::ssize(layers_with_past(config));
  const at::Tensor sums = state_tensor(all, numbered("sums", i)), counts = state_tensor(all, "counts");
  check_shape(sums, numbered("sums", i), c10::typeMetaToScalarType(stream.dtype()),
              {depth, rows, kept, config.features()});
  check_shape(counts, "counts", at::kLong, {kept});
  const std::int64_t each = (config.window > 0 ? 1 : blocks) * tokens;
  check(counts.eq(each).all().item<bool>(), "Denoiser: state: counts: expected ", each,
        " tokens behind every sum, got others");
  past.sums = sums.to(stream).clone();
  return past;
}

}  // namespace pom::models
