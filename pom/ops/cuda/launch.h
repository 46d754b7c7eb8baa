// Private to the room: tensors on their way to the kernels of pom/kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "pom/base/error.h"
#include "pom/kernels/common/dtype.h"

namespace pom::ops::detail {

// The device of a tensor made current, and the stream that torch works on there.
class OnDevice {
 public:
  explicit OnDevice(const at::Tensor& t) : guard_(t.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}
  cudaStream_t stream() const { return stream_.stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

inline kernels::Dtype kernel_dtype(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return kernels::Dtype::fp32;
    case at::kBFloat16:
      return kernels::Dtype::bf16;
    case at::kHalf:
      return kernels::Dtype::fp16;
    default:
      fail("kernel: dtype: expected float32, bfloat16 or float16, got ", t.scalar_type());
  }
}

inline void check_launch(const char* op, cudaError_t status) {
  if (status != cudaSuccess)
    static_cast<void>(cudaGetLastError());  // or torch's next launch is blamed for it
  check(status == cudaSuccess, op, ": the kernel could not be started: ", cudaGetErrorString(status));
}

// Whether what the stream is given becomes part of a graph.
inline bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_launch("capture", cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace pom::ops::detail
