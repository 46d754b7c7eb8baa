// A block takes some lines (rows of the weights) and its warps the inputs in turn, 32 at a time: they go
// through the tensor cores as 16 x 16 matrices against the rows as 16 x 8, whose sums the warps then add up
// in shared memory. Weights come through a queue in shared memory where each thread reads only what it copied
// itself. A processor has room for two blocks: those of the next product fill their queues while this one
// works, so that the memory never rests.
//
// Of 32 inputs, thread q of four holds 8 q .. 8 q + 7 of a line in one copy of 16 bytes. That is another
// order of the inputs than the tensor cores', but the same for weights and rows, and a sum has no order.
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pom/kernels/common/activations.cuh"
#include "pom/kernels/common/launch.cuh"
#include "pom/kernels/portable/few_rows_gemm.h"

namespace pom::kernels {
namespace {

constexpr int kWarps = 12, kThreads = 32 * kWarps, kInputs = 32, kLineBytes = 2 * kInputs;
constexpr int kSharedPair = 114688;  // bytes of a block, where a processor of sm_90 has two

// Line l of block b is row l / features * D + b * features + l % features of the weights: with an order of 1
// just `lines` in a row, else all factors of some features.
struct RowsShape {
  int rows, tokens, inputs, outputs;
  int lines, features, order, D;
  int stages;  // of the queue
  int pitch;   // from row to row in shared memory; 0: rows are read where they are
  bool w_aligned, a_aligned, norm_aligned, settled;

