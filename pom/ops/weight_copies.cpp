#include "pom/ops/weight_copies.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/kernels/common/context_order.h"

namespace pom::ops {
namespace {

constexpr at::ScalarType kCopies = at::kBFloat16;

// Who keeps copies of a weight, and of which of its matrices. Backward passes ask from threads of their own.
struct Kept {
  WeightCopies* by;
  std::size_t matrix;
};
std::mutex mutex;
std::map<const void*, Kept>& kept() {
  static auto& all = *new std::map<const void*, Kept>;
  return all;
}
std::vector<WeightCopies*>& keepers() {
  static auto& all = *new std::vector<WeightCopies*>;
  return all;
}

std::uint32_t version_of(const at::Tensor& t) {
  return static_cast<std::uint32_t>(t._version());
}

at::Tensor in_context_order(const at::Tensor& matrix, std::int64_t order) {
  const std::int64_t rows = matrix.size(0);
  std::vector<std::int64_t> from;
  for (std::int64_t r = 0; r < rows; ++r)
    from.push_back(kernels::context_row_of(r, static_cast<int>(order), rows / order));
  return at::index_select(matrix, 0, at::tensor(from, at::TensorOptions(at::kLong)).to(matrix.device()));
}

}  // namespace

WeightCopies::WeightCopies(at::Tensor flat, std::span<const at::Tensor> weights) : flat_(std::move(flat)) {
  for (const at::Tensor& weight : weights) {
    if (weight.dim() != 2 || weight.scalar_type() != at::kFloat || weight.numel() == 0) continue;
    const std::int64_t begin = weight.storage_offset() - flat_.storage_offset();
    check(weight.is_contiguous() && weight.is_alias_of(flat_) && begin >= 0 &&
              begin + weight.numel() <= flat_.numel(),
          "weight copies: expected matrices in the flat memory, got one of ", weight.sizes(), " elsewhere");
    matrices_.push_back({weight, begin, {}, {}});
  }
  std::ranges::sort(matrices_, {}, &Matrix::begin);
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < matrices_.size(); ++i)
    kept()[matrices_[i].weight.unsafeGetTensorImpl()] = {this, i};
  keepers().push_back(this);
}

WeightCopies::~WeightCopies() {
  const std::lock_guard lock(mutex);
  std::erase_if(kept(), [this](const auto& item) { return item.second.by == this; });
  std::erase(keepers(), this);
}

at::Tensor WeightCopies::find(const at::Tensor& weight, at::ScalarType dtype, CopyForm form,
                              std::int64_t order) {
  if (dtype != kCopies || !weight.defined()) return {};
  const std::lock_guard lock(mutex);
  const auto found = kept().find(weight.unsafeGetTensorImpl());
  if (found == kept().end()) return {};
  const auto [by, matrix] = found->second;
  return by->copy_of(by->matrices_[matrix], form, order);
}

at::Tensor WeightCopies::copy_of(Matrix& matrix, CopyForm form, std::int64_t order) {
  const c10::NoGradGuard no_grad;
  const bool capturing = cuda::capturing(flat_.device());
  const auto found = std::ranges::find(matrix.copies, form, &Copy::form);
  if (found != matrix.copies.end()) {
    if (found->order != order) return {};  // a weight has one order
    if (!capturing && matrix.made != versions_of(matrix)) make(matrix);
    return found->values;
  }
  if (capturing) return {};
  std::vector<std::int64_t> shape = matrix.weight.sizes().vec();
  if (form == CopyForm::transposed) std::swap(shape[0], shape[1]);
  matrix.copies.push_back({form, order, at::empty(shape, flat_.options().dtype(kCopies))});
  tables_.clear();
  all_ = {};
  make(matrix);
  return matrix.copies.back().values;
}

WeightCopies::Versions WeightCopies::versions_of(const Matrix& matrix) const {
  return {version_of(matrix.weight), version_of(flat_)};
}

void WeightCopies::make(Matrix& matrix) const {
  const c10::NoGradGuard no_grad;
  const at::Tensor weight = matrix.weight.detach();
  for (Copy& copy : matrix.copies)
    copy.values.copy_(copy.form == CopyForm::transposed ? weight.t()
                      : copy.form == CopyForm::context  ? in_context_order(weight, copy.order)
                                                        : weight);
  matrix.made = versions_of(matrix);
}

void WeightCopies::refresh() {
  const std::lock_guard lock(mutex);
  refresh_locked();
}

void WeightCopies::refresh_all() {
  const std::lock_guard lock(mutex);
  for (WeightCopies* each : keepers()) each->refresh_locked();
}

void WeightCopies::refresh_locked() {
  const auto old = [this](const Matrix& m) { return !m.copies.empty() && m.made != versions_of(m); };
  const auto count = std::ranges::count_if(matrices_, old);
  if (count == 0) return;
  if (count > 1 && flat_.is_cuda()) {  // a weight alone is not worth a pass over all
    if (!all_.parts.defined()) all_ = cuda::table_of(copies_from(0), flat_.device());
    if (cuda::lower_weights(flat_, all_)) {
      for (Matrix& matrix : matrices_) matrix.made = versions_of(matrix);
      return;
    }
  }
  for (Matrix& matrix : matrices_)
    if (old(matrix)) make(matrix);
}

std::vector<cuda::CopiedMatrix> WeightCopies::copied() const {
  const std::lock_guard lock(mutex);
  return copies_from(0);
}

std::vector<cuda::CopiedMatrix> WeightCopies::copies_from(std::int64_t begin) const {
  std::vector<cuda::CopiedMatrix> all;
  for (const Matrix& matrix : matrices_) {
    if (matrix.copies.empty() || matrix.begin < begin) continue;
    cuda::CopiedMatrix m{matrix.begin, matrix.weight.size(0), matrix.weight.size(1), {}, {}, {}, 0};
    for (const Copy& copy : matrix.copies) {
      if (copy.form == CopyForm::plain) m.plain = copy.values;
      if (copy.form == CopyForm::transposed) m.transposed = copy.values;
      if (copy.form == CopyForm::context) m.context = copy.values, m.order = copy.order;
    }
    all.push_back(std::move(m));
  }
  return all;
}

const cuda::WeightTable& WeightCopies::table(std::int64_t begin) {
  const std::lock_guard lock(mutex);
  const auto found = std::ranges::find(tables_, begin, &Table::begin);
  if (found != tables_.end()) return found->table;
  tables_.push_back({begin, cuda::table_of(copies_from(begin), begin, flat_.numel(), flat_.device())});
  return tables_.back().table;
}

void WeightCopies::written() {
  const std::lock_guard lock(mutex);
  for (Matrix& matrix : matrices_) matrix.made = versions_of(matrix);
}

std::int64_t WeightCopies::bytes() const {
  const std::lock_guard lock(mutex);
  std::int64_t sum = 0;
  for (const Matrix& matrix : matrices_)
    for (const Copy& copy : matrix.copies) sum += copy.values.nbytes();
  return sum;
}

}  // namespace pom::ops
