#include "pom/ops/cuda/prepared_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/kernels/sm90/gemm/gemm.h"
#include "pom/ops/cuda/launch.h"

namespace pom::ops {
namespace {

constexpr std::size_t kMostCopies = 1024;  // a network has some five a layer

thread_local PreparedWeights* in_use = nullptr;

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// A copy in memory that torch's allocator does not know, for what is kept: torch.compile's graphs make the
// first calls in a pool of their own, and refuse to go on where anything in it outlives a call. `before`,
// where it fits, is memory to write it to: whoever reads that is behind on the same stream.
at::Tensor outside_pools(const at::Tensor& t, const at::Tensor& before = {}) {
  if (!t.defined()) return t;
  const detail::OnDevice device(t);
  const auto write = [&](void* to) {
    detail::check_launch("prepared weights", cudaMemcpyAsync(to, t.const_data_ptr(), t.nbytes(),
                                                             cudaMemcpyDeviceToDevice, device.stream()));
  };
  if (before.defined() && before.sizes() == t.sizes() && before.scalar_type() == t.scalar_type()) {
    write(before.mutable_data_ptr());
    return before;
  }
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);  // of other threads
  void* memory = nullptr;
  const std::size_t bytes = std::max<std::size_t>(t.nbytes(), 1);
  cudaError_t got = cudaMalloc(&memory, bytes);
  if (got == cudaErrorMemoryAllocation && !capturing()) {  // torch's allocator may hold what nobody uses
    static_cast<void>(cudaGetLastError());
    c10::cuda::CUDACachingAllocator::emptyCache();
    got = cudaMalloc(&memory, bytes);
  }
  if (got != cudaSuccess) static_cast<void>(cudaGetLastError());
  TORCH_CHECK_WITH(OutOfMemoryError, got == cudaSuccess, "prepared weights: no memory for a copy of ",
                   t.nbytes(), " bytes: ", cudaGetErrorString(got));
  const auto free = [](void* p) {
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    static_cast<void>(cudaFree(p));
  };
  const at::Tensor copy =  // with the device, or the driver is asked whose memory it is
      at::for_blob(memory, t.sizes())
          .deleter(free)
          .options(t.options())
          .target_device(t.device())
          .make_tensor();
  write(memory);
  return copy;
}

// Which row of the paper's layout stands in each row of the kernels'. There are few kinds, and graphs read
// them: they stay for good.
at::Tensor row_order(std::int64_t order, std::int64_t rows, c10::Device device) {
  static std::mutex mutex;
  static auto& made = *new std::map<std::tuple<std::int64_t, std::int64_t, int>, at::Tensor>;
  const std::lock_guard alone(mutex);
  at::Tensor& index = made[{order, rows, device.index()}];
  if (index.defined()) return index;
  check(!capturing(), "mixer_layer: expected a call before the graph is captured: weights of ", rows,
        " features and order ", order, " have not been seen yet");
  std::vector<std::int64_t> from(static_cast<std::size_t>(rows));
  for (std::int64_t r = 0; r < rows; ++r)
    from[static_cast<std::size_t>(r)] = kernels::sums_row(r, static_cast<int>(order), rows / order);
  const at::Tensor made_here = outside_pools(at::tensor(from, at::TensorOptions(at::kLong)).to(device));
  const detail::OnDevice here(made_here);
  detail::check_launch("prepared weights",
                       cudaStreamSynchronize(here.stream()));  // other streams will read it
  return index = made_here;
}

PreparedWeight quantized(const at::Tensor& matrix) {
  const detail::OnDevice device(matrix);
  PreparedWeight r{at::empty(matrix.sizes(), matrix.options().dtype(at::kFloat8_e4m3fn)),
                   at::empty({matrix.size(0)}, matrix.options().dtype(at::kFloat))};
  kernels::QuantizeParams p;
  p.rows = matrix.size(0), p.width = matrix.size(1), p.dtype = detail::kernel_dtype(matrix);
  p.x = matrix.const_data_ptr(), p.out = r.values.mutable_data_ptr();
  p.scale = r.scale.mutable_data_ptr<float>();
  detail::check_launch("quantize_rows", kernels::quantize_rows(p, device.stream()));
  return r;
}

PreparedWeight make(const at::Tensor& tensor, const Layout& layout) {
  at::Tensor t = tensor.detach();
  if (layout.order > 0) t = at::index_select(t, 0, row_order(layout.order, t.size(0), t.device()));
  if (layout.form == Form::e4m3) return quantized(t.contiguous());
  return {layout.form == Form::bias ? t.to(at::kFloat).contiguous() : t.contiguous(), {}};
}

// Nothing to make: such a tensor is read as it stands, and must not be held.
bool stands_already(const at::Tensor& tensor, const Layout& layout) {
  return layout.order == 0 && tensor.is_contiguous() &&
         (layout.form == Form::rows || (layout.form == Form::bias && tensor.scalar_type() == at::kFloat));
}

}  // namespace