  __device__ bool has(int line) const {
    return line < lines && static_cast<int>(blockIdx.x) * features + line % features < D;
  }
  __device__ int row_of(int line) const {
    return line / features * D + static_cast<int>(blockIdx.x) * features + line % features;
  }
};

struct RunsOf {
  int tokens, run_tokens, runs;
  __device__ int of(int row) const { return row / tokens * runs + row % tokens / run_tokens; }
};

enum class Kind { store, gate, residual, sums };
struct Epilogue {
  Kind kind;
  const float* bias;
  bool gelu, floats;  // store
  void* out;          // store, gate; residual: x
  const float* rows;  // gate: H; residual: gates; sums: the sums before
  int64_t stride;     // residual
  RunsOf runs;
  bool causal;
  const uint8_t* visible;
  const int64_t* count;
  float *total, *H;
};

// ---- values ----

template <class T>
__device__ __forceinline__ T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16(x);
  if constexpr (std::is_same_v<T, __half>) return __float2half(x);
}

// Eight values from k on, zeros from K on.
template <class In>
__device__ __forceinline__ uint4 eight_at(const In* line, int k, int K, bool aligned) {
  if (aligned) return k < K ? *reinterpret_cast<const uint4*>(line + k) : make_uint4(0, 0, 0, 0);
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(line);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = k + 2 * i;
    const uint32_t low = at < K ? bits[at] : 0, high = at + 1 < K ? bits[at + 1] : 0;
    words[i] = low | high << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ void copy_eight(void* to, const void* from, bool inside) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// c += (16 lines x 16 inputs) (16 inputs x 8 rows)
template <class In>
__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<In, __nv_bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- rows into shared memory ----

struct Norm {
  const float *scale, *shift;
  int64_t stride;
  float eps;
};

// Four values of a row.
__device__ __forceinline__ float4 four_at(const float* row, int c, int K, bool aligned) {
  if (aligned) return *reinterpret_cast<const float4*>(row + c);
  return make_float4(row[c], c + 1 < K ? row[c + 1] : 0, c + 2 < K ? row[c + 2] : 0,
                     c + 3 < K ? row[c + 3] : 0);
}

// The sum over the `team` warps of a row, in a fixed order; all threads of the block come here.
__device__ __forceinline__ float team_sum(float value, float* sums, int team) {
  const int warp = threadIdx.x / 32, first = warp / team * team;
#pragma unroll
  for (int other = 16; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  if (threadIdx.x % 32 == 0) sums[warp] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < team; ++i) sum += sums[min(first + i, kWarps - 1)];
  __syncthreads();
  return sum;
}

// Some warps take a row, so that all work at once; the first four values of a thread stay in registers.
template <class In>
__device__ __forceinline__ void normalise(const RowsShape& s, const float* x, const Norm& n, In* to,
                                          float* sums) {
  const int K = s.inputs, team = kWarps / min(s.rows, kWarps), together = kWarps / team;
  const int sub = static_cast<int>(threadIdx.x) % (32 * team), step = 4 * 32 * team;
  for (int first = 0; first < s.rows; first += together) {
    const int row = first + static_cast<int>(threadIdx.x) / (32 * team);
    const bool mine = row < min(s.rows, first + together), some = mine && 4 * sub < K;
    const float* const values = x + static_cast<int64_t>(mine ? row : 0) * K;
    const int64_t modulation = (mine ? row : 0) / s.tokens * n.stride;
    const float *const scales = n.scale + modulation, *const shifts = n.shift + modulation;
    float4 v = make_float4(0, 0, 0, 0), scale = v, shift = v;
    if (some) {
      v = four_at(values, 4 * sub, K, s.norm_aligned);
      scale = four_at(scales, 4 * sub, K, s.norm_aligned);
      shift = four_at(shifts, 4 * sub, K, s.norm_aligned);
    }
    const auto each = [&](const auto& f) {
      if (!some) return;
      f(4 * sub, v, scale, shift);
      for (int c = 4 * sub + step; c < K; c += step)
        f(c, four_at(values, c, K, s.norm_aligned), four_at(scales, c, K, s.norm_aligned),
          four_at(shifts, c, K, s.norm_aligned));
    };
    float sum = 0;
    each([&](int, float4 u, float4, float4) { sum += (u.x + u.y) + (u.z + u.w); });
    const float mean = team_sum(sum, sums, team) / static_cast<float>(K);
    float squares = 0;
    each([&](int c, float4 u, float4, float4) {
      const float a = u.x - mean, b = c + 1 < K ? u.y - mean : 0, d = c + 2 < K ? u.z - mean : 0,
                  e = c + 3 < K ? u.w - mean : 0;
      squares += (a * a + b * b) + (d * d + e * e);
    });
    const float rstd = rsqrtf(team_sum(squares, sums, team) / static_cast<float>(K) + n.eps);
    each([&](int c, float4 u, float4 scaling, float4 shifting) {
      const auto value = [&](float y, float a, float b) { return fmaf((y - mean) * rstd, 1.0f + a, b); };
      const float y[4] = {value(u.x, scaling.x, shifting.x), value(u.y, scaling.y, shifting.y),
                          value(u.z, scaling.z, shifting.z), value(u.w, scaling.w, shifting.w)};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (c + i < K) to[row * s.pitch + c + i] = narrow<In>(y[i]);
    });
  }
  const int rest = (K + kInputs - 1) / kInputs * kInputs - K;  // zeros up to whole steps
  for (int i = threadIdx.x; i < s.rows * rest; i += kThreads)
    to[i / rest * s.pitch + K + i % rest] = narrow<In>(0.0f);
}

template <class In>
__device__ __forceinline__ void stage(const RowsShape& s, const In* a, In* to) {
  constexpr int kTogether = 4;  // reads under way
  const int eights = (s.inputs + kInputs - 1) / kInputs * (kInputs / 8), all = s.rows * eights;
  for (int first = threadIdx.x; first < all; first += kTogether * kThreads) {
    uint4 values[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = min(first + j * kThreads, all - 1);
      values[j] =
          eight_at(a + static_cast<int64_t>(i / eights) * s.inputs, i % eights * 8, s.inputs, s.a_aligned);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int i = first + j * kThreads;
      if (i < all) *reinterpret_cast<uint4*>(to + i / eights * s.pitch + i % eights * 8) = values[j];
    }
  }
}

// ---- what follows the sums ----

// sums[warp][line][row]: what the warps have of a line's product with a row.
struct Partial {
  const uint8_t* base;
  int warp_bytes, columns;
  __device__ float* at(int warp, int line, int row) const {
    return const_cast<float*>(reinterpret_cast<const float*>(base + warp * warp_bytes)) + line * columns +
           row;
  }
  __device__ float of(int line, int row) const {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += *at(warp, line, row);
    return sum;
  }
};

// A value of the output: its line (fastest) and its row, or of a sum its sequence.
struct Place {
  int line, row, column;
  bool inside;
  __device__ Place(const RowsShape& s, int i, int rows)
      : line(i % s.lines), row(i / s.lines), column(s.row_of(line)), inside(row < rows && s.has(line)) {}
  __device__ int64_t at(const RowsShape& s) const { return static_cast<int64_t>(row) * s.outputs + column; }
};

// What else belongs to it, read before the product is there; nothing is computed of it until then, which
// would wait for it.
struct Operands {
  float own = 0, x = 0;  // gate: H; residual: the gate and x; sums: the sum before
  int64_t count = 0;     // sums
  __device__ Operands(const RowsShape& s, const Epilogue& t, const Place& p) {
    if (!p.inside || !t.rows) return;
    if (t.kind == Kind::gate) {
      own = t.rows[static_cast<int64_t>(t.runs.of(p.row)) * s.outputs + p.column];
    } else if (t.kind == Kind::residual) {
      own = t.rows[p.row / s.tokens * t.stride + p.column];
      x = static_cast<const float*>(t.out)[p.at(s)];
    } else {
      own = t.rows[p.at(s)], count = t.count[p.row];
    }
  }
};

template <class In>
__device__ __forceinline__ void finish(const RowsShape& s, const Epilogue& t, const Place& p,
                                       const Operands& with, float y) {
  if (t.kind == Kind::residual) {
    static_cast<float*>(t.out)[p.at(s)] = fmaf(with.own, y, with.x);
  } else if (t.kind == Kind::gate) {
    static_cast<In*>(t.out)[p.at(s)] = narrow<In>(sigmoid<float>(y) * with.own);
  } else {
    if (t.gelu) y = gelu<float>(y);
    if (t.floats)
      static_cast<float*>(t.out)[p.at(s)] = y;
    else
      static_cast<In*>(t.out)[p.at(s)] = narrow<In>(y);
  }
}

// The running products of each feature and row, in the place of the first warp's sums.
__device__ __forceinline__ void gemms(const RowsShape& s, const Partial& partial, const float* bias) {
  for (int i = threadIdx.x; i < s.features * s.rows; i += kThreads) {
    const int feature = i % s.features, row = i / s.features;
    float p = 1;
    for (int factor = 0; factor < s.order; ++factor) {
      const int line = factor * s.features + feature;
      p *= gelu<float>(partial.of(line, row) + bias[line]);
      *partial.at(0, line, row) = p;
    }
  }
}

// Of one line and sequence, from the state before on.
__device__ __forceinline__ void add_up(const RowsShape& s, const Epilogue& t, const Partial& partial,
                                       const Place& p, const Operands& before) {
  float sum = before.own, count = static_cast<float>(before.count), total = before.own;
  for (int token = 0; token < s.tokens; ++token) {
    const int row = p.row * s.tokens + token;
    if (!t.causal && token > 0 && token % t.runs.run_tokens == 0) sum = count = 0;
    if (!t.visible || t.visible[row] != 0) {
      const float value = *partial.at(0, p.line, row);
      sum += value, total += value, count += 1;
    }
    if (t.H && (token + 1 == s.tokens || (token + 1) % t.runs.run_tokens == 0))
      t.H[static_cast<int64_t>(t.runs.of(row)) * s.outputs + p.column] = sum / (1e-7f + count);
  }
  if (t.total) t.total[p.at(s)] = total;
}

// ---- the kernel: groups of 8 lines, stages of the queue, tiles of 8 rows ----

template <class In, int Groups, int Stages, int Tiles>
__global__ void __launch_bounds__(kThreads, 2)
    rows_kernel(const RowsShape s, const void* a, const Norm norm, const In* w, const Epilogue epilogue) {
  extern __shared__ uint4 raw[];
  __shared__ float team_sums[kWarps], bias[8 * Groups];
  uint8_t* const memory = reinterpret_cast<uint8_t*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4, octet = lane / 4;
  const int stage_bytes = s.lines * kLineBytes, queue_bytes = s.stages * stage_bytes;
  uint8_t* const queue = memory + warp * queue_bytes;
  In* const staged = reinterpret_cast<In*>(memory + kWarps * queue_bytes);
  const int steps = (s.inputs + kInputs - 1) / kInputs, mine = (steps - warp + kWarps - 1) / kWarps;

  int line[Groups];  // its row, -1 where there is none
#pragma unroll
  for (int g = 0; g < Groups; ++g) line[g] = s.has(8 * g + octet) ? s.row_of(8 * g + octet) : -1;
  const auto fetch = [&](int i) {
    const int k = (warp + i * kWarps) * kInputs + 8 * quad;
    uint8_t* const to = queue + i % Stages * stage_bytes + 16 * lane;
    if (i < mine && s.w_aligned) {
      const In* const from = w + (k < s.inputs ? k : 0);
#pragma unroll
      for (int g = 0; g < Groups; ++g)
        if (line[g] >= 0)
          copy_eight(to + 512 * g, from + static_cast<int64_t>(line[g]) * s.inputs, k < s.inputs);
    } else if (i < mine) {
#pragma unroll 1
      for (int l = octet; l < s.lines; l += 8)
        if (s.has(l))
          *reinterpret_cast<uint4*>(to + 64 * (l - octet)) =
              eight_at(w + static_cast<int64_t>(s.row_of(l)) * s.inputs, k, s.inputs, false);
    }
    copies_commit();
  };
  const auto fill = [&] {
#pragma unroll 1
    for (int i = 0; i < Stages; ++i) fetch(i);
  };

  // Whose weights may be read ahead, may let the next one do so too; another first waits for all before it.
  if (s.settled) fill(), let_next_start();
  wait_for_before();
  if (!s.settled) let_next_start(), fill();
  const bool summing = epilogue.kind == Kind::sums;
  const int places = summing ? s.rows / s.tokens : s.rows;
  const Operands early(s, epilogue, Place(s, threadIdx.x, places));
  const float own_bias = epilogue.bias && s.has(threadIdx.x) ? epilogue.bias[s.row_of(threadIdx.x)] : 0;
  if (norm.scale)
    normalise(s, static_cast<const float*>(a), norm, staged, team_sums);
  else if (s.pitch > 0)
    stage(s, static_cast<const In*>(a), staged);
  if (threadIdx.x < 8 * Groups) bias[threadIdx.x] = own_bias;
  __syncthreads();

  const auto rows_at = [&](int i, int tile) {
    const int row = 8 * tile + octet, k = (warp + i * kWarps) * kInputs + 8 * quad;
    if (row >= s.rows || i >= mine) return make_uint4(0, 0, 0, 0);
    if (s.pitch > 0) return *reinterpret_cast<const uint4*>(staged + row * s.pitch + k);
    return eight_at(static_cast<const In*>(a) + static_cast<int64_t>(row) * s.inputs, k, s.inputs,
                    s.a_aligned);
  };
  constexpr int kPairs = (Groups + 1) / 2;
  float sums[kPairs][Tiles][4] = {};
  constexpr int kAhead = Tiles * Groups < 4 ? 4 : 2;  // steps whose rows are read together
  for (int first = 0; first < mine; first += kAhead) {
    uint4 rows[kAhead][Tiles];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) rows[j][tile] = rows_at(first + j, tile);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = first + j;
      if (i >= mine) break;
      copies_wait<Stages - 1>();
      const uint8_t* const from = queue + i % Stages * stage_bytes + 16 * lane;
      const auto lines_at = [&](int g) {
        return g < Groups && line[g < Groups ? g : 0] >= 0 ? *reinterpret_cast<const uint4*>(from + 512 * g)
                                                           : make_uint4(0, 0, 0, 0);
      };
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint4 low = lines_at(2 * pair), high = lines_at(2 * pair + 1);
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
          const uint4 b = rows[j][tile];
          multiply<In>(sums[pair][tile], low.x, high.x, low.y, high.y, b.x, b.y);
          multiply<In>(sums[pair][tile], low.z, high.z, low.w, high.w, b.z, b.w);
        }
      }
      fetch(i + Stages);
    }
  }

  copies_wait<0>();
  __syncwarp();  // the queue has been read: the warp's sums take its place
  const Partial partial{memory, queue_bytes, 8 * Tiles};
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair)
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int l = 16 * pair + 8 * half + octet;
        if (l >= s.lines) continue;
        *reinterpret_cast<float2*>(partial.at(warp, l, 8 * tile + 2 * quad)) =
            make_float2(sums[pair][tile][2 * half], sums[pair][tile][2 * half + 1]);
      }
  __syncthreads();
  if (summing) {
    gemms(s, partial, bias);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < s.lines * places; i += kThreads) {
    const Place p(s, i, places);
    if (!p.inside) continue;
    const Operands with = i < kThreads ? early : Operands(s, epilogue, p);
    if (summing)
      add_up(s, epilogue, partial, p, with);
    else
      finish<In>(s, epilogue, p, with, partial.of(p.line, p.row) + bias[p.line]);
  }
}

