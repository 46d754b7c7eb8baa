// Every operation of torch on the emulated GPU: the CPU's kernel on tensors over the same memory. Results
// that are inputs come back as these, views as views of the same storage, new ones as tensors over what the
// CPU's kernel allocated, which is memory of the device then. What a GPU would refuse is refused: tensors in
// the host's memory among the device's, and in a capture whatever waits for the device.
#include "tests/emulated/torch/emulated.h"
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Storage.h>
#include <torch/library.h>

namespace emulated {
namespace {

using c10::IValue;
using c10::Storage;
using c10::StorageImpl;
using torch::jit::Stack;

const c10::Device kDevice(c10::kCUDA, 0);

void drop_storage(void* held) {
  delete static_cast<Storage*>(held);
}

// A storage over the memory of another one, which lives as long as it.
Storage over(const Storage& storage, c10::Device device) {
  const std::size_t bytes = storage.nbytes();
  c10::DataPtr data(storage.mutable_data(), new Storage(storage), drop_storage, device);
  return Storage(Storage::use_byte_size_t(), bytes, std::move(data), c10::GetAllocator(device.type()),
                 storage.resizable());
}

// The same that keeps nothing alive: a graph knows addresses, and no tensors.
Storage at_address(const Storage& storage) {
  c10::DataPtr data(storage.mutable_data(), c10::Device(c10::kCPU));
  return Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false);
}

at::Tensor like(const at::Tensor& t, Storage storage, c10::DispatchKey key) {
  at::Tensor made =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), t.dtype());
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (t.is_conj()) impl->_set_conj(true);
  if (t.is_neg()) impl->_set_neg(true);
  return made;
}

bool on_device(const at::Tensor& t) {
  return t.defined() && t.is_cuda() && t.layout() == c10::kStrided;
}

// Every tensor of a value, the lists' too, through `change`.
template <class Change>
IValue each_tensor(const IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& t : value.toTensorVector()) made.push_back(change(t));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
      made.push_back(t ? std::optional(change(*t)) : std::nullopt);
    return made;
  }
  return value;
}

// One call: which of the CPU's tensors and storages stand for which of the device's.
class Call {
 public:
  explicit Call(bool results_stay_here) : here_(results_stay_here) {}

  at::Tensor to_cpu(const at::Tensor& t) {
    if (!on_device(t)) return t;
    const auto found = number_.find(t.unsafeGetTensorImpl());
    if (found != number_.end()) return pairs_[found->second].cpu;
    const at::Tensor made = like(t, to_cpu(t.storage()), c10::DispatchKey::CPU);
    number_[t.unsafeGetTensorImpl()] = number_[made.unsafeGetTensorImpl()] = pairs_.size();
    pairs_.push_back({t, made});
    return made;
  }
  Storage to_cpu(const Storage& storage) {
    Storage& made = cpu_[storage.unsafeGetStorageImpl()];
    if (!made) {
      made = over(storage, c10::kCPU);
      cuda_[made.unsafeGetStorageImpl()] = storage;
    }
    return made;
  }

  at::Tensor to_device(const at::Tensor& t) {
    if (!t.defined() || !t.is_cpu() || t.layout() != c10::kStrided) return t;
    const auto found = number_.find(t.unsafeGetTensorImpl());
    if (found != number_.end()) return pairs_[found->second].device;
    if (here_ && !cuda_.contains(t.storage().unsafeGetStorageImpl())) return t;
    return like(t, to_device(t.storage()), c10::DispatchKey::CUDA);
  }

