// What we use of CUDA's runtime, for the emulation: one device whose memory is the host's, streams that do
// everything at once, graphs that are lists of work.
#include "tests/emulated/machine.h"
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <memory>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Work = std::vector<std::function<void()>>;

thread_local cudaError_t last = cudaSuccess;
cudaError_t noted(cudaError_t status) {
  if (status != cudaSuccess) last = status;
  return status;
}

struct Stream {
  std::unique_ptr<Work> recorded;
  unsigned long long capture = 0;  // the number of the one that goes on
};
Stream& stream_of(cudaStream_t stream) {
  static Stream default_stream;
  // 0, and the names of the legacy and of the threads' default streams.
  return reinterpret_cast<uintptr_t>(stream) <= 2 ? default_stream : *reinterpret_cast<Stream*>(stream);
}

}  // namespace

namespace emulated {

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
  Stream& s = stream_of(stream);
  if (s.recorded)
    s.recorded->push_back(std::move(work));
  else
    work();
  return cudaSuccess;
}

}  // namespace emulated

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t status = last;
  last = cudaSuccess;
  return status;
}
cudaError_t cudaPeekAtLastError() {
  return last;
}
const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorMisalignedAddress:
      return "misaligned address";
    default:
      return "an error of the emulated GPU";
  }
}

// ---- the device ----

cudaError_t cudaGetDeviceCount(int* count) {
  return *count = 1, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  return *device = 0, cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return noted(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return *value = 9, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = 0, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = static_cast<int>(emulated::processors()), cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = 232448, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return *value = 233472, cudaSuccess;
    case cudaDevAttrL2CacheSize:
      return *value = 50 << 20, cudaSuccess;
    case cudaDevAttrClockRate:
      return *value = 1000000, cudaSuccess;
    default:
      std::fprintf(stderr, "emulated GPU: attribute %d is not known\n", static_cast<int>(attribute));
      return noted(cudaErrorInvalidValue);
  }
}
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = cudaDeviceProp{};
  std::strcpy(p->name, "emulated GPU");
  p->major = 9, p->minor = 0, p->multiProcessorCount = static_cast<int>(emulated::processors());
  p->totalGlobalMem = size_t{8} << 30, p->warpSize = 32, p->maxThreadsPerBlock = 1024,
  p->l2CacheSize = 50 << 20;
  p->sharedMemPerBlockOptin = 232448, p->sharedMemPerMultiprocessor = 233472,
  p->regsPerMultiprocessor = 65536;
  p->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = size_t{6} << 30, *total = size_t{8} << 30, cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void*, const cudaLaunchConfig_t* config) {
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      cluster = config->attrs[i].val.clusterDim.x;
  return *count = static_cast<int>(emulated::processors() / cluster), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int threads, size_t) {
  return *count = 2048 / threads, cudaSuccess;
}

// ---- memory ----

cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = nullptr;
  if (bytes > size_t{6} << 30) return noted(cudaErrorMemoryAllocation);
  return noted(posix_memalign(p, 256, bytes ? bytes : 1) == 0 ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* p) {
  return free(p), cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return cudaMalloc(p, bytes);
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  return cudaMalloc(p, bytes);
}
cudaError_t cudaFreeHost(void* p) {
  return cudaFree(p);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memmove(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return std::memset(to, value, bytes), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulated::submit(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulated::submit(stream, [=] { std::memset(to, value, bytes); });
}

// ---- streams and events ----

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return *stream = reinterpret_cast<cudaStream_t>(new Stream), cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return delete &stream_of(stream), cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return *event = reinterpret_cast<cudaEvent_t>(new Clock::time_point), cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return delete reinterpret_cast<Clock::time_point*>(event), cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return emulated::submit(stream, [=] { *reinterpret_cast<Clock::time_point*>(event) = Clock::now(); });
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const auto at = [](cudaEvent_t e) { return *reinterpret_cast<Clock::time_point*>(e); };
  return *ms = std::chrono::duration<float, std::milli>(at(to) - at(from)).count(), cudaSuccess;
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Stream& s = stream_of(stream);
  if (s.recorded || reinterpret_cast<uintptr_t>(stream) <= 2) return noted(cudaErrorStreamCaptureUnsupported);
  static std::atomic<unsigned long long> captures = 0;
  s.recorded = std::make_unique<Work>(), s.capture = ++captures;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Stream& s = stream_of(stream);
  if (!s.recorded) return noted(cudaErrorIllegalState);
  return *graph = reinterpret_cast<cudaGraph_t>(s.recorded.release()), cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream_of(stream).recorded ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  if (id) *id = stream_of(stream).capture;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
  return std::swap(*mode, now), cudaSuccess;
}
#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph))), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& work : *reinterpret_cast<Work*>(exec)) emulated::submit(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<Work*>(graph), cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return delete reinterpret_cast<Work*>(exec), cudaSuccess;
}

// ---- the driver's functions that the runtime gives out ----

static CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                             const cuuint64_t* sizes, const cuuint64_t* pitches, const cuuint32_t* box,
                             const cuuint32_t* steps, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const uint64_t size = type == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                        : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                                  : 2;
  if (rank < 1 || rank > 5 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      reinterpret_cast<uintptr_t>(base) % 16 != 0 ||
      (swizzle != CU_TENSOR_MAP_SWIZZLE_128B && swizzle != CU_TENSOR_MAP_SWIZZLE_NONE))
    return CUDA_ERROR_INVALID_VALUE;
  emulated::Map m{};
  m.base = static_cast<const uint8_t*>(base), m.rank = rank,
  m.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  m.pitches[0] = size;
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] < 1 || box[i] < 1 || box[i] > 256 || steps[i] != 1) return CUDA_ERROR_INVALID_VALUE;
    m.sizes[i] = sizes[i], m.box[i] = box[i];
    if (i + 1 < rank) {
      if (pitches[i] % 16 != 0 || pitches[i] >= uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
      m.pitches[i + 1] = pitches[i];
    }
  }
  if (box[0] * size % 16 != 0 || (m.swizzled && box[0] * size > 128)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&encode_tiled) : nullptr;
  if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