// ---- the host's half ----

bool aligned(const void* p, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && row_bytes % 16 == 0;
}

// What the current device has, asked for once.
struct Device {
  int processors = 0, shared = 0;  // bytes for a block, beside what it declares itself
};
Device device() {
  constexpr int kDevices = 64, kOwn = 1024;
  static std::atomic<int64_t> known[kDevices];
  int index = 0, processors = 0, shared = 0;
  if (cudaGetDevice(&index) != cudaSuccess) return {1, 0};
  if (index < kDevices)
    if (const int64_t both = known[index].load(std::memory_order_relaxed))
      return {static_cast<int>(both >> 32), static_cast<int>(both & 0xffffffff)};
  if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index) != cudaSuccess)
    return {1, 0};
  if (index < kDevices)
    known[index].store(int64_t{processors} << 32 | (shared - kOwn), std::memory_order_relaxed);
  return {processors, shared - kOwn};
}

// How many lines a block can have, and the queue that goes with them: about 84 KB.
struct Variant {
  int lines, stages;
};
constexpr Variant kVariants[] = {{9, 12}, {18, 6}, {36, 3}};

int variant_of(int lines) {
  return lines <= kVariants[0].lines ? 0 : lines <= kVariants[1].lines ? 1 : 2;
}

// Rows 64 bytes apart, but for whole ones of 128: eight threads read them without a conflict.
int pitch_of(int64_t inputs) {
  const int64_t steps = (inputs + kInputs - 1) / kInputs;
  return static_cast<int>((steps + (steps % 2 == 0)) * kInputs);
}
int64_t staged_bytes(const GemmSizes& s) {
  return s.rows() * pitch_of(s.inputs) * 2;
}

