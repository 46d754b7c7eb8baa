#include "pom/train/device.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "pom/base/error.h"

namespace pom::train {

std::string device_text(const at::Device& device) {
  if (!device.is_cpu()) return device.str();
  const int threads = at::get_num_threads();
  return detail::concat("cpu, ", threads, threads == 1 ? " thread" : " threads");
}

void make_deterministic(const at::Device& device) {
  if (device.is_cpu()) return;
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // else its sums may change their order
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // a debugging aid, and slow
  at::globalContext().setSDPUseCuDNN(
      false);  // of the kinds of attention, flash and the plain one have an order
  at::globalContext().setSDPUseMemEfficient(false);
}

at::ScalarType master_dtype(std::string_view precision) {
  return precision == "fp64" ? at::kDouble : at::kFloat;
}

void synchronize(const at::Device& device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.index());
}

Precision::Precision(const at::Device& device, std::string_view precision)
    : device_(device.type()), lower_(precision == "bf16") {
  if (!lower_) return;
  before_ = at::autocast::is_autocast_enabled(device_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  at::autocast::increment_nesting();
}

Precision::~Precision() {
  if (!lower_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace pom::train