  // What the kernel has changed of its inputs besides their values: sizes, or the storage itself.
  void hand_back_changes() {
    for (auto& [device, cpu] : pairs_) {
      const Storage &is = cpu.storage(), was = device.storage();
      if (to_device(is).unsafeGetStorageImpl() != was.unsafeGetStorageImpl())
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(to_device(is));
      else if (is.data() != was.data() || is.nbytes() != was.nbytes())
        grow(was, is);
      if (cpu.sizes() != device.sizes() || cpu.strides() != device.strides() ||
          cpu.storage_offset() != device.storage_offset())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

  bool is_new(const at::Tensor& t) const {
    return t.defined() && t.is_cpu() && !cuda_.contains(t.storage().unsafeGetStorageImpl());
  }

 private:
  Storage to_device(const Storage& storage) {
    Storage& made = cuda_[storage.unsafeGetStorageImpl()];
    if (!made) made = over(storage, kDevice);
    return made;
  }
  // A kernel that made the CPU's storage larger gave it memory of its own.
  void grow(const Storage& device, const Storage& cpu) const {
    c10::DataPtr data(cpu.mutable_data(), new Storage(cpu), drop_storage, kDevice);
    device.set_data_ptr_noswap(std::move(data));
    device.set_nbytes(cpu.nbytes());
  }

  struct Pair {
    at::Tensor device, cpu;
  };
  bool here_;
  std::vector<Pair> pairs_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> number_;  // of both of a pair
  std::unordered_map<const StorageImpl*, Storage> cpu_, cuda_;      // of the device's, of the CPU's
};

// What takes host tensors beside the device's on a real GPU too.
bool may_mix(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::copy_",         "aten::index",          "aten::index_put_", "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_foreach_copy_", "aten::set_",       "aten::_pack_padded_sequence"};
  return names.contains(name) || name.starts_with("aten::_foreach_");
}

// What waits for the device: a capture cannot hold it.
bool waits(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::_local_scalar_dense", "aten::nonzero",  "aten::equal",
      "aten::masked_select",       "aten::_unique2", "aten::unique_consecutive"};
  return names.contains(name);
}

struct Arguments {
  std::optional<c10::Device> asked;  // a device among the arguments
  bool device_tensor = false;
  bool host_tensor = false;  // more than a number
  bool host_number = false;
  bool unpinned = false;
  bool non_blocking = false;
};

Arguments look_at(const c10::OperatorHandle& op, const Stack& stack, std::size_t begin) {
  Arguments found;
  for (std::size_t i = begin; i < stack.size(); ++i) {
    if (stack[i].isDevice()) found.asked = stack[i].toDevice();
    if (op.schema().arguments()[i - begin].name() == "non_blocking")
      found.non_blocking = stack[i].isBool() && stack[i].toBool();
    each_tensor(stack[i], [&](const at::Tensor& t) {
      found.device_tensor |= on_device(t);
      if (t.defined() && t.is_cpu() && t.layout() == c10::kStrided) {
        (t.dim() > 0 ? found.host_tensor : found.host_number) = true;
        found.unpinned |= !is_pinned(t.const_data_ptr());
      }
      return t;
    });
  }
  const std::string& name = op.schema().name();
  TORCH_CHECK(
      !found.device_tensor || !found.host_tensor || may_mix(name), name,
      ": Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!");
  return found;
}

bool goes_to_host(const c10::OperatorHandle& op, const Stack& stack, std::size_t begin,
                  const Arguments& given) {
  const std::string& name = op.schema().name();
  if (name == "aten::copy_") return !on_device(stack[begin].toTensor());
  return given.asked && given.asked->is_cpu();
}

// A copy from or to the host is part of a graph if it need not be waited for; a new host tensor is not
// pinned.
void check_capturable(const c10::OperatorHandle& op, const Arguments& given, bool to_host) {
  const std::string& name = op.schema().name();
  const bool copies = name == "aten::copy_" || name == "aten::_to_copy";
  const bool crosses = to_host || given.host_tensor || (copies && given.host_number);
  const bool goes_on = given.non_blocking && !given.unpinned && !(to_host && given.asked);
  TORCH_CHECK(!waits(name) && (!crosses || goes_on), "CUDA error: ", name,
              ": operation not permitted when stream is capturing");
}

// The call as a graph knows it: addresses of what it reads and writes. Numbers are those of the capture.
Stack by_address(const Stack& stack, std::size_t begin, std::size_t end) {
  std::unordered_map<const StorageImpl*, Storage> made;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors;
  Stack recorded;
  for (std::size_t i = begin; i < end; ++i)
    recorded.push_back(each_tensor(stack[i], [&](const at::Tensor& t) -> at::Tensor {
      if (!on_device(t)) return t.defined() && t.is_cpu() && t.dim() == 0 ? t.clone() : t;
      at::Tensor& known = tensors[t.unsafeGetTensorImpl()];
      if (!known.defined()) {
        Storage& storage = made[t.storage().unsafeGetStorageImpl()];
        if (!storage) storage = at_address(t.storage());
        known = like(t, storage, c10::DispatchKey::CPU);
      }
      return known;
    }));
  return recorded;
}

void replay(const c10::OperatorHandle& op, Stack stack,
            const std::vector<std::optional<std::pair<void*, std::size_t>>>& results) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  auto to = results.begin();
  for (const IValue& value : stack)
    each_tensor(value, [&](const at::Tensor& t) {
      if (const auto& result = *to++) {
        TORCH_CHECK(t.storage().nbytes() == result->second, op.schema().name(),
                    ": replayed with other sizes");
        std::memcpy(result->first, t.storage().data(), result->second);
      }
      return t;
    });
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t begin = stack->size() - arguments.size();
  const Arguments given = look_at(op, *stack, begin);
  const bool to_host = goes_to_host(op, *stack, begin, given), in_graph = capturing();
  if (in_graph) check_capturable(op, given, to_host);
  Call call(to_host);
  for (std::size_t i = begin; i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (value.isDevice()) value = c10::Device(c10::kCPU);
    if (arguments[i - begin].name() == "generator") value = generator();
  }
  Stack recorded = in_graph ? by_address(*stack, begin, stack->size()) : Stack();
  for (std::size_t i = begin; i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (value.isStorage()) {
      if (value.toStorage().device().is_cuda()) value = call.to_cpu(value.toStorage());
    } else {
      value = each_tensor(value, [&](const at::Tensor& t) { return call.to_cpu(t); });
    }
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const AllocatesOnDevice allocates(!to_host);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  std::vector<std::optional<std::pair<void*, std::size_t>>> results;
  for (std::size_t i = begin; i < stack->size(); ++i)
    (*stack)[i] = each_tensor((*stack)[i], [&](const at::Tensor& t) {
      results.push_back(call.is_new(t)
                            ? std::optional(std::pair(t.storage().mutable_data(), t.storage().nbytes()))
                            : std::nullopt);
      return t;
    });
  call.hand_back_changes();
  for (std::size_t i = begin; i < stack->size(); ++i)
    (*stack)[i] = each_tensor((*stack)[i], [&](const at::Tensor& t) { return call.to_device(t); });
  if (in_graph)
    record([op, recorded = std::move(recorded), results = std::move(results)] {
      replay(op, recorded, results);
    });
}

void nothing(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

// For each operation by itself: those that are made of others (CompositeExplicitAutograd) come before a
// fallback, and end in kernels that this torch has for the CPU alone.
const bool registered = [] {
  using c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto put = [&](const c10::OperatorHandle& op, c10::KernelFunction kernel) {
    static auto& kept = *new std::vector<c10::RegistrationHandleRAII>;
    kept.push_back(dispatcher.registerImpl(op.operator_name(), DispatchKey::CUDA, std::move(kernel),
                                           std::nullopt, nullptr, "an emulated GPU"));
  };
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(DispatchKey::CUDA)) continue;
    if (name.name == "aten::record_stream")
      put(*op, c10::KernelFunction::makeFromBoxedFunction<&nothing>());
    else if (op->hasKernelForDispatchKey(DispatchKey::CPU) ||
             op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
             op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional))
      put(*op, c10::KernelFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
  return true;
}();

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace
}  // namespace emulated