int64_t queue_bytes(const RowsShape& s) {
  return int64_t{kWarps} * s.stages * s.lines * kLineBytes;
}

RowsShape shape_of(const FewRowsGemm& p, int order) {
  const int64_t K = p.sizes.inputs, N = p.sizes.outputs;
  RowsShape s{};
  s.rows = static_cast<int>(p.sizes.rows()), s.tokens = static_cast<int>(p.sizes.tokens);
  s.inputs = static_cast<int>(K), s.outputs = static_cast<int>(N);
  s.order = order, s.D = s.outputs / order;
  const int most = kVariants[2].lines / order, share = (s.D + device().processors - 1) / device().processors;
  s.features = std::min(share, most), s.lines = s.features * order;
  const int steps = (s.inputs + kInputs - 1) / kInputs;
  s.stages = std::min(kVariants[variant_of(s.lines)].stages, (steps + kWarps - 1) / kWarps);
  s.w_aligned = aligned(p.w, 2 * K), s.settled = p.settled;
  s.a_aligned = aligned(p.a, (p.norm.scale ? 4 : 2) * K);
  s.norm_aligned = s.a_aligned && K % 4 == 0 && aligned(p.norm.scale, 4 * p.norm.stride) &&
                   aligned(p.norm.shift, 4 * p.norm.stride);
  if (p.norm.scale || queue_bytes(s) + staged_bytes(p.sizes) <= std::min(kSharedPair, device().shared))
    s.pitch = pitch_of(K);
  return s;
}