PreparedWeights& PreparedWeights::current() {
  // Never destroyed: its tensors must not outlive CUDA at the end of the process.
  static auto& shared = *new PreparedWeights(Kind::shared);
  return in_use != nullptr ? *in_use : shared;
}

PreparedWeights::Use::Use(PreparedWeights& weights) : before_(std::exchange(in_use, &weights)) {}
PreparedWeights::Use::~Use() {
  in_use = before_;
}

PreparedWeight PreparedWeights::get(const at::Tensor& tensor, const Layout& layout) {
  if (!tensor.defined()) return {};
  if (stands_already(tensor, layout)) return {tensor, {}};
  const c10::cuda::CUDAGuard device(tensor.device());
  const bool frozen = kind_ == Kind::frozen;
  // Inference tensors have no version: what becomes of them cannot be followed.
  if (!frozen && (capturing() || tensor.is_inference())) return make(tensor, layout);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  const Key key{tensor.unsafeGetTensorImpl(), layout.form, layout.order, frozen ? 0 : stream.id()};
  const std::lock_guard alone(mutex_);
  PreparedWeight stale;
  if (const PreparedWeight* found = find(key, tensor, stale)) return *found;
  check(!capturing(), "prepared weights: expected an evaluation before the graph is captured");
  PreparedWeight made = make(tensor, layout);
  if (frozen) stream.synchronize();  // other streams will read it
  if (!frozen) {
    made.values = outside_pools(made.values, stale.values);
    made.scale = outside_pools(made.scale, stale.scale);
  }
  keep(key, tensor, made);
  return made;
}

PreparedWeight* PreparedWeights::find(const Key& key, const at::Tensor& tensor, PreparedWeight& stale) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  const Entries::iterator entry = found->second;
  const bool same =
      kind_ == Kind::frozen ||
      (!entry->source.expired() && entry->version == static_cast<std::uint32_t>(tensor._version()) &&
       entry->data == tensor.const_data_ptr() && entry->dtype == tensor.scalar_type());
  if (!same) {
    stale = entry->prepared;
    erase(entry);
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return &entry->prepared;
}

void PreparedWeights::keep(const Key& key, const at::Tensor& tensor, const PreparedWeight& prepared) {
  if (kind_ == Kind::shared) {
    forget_the_dead();
    while (entries_.size() >= kMostCopies) erase(std::prev(entries_.end()));
  }
  const std::uint32_t version = tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
  entries_.push_front({key, decltype(Entry::source)(tensor.getIntrusivePtr()), version,
                       tensor.const_data_ptr(), tensor.scalar_type(), prepared});
  by_key_[key] = entries_.begin();
}

void PreparedWeights::forget_the_dead() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->source.expired()) erase(entry);
    entry = next;
  }
}

void PreparedWeights::erase(Entries::iterator entry) {
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

}  // namespace pom::ops
