#include "pom/kernels/common/row_teams.cuh"
#include "pom/kernels/portable/conditions.h"

namespace pom::kernels {
namespace {

constexpr int kStripe = 32;  // rows of weights that a block differentiates

// Row n of all matrices.
__device__ __forceinline__ const ConditionMatrix& matrix_of(const ConditionParams& p, int64_t& n) {
  if (p.matrices == 1 || n < p.each[0].outputs) return p.each[0];
  n -= p.each[0].outputs;
  return p.each[1];
}

__device__ __forceinline__ float dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A warp takes two rows of the weights at a time; s waits in shared memory.
template <int B>
__global__ void __launch_bounds__(kThreads) condition_kernel(const ConditionParams p, const int64_t N) {
  constexpr int kRows = 2, kWarps = kThreads / 32;
  extern __shared__ __align__(16) float s[];
  const int lane = threadIdx.x % 32, K = static_cast<int>(p.inputs), d = static_cast<int>(p.width);
  for (int i = threadIdx.x; i < B * K; i += kThreads) s[i] = i < p.batch * K ? p.s[i] : 0;
  __syncthreads();
  for (int64_t n = kRows * (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32); n < N;
       n += static_cast<int64_t>(kRows) * kWarps * gridDim.x) {
    const float* w[kRows];
    float bias[kRows], sums[kRows][B] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int64_t own = min(n + r, N - 1);
      const ConditionMatrix& m = matrix_of(p, own);
      w[r] = m.w + own * K, bias[r] = m.bias[own];
    }
#pragma unroll 3
    for (int k = 4 * lane; k < K; k += 128) {
      float4 weights[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) weights[r] = __ldg(reinterpret_cast<const float4*>(w[r] + k));
#pragma unroll
      for (int b = 0; b < B; ++b) {
        const float4 row = *reinterpret_cast<const float4*>(s + b * K + k);
#pragma unroll
        for (int r = 0; r < kRows; ++r) sums[r][b] = dot(weights[r], row, sums[r][b]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float mine = 0;
#pragma unroll
      for (int b = 0; b < B; ++b) {
        const float sum = team_sum(sums[r][b], 32, nullptr);
        if (lane == b) mine = sum;
      }
      if (n + r < N && lane < p.batch) p.out[(n + r) / d][lane * d + (n + r) % d] = mine + bias[r];
    }
  }
}

// A block takes a stripe of rows, a thread four inputs of each: the gradients of the weights, and what the
// stripe adds to that of s.
template <int B>
__global__ void __launch_bounds__(512) condition_backward_kernel(const ConditionParams p, const int64_t N) {
  __shared__ __align__(16) float given[kStripe][B];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kStripe, K = p.inputs;
  const int count = static_cast<int>(min(static_cast<int64_t>(kStripe), N - first));
  for (int i = threadIdx.x; i < kStripe * B; i += blockDim.x) {
    const int row = i / B, b = i % B;
    const int64_t n = first + row;
    const float* const from = row < count && b < p.batch ? p.dout[n / p.width] : nullptr;
    given[row][b] = from ? from[b * p.width + n % p.width] : 0;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < count) {
    int64_t n = first + threadIdx.x;
    const ConditionMatrix& m = matrix_of(p, n);
    float sum = 0;
#pragma unroll
    for (int b = 0; b < B; ++b) sum += given[threadIdx.x][b];
    m.dbias[n] = sum;
  }
  const int64_t k = 4 * static_cast<int64_t>(threadIdx.x);
  if (k >= K) return;
  float s[B][4], ds[B][4] = {};
#pragma unroll
  for (int b = 0; b < B; ++b)
#pragma unroll
    for (int v = 0; v < 4; ++v) s[b][v] = b < p.batch ? p.s[b * K + k + v] : 0;
#pragma unroll 4
  for (int row = 0; row < count; ++row) {
    int64_t n = first + row;
    const ConditionMatrix& m = matrix_of(p, n);
    float w[4], dw[4] = {};
    load_values<4>(m.w + n * K + k, w);
#pragma unroll
    for (int b = 0; b < B; ++b) {
      const float d = given[row][b];
#pragma unroll
      for (int v = 0; v < 4; ++v) dw[v] = fmaf(d, s[b][v], dw[v]), ds[b][v] = fmaf(d, w[v], ds[b][v]);
    }
    store_values<4>(m.dw + n * K + k, dw);
  }
#pragma unroll
  for (int b = 0; b < B; ++b)
    if (b < p.batch)
      store_values<4>(p.scratch + (b * static_cast<int64_t>(gridDim.x) + blockIdx.x) * K + k, ds[b]);
}

// Calls f.template operator()<B>() for a number of rows that has room for the batch.
template <class F>
cudaError_t with_batch(int64_t batch, const F& f) {
  return batch <= 2   ? f.template operator()<2>()
         : batch <= 4 ? f.template operator()<4>()
                      : f.template operator()<8>();
}

}  // namespace

bool condition_supported(const ConditionParams& p) {
  if (p.batch < 1 || p.batch > kMaxConditionBatch || p.width < 1) return false;
  if (p.inputs < 4 || p.inputs % 4 != 0 || p.inputs > kMaxConditionInputs) return false;
  if (p.matrices < 1 || p.matrices > kMaxConditionMatrices) return false;
  int64_t parts = 0;
  for (int i = 0; i < p.matrices; ++i) {
    const ConditionMatrix& m = p.each[i];
    if (m.outputs < 1 || m.outputs % p.width != 0 || !aligned(m.w, 16) || !aligned(m.dw, 16)) return false;
    parts += m.outputs / p.width;
  }
  return parts <= kMaxConditionParts && aligned(p.scratch, 16);
}

int64_t condition_slots(const ConditionParams& p) {
  return (p.outputs() + kStripe - 1) / kStripe;
}

cudaError_t condition(const ConditionParams& p, cudaStream_t stream) {
  if (!condition_supported(p)) return cudaErrorInvalidValue;
  return with_batch(p.batch, [&]<int B>() {
    constexpr int64_t kBlocks = 528, kEach = 2 * kThreads / 32;  // rows that a block has at once
    const int shared = static_cast<int>(sizeof(float)) * B * static_cast<int>(p.inputs);
    const auto kernel = condition_kernel<B>;
    if (const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        e != cudaSuccess)
      return e;
    const int64_t blocks = (p.outputs() + kEach - 1) / kEach;
    kernel<<<static_cast<unsigned>(blocks < kBlocks ? blocks : kBlocks), kThreads,
             static_cast<unsigned>(shared), stream>>>(p, p.outputs());
    return cudaGetLastError();
  });
}

cudaError_t condition_backward(const ConditionParams& p, cudaStream_t stream) {
  if (!condition_supported(p) || !p.scratch || !p.ds) return cudaErrorInvalidValue;
  const int64_t slots = condition_slots(p);
  const unsigned threads = static_cast<unsigned>((p.inputs / 4 + 31) / 32 * 32);
  const cudaError_t status = with_batch(p.batch, [&]<int B>() {
    condition_backward_kernel<B><<<static_cast<unsigned>(slots), threads, 0, stream>>>(p, p.outputs());
    return cudaGetLastError();
  });
  if (status != cudaSuccess) return status;
  return fold_parts({{{p.scratch, p.ds}}}, 1, {p.batch, 1, p.inputs}, static_cast<int>(slots), stream);
}

}  // namespace pom::kernels