template <class In, int Groups, int Stages, int Tiles>
cudaError_t start(const FewRowsGemm& p, const RowsShape& s, const Epilogue& t, cudaStream_t stream) {
  const auto kernel = rows_kernel<In, Groups, Stages, Tiles>;
  static std::atomic<uint64_t> prepared;  // a bit for each device
  int index = 0;
  if (const cudaError_t e = cudaGetDevice(&index); e != cudaSuccess) return e;
  const uint64_t bit = index < 64 ? uint64_t{1} << index : 0;
  if (!(prepared.load(std::memory_order_relaxed) & bit)) {
    if (const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device().shared);
        e != cudaSuccess)
      return e;
    // Kernels that divide the memory alike can share a processor.
    if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                   cudaSharedmemCarveoutMaxShared);
        e != cudaSuccess)
      return e;
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  const size_t shared = static_cast<size_t>(queue_bytes(s)) + static_cast<size_t>(s.rows) * s.pitch * 2;
  const unsigned blocks = static_cast<unsigned>((s.D + s.features - 1) / s.features);
  const Norm norm{p.norm.scale, p.norm.shift, p.norm.stride, p.norm.eps};
  return launch(kernel, dim3(blocks), dim3(kThreads), shared, stream, 1, s, p.a, norm,
                static_cast<const In*>(p.w), t);
}

