// The device itself: what libc10_cuda has of devices and streams, the guard through which torch switches
// between them, and the hooks by which torch's common code asks whether there is a GPU.
#include "tests/emulated/torch/emulated.h"
#include <array>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/impl/CUDAGuardImpl.h>

namespace c10::cuda {

void c10_cuda_check_implementation(std::int32_t error, const char* file, const char* function,
                                   std::uint32_t line, bool) {
  const auto status = static_cast<cudaError_t>(error);
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw c10::AcceleratorError({function, file, line}, error,
                              std::string("CUDA error: ") + cudaGetErrorString(status));
}

cudaError_t GetDeviceCount(int* count) {
  return cudaGetDeviceCount(count);
}
DeviceIndex device_count() noexcept {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<DeviceIndex>(count) : DeviceIndex(0);
}
DeviceIndex device_count_ensure_non_zero() {
  return device_count();
}
cudaError_t GetDevice(DeviceIndex* device) {
  int index = 0;
  const cudaError_t status = cudaGetDevice(&index);
  *device = static_cast<DeviceIndex>(index);
  return status;
}
cudaError_t SetDevice(DeviceIndex device, bool) {
  return cudaSetDevice(device);
}
cudaError_t MaybeSetDevice(DeviceIndex device) {
  return cudaSetDevice(device);
}
DeviceIndex current_device() {
  DeviceIndex device = -1;
  C10_CUDA_CHECK(GetDevice(&device));
  return device;
}
void set_device(DeviceIndex device, bool) {
  C10_CUDA_CHECK(cudaSetDevice(device));
}
DeviceIndex ExchangeDevice(DeviceIndex device) {
  const DeviceIndex before = current_device();
  if (device != before && device >= 0) set_device(device);
  return before;
}
DeviceIndex MaybeExchangeDevice(DeviceIndex device) {
  return ExchangeDevice(device);
}
void device_synchronize() {
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}
void warn_or_error_on_sync() {}

// Streams: number 0 is the default one, 1 to kStreams are of the pool.
namespace {

constexpr int kStreams = 32;
using Streams = std::array<cudaStream_t, kStreams>;

const Streams& pool() {
  static const Streams streams = [] {
    Streams made{};
    for (cudaStream_t& each : made) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking));
    return made;
  }();
  return streams;
}

thread_local StreamId current = 0;

CUDAStream numbered(StreamId id) {
  return CUDAStream(CUDAStream::UNCHECKED, Stream(Stream::UNSAFE, Device(DeviceType::CUDA, 0), id));
}

}  // namespace

cudaStream_t CUDAStream::stream() const {
  const StreamId number = id();
  if (number == 0) return nullptr;
  return number <= kStreams ? pool()[static_cast<std::size_t>(number - 1)]
                            : reinterpret_cast<cudaStream_t>(number);
}
bool CUDAStream::query() const {
  return cudaStreamQuery(stream()) == cudaSuccess;
}
void CUDAStream::synchronize() const {
  C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
}
CUDAStream getStreamFromPool(int, DeviceIndex) {
  static std::atomic<StreamId> next = 0;
  return numbered(1 + next++ % kStreams);
}
CUDAStream getStreamFromPool(bool, DeviceIndex device) {
  return getStreamFromPool(0, device);
}
CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex) {
  return numbered(reinterpret_cast<StreamId>(stream));
}
CUDAStream getDefaultCUDAStream(DeviceIndex) {
  return numbered(0);
}
CUDAStream getCurrentCUDAStream(DeviceIndex) {
  return numbered(current);
}
void setCurrentCUDAStream(CUDAStream stream) {
  current = stream.id();
}
std::ostream& operator<<(std::ostream& out, const CUDAStream& stream) {
  return out << stream.unwrap();
}

namespace impl {
C10_REGISTER_GUARD_IMPL(CUDA, CUDAGuardImpl)
}

}  // namespace c10::cuda

namespace emulated {

const at::Generator& generator() {
  static const at::Generator one = at::make_generator<at::CPUGeneratorImpl>();
  return one;
}

}  // namespace emulated

namespace at {

struct EmulatedHooks final : CUDAHooksInterface {
  explicit EmulatedHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::cuda::device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return isAvailable(); }
  bool hasCUDART() const override { return true; }
  c10::Device getDeviceFromPtr(void*) const override { return {c10::kCUDA, 0}; }
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  DeviceIndex current_device() const override { return c10::cuda::current_device(); }
  DeviceIndex getCurrentDevice() const override { return c10::cuda::current_device(); }
  void setCurrentDevice(DeviceIndex device) const override { c10::cuda::set_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return c10::cuda::ExchangeDevice(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return c10::cuda::MaybeExchangeDevice(device);
  }
  void deviceSynchronize(DeviceIndex) const override { c10::cuda::device_synchronize(); }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return emulated::generator(); }
  Generator getNewGenerator(DeviceIndex) const override { return make_generator<CPUGeneratorImpl>(); }
  Allocator* getPinnedMemoryAllocator() const override { return emulated::pinned_memory(); }
  bool isPinnedPtr(const void* data) const override { return emulated::is_pinned(data); }
  Allocator* getCUDADeviceAllocator() const override { return c10::GetAllocator(kCUDA); }
  std::string showConfig() const override { return "an emulated GPU"; }
  long versionCUDART() const override { return CUDART_VERSION; }
};

C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", EmulatedHooks)

}  // namespace at
