// All blocks of a network as one kernel.
#include "pom/kernels/sm90/network/block_stack.h"

#include <vector>

#include <ATen/ATen.h>

#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/prepared_weights.h"

namespace pom::ops::cuda {
namespace {

constexpr const char* kOp = "block_stack";
constexpr std::int64_t kMostRows = 5120;  // of more, the products apart are wide enough to be faster

const float* floats_of(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

class FusedBlockStack final : public BlockStack {
 public:
  FusedBlockStack(const at::Tensor& x, std::span<const StackedBlock> blocks, std::int64_t order, bool fp8)
      : x_(x), kept_(blocks.begin(), blocks.end()) {
    const StackedBlock& first = blocks.front();
    stack_.batch = x.size(0), stack_.tokens = x.size(1), stack_.width = x.size(2);
    stack_.features = first.mixer.ho_weight.size(0), stack_.hidden = first.up.weight.size(0);
    stack_.order = static_cast<int>(order);
    stack_.dtype = fp8 ? kernels::Dtype::e4m3 : detail::kernel_dtype(first.up.weight);
    stack_.eps = static_cast<float>(first.mixing.eps), stack_.stride = first.mixing.scale.stride(0);
    stack_.x = x_.mutable_data_ptr<float>(), stack_.count = static_cast<int>(blocks.size());
  }

  bool supported() const { return kernels::block_stack_supported(stack_); }

  void prepare() {
    for (const StackedBlock& b : kept_) blocks_.push_back(block(b));
    stack_.blocks = blocks_.data();
    const at::TensorOptions bytes = x_.options().dtype(at::kByte);
    workspace_ = at::empty({kernels::block_stack_workspace(stack_)}, bytes);
    stack_.workspace = workspace_.mutable_data_ptr();
    at::Tensor orders = at::empty({kernels::block_stack_orders_size(stack_)}, at::kByte);
    detail::check_launch(kOp, kernels::block_stack_write_orders(stack_, orders.mutable_data_ptr()));
    orders_ = orders.to(x_.device());
  }

  void run() override {
    const detail::OnDevice device(x_);
    detail::check_launch(kOp, kernels::block_stack_run(stack_, orders_.const_data_ptr(), device.stream()));
  }

 private:
  kernels::BlockStackMatrix matrix(const at::Tensor& weight, const at::Tensor& bias, std::int64_t order = 0) {
    PreparedWeights& prepared = PreparedWeights::current();
    const bool e4m3 = stack_.dtype == kernels::Dtype::e4m3;
    const PreparedWeight w = prepared.get(weight, {e4m3 ? Form::e4m3 : Form::rows, order});
    const PreparedWeight b = prepared.get(bias, {Form::bias, order});
    for (const at::Tensor& t : {w.values, w.scale, b.values}) prepared_.push_back(t);
    return {w.values.const_data_ptr(), floats_of(b.values), floats_of(w.scale)};
  }

  kernels::BlockStackBlock block(const StackedBlock& b) {
    kernels::BlockStackBlock to;
    to.context = matrix(b.mixer.ho_weight, b.mixer.ho_bias, stack_.order);
    to.select = matrix(b.mixer.se_weight, b.mixer.se_bias);
    to.aggregate = matrix(b.mixer.ag_weight, b.mixer.ag_bias);
    to.up = matrix(b.up.weight, b.up.bias), to.down = matrix(b.down.weight, b.down.bias);
    to.mixing_scale = floats_of(b.mixing.scale), to.mixing_shift = floats_of(b.mixing.shift);
    to.feeding_scale = floats_of(b.feeding.scale), to.feeding_shift = floats_of(b.feeding.shift);
    to.mixing_gate = floats_of(b.mixing_gate), to.feeding_gate = floats_of(b.feeding_gate);
    to.hidden_scale = floats_of(b.hidden_scale);
    return to;
  }

  at::Tensor x_;
  std::vector<StackedBlock> kept_;
  kernels::BlockStack stack_;
  std::vector<kernels::BlockStackBlock> blocks_;
  std::vector<at::Tensor> prepared_;
  at::Tensor workspace_, orders_;
};

bool aligned(const at::Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

// A matrix as the first block has it, where a copy engine can begin.
bool like(const at::Tensor& weight, const at::Tensor& first) {
  return weight.scalar_type() == at::kBFloat16 && weight.sizes() == first.sizes() && weight.is_contiguous() &&
         aligned(weight);
}
bool same_weights(const StackedBlock& b, const StackedBlock& first) {
  return like(b.mixer.ho_weight, first.mixer.ho_weight) && like(b.mixer.se_weight, first.mixer.se_weight) &&
         like(b.mixer.ag_weight, first.mixer.ag_weight) && like(b.up.weight, first.up.weight) &&
         like(b.down.weight, first.down.weight);
}

// The kernel reads four values at a time, and has one stride for all rows of modulations.
bool same_rows(const StackedBlock& block, std::int64_t batch, std::int64_t stride) {
  for (const at::Tensor& t : {block.mixing.scale, block.mixing.shift, block.feeding.scale,
                              block.feeding.shift, block.mixing_gate, block.feeding_gate})
    if (t.scalar_type() != at::kFloat || t.size(0) < batch || t.stride(1) != 1 ||
        (t.size(0) > 1 && t.stride(0) != stride) || !aligned(t))
      return false;
  return true;
}

}  // namespace

std::unique_ptr<BlockStack> block_stack(const at::Tensor& x, std::span<const StackedBlock> blocks,
                                        std::int64_t order, bool fp8) {
  if (!x.is_cuda() || blocks.empty() || x.scalar_type() != at::kFloat || !x.is_contiguous() || !aligned(x))
    return nullptr;
  if (x.size(0) * x.size(1) > kMostRows) return nullptr;
  const detail::OnDevice device(x);
  if (detail::capturing(device.stream())) return nullptr;  // the orders are copied to the device
  const StackedBlock& first = blocks.front();
  for (const StackedBlock& b : blocks) {
    if (!same_weights(b, first) || !same_rows(b, x.size(0), first.mixing.scale.stride(0))) return nullptr;
    check(!fp8 || b.hidden_scale.defined(), kOp, ": hidden_scale: expected one of each block for fp8");
  }
  auto stack = std::make_unique<FusedBlockStack>(x, blocks, order, fp8);
  if (!stack->supported()) return nullptr;
  stack->prepare();
  return stack;
}

}  // namespace pom::ops::cuda