template <class In, int Tiles>
cudaError_t start_variant(const FewRowsGemm& p, const RowsShape& s, const Epilogue& t, cudaStream_t stream) {
  switch (variant_of(s.lines)) {
    case 0:
      return start<In, 2, kVariants[0].stages, Tiles>(p, s, t, stream);
    case 1:
      return start<In, 3, kVariants[1].stages, Tiles>(p, s, t, stream);
    default:
      return start<In, 5, kVariants[2].stages, Tiles>(p, s, t, stream);
  }
}

cudaError_t run(const FewRowsGemm& p, const Epilogue& t, int order, cudaStream_t stream) {
  const RowsShape s = shape_of(p, order);
  const bool few = s.rows <= 8, bf16 = p.dtype == Dtype::bf16;
  if (bf16)
    return few ? start_variant<__nv_bfloat16, 1>(p, s, t, stream)
               : start_variant<__nv_bfloat16, 2>(p, s, t, stream);
  return few ? start_variant<__half, 1>(p, s, t, stream) : start_variant<__half, 2>(p, s, t, stream);
}

RunsOf runs_of(const GemmSizes& sizes, const Runs& runs) {
  const int64_t length =
      runs.run_tokens > 0 && runs.run_tokens < sizes.tokens ? runs.run_tokens : sizes.tokens;
  return {static_cast<int>(sizes.tokens), static_cast<int>(length),
          static_cast<int>((sizes.tokens + length - 1) / length)};
}

}  // namespace

bool rows_supported(const FewRowsGemm& p) {
  const GemmSizes& s = p.sizes;
  const bool sizes = s.batch >= 1 && s.tokens >= 1 && s.rows() <= kMostRows && s.inputs >= 1 &&
                     s.inputs < (1 << 24) && s.outputs >= 1 && s.outputs < (1 << 24);
  const bool typed = p.dtype == Dtype::bf16 || p.dtype == Dtype::fp16;
  if (!sizes || !typed || device_capability() < 80 || !p.a || !p.w) return false;
  // The rows beside the queue of a full block.
  constexpr int64_t kQueue = int64_t{kWarps} * kVariants[2].lines * kVariants[2].stages * kLineBytes;
  return !p.norm.scale || (p.norm.shift && kQueue + staged_bytes(s) <= device().shared);
}

cudaError_t rows_store(const FewRowsGemm& p, const RowsStore& store, cudaStream_t stream) {
  const bool typed = store.out_dtype == p.dtype || store.out_dtype == Dtype::fp32;
  if (!rows_supported(p) || !store.out || !typed) return cudaErrorNotSupported;
  Epilogue t{};
  t.kind = Kind::store, t.bias = p.bias, t.out = store.out;
  t.gelu = store.activation == Activation::gelu, t.floats = store.out_dtype == Dtype::fp32;
  return run(p, t, 1, stream);
}

cudaError_t rows_gate(const FewRowsGemm& p, const RowsGate& gate, cudaStream_t stream) {
  if (!rows_supported(p) || !gate.out || !gate.H) return cudaErrorNotSupported;
  Epilogue t{};
  t.kind = Kind::gate, t.bias = p.bias, t.out = gate.out, t.rows = gate.H;
  t.runs = runs_of(p.sizes, gate.runs);
  return run(p, t, 1, stream);
}

cudaError_t rows_residual(const FewRowsGemm& p, const RowsResidual& residual, cudaStream_t stream) {
  if (!rows_supported(p) || !residual.x || !residual.gate) return cudaErrorNotSupported;
  Epilogue t{};
  t.kind = Kind::residual, t.bias = p.bias, t.out = residual.x;
  t.rows = residual.gate, t.stride = residual.gate_stride;
  return run(p, t, 1, stream);
}

cudaError_t rows_sums(const FewRowsGemm& p, const RowsSums& sums, cudaStream_t stream) {
  const bool order = sums.order >= 1 && sums.order <= kMostRowsOrder && p.sizes.outputs % sums.order == 0;
  if (!rows_supported(p) || !order || (sums.sum && !sums.count)) return cudaErrorNotSupported;
  Epilogue t{};
  t.kind = Kind::sums, t.bias = p.bias, t.rows = sums.sum, t.count = sums.count;
  t.runs = runs_of(p.sizes, sums.runs), t.causal = sums.causal, t.visible = sums.visible;
  t.total = sums.total, t.H = sums.H;
  return run(p, t, sums.order, stream);
}

}  // namespace pom::kernels
