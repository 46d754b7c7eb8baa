// The step of a stack, second part: rows come from other blocks into registers, as they are or normed. Of 32
// inputs (a step of a warp), thread q of four has 8 q .. 8 q + 7 of a line of weights, as one read gives
// them: words 0 .. 3. To the tensor cores words 0 and 2 are one line, words 1 and 3 another; so the thread
// that has a row's side of it holds words h and h + 2 alone, and the row stands in columns r and 4 + r, r
// < 4. With one row, r is not a row but the last two bits of the step: four steps stand side by side in the
// columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "pom/kernels/sm90/decode/stack_step_ring.cuh"

namespace pom::kernels::stack {

// Stands where nothing was written yet. Sums and roundings never give it: their only NaN is 0x7fff....
constexpr uint32_t kUnwritten = 0xffffffffu;

// What a kernel is made for: rows 1, 4 or 8, at most; inputs in so many chunks. Whole: every chunk has three
// steps of every warp, and all of them are there.
template <int Rows_, int NormChunks_, int InnerChunks_, bool Whole_>
struct Shape {
  static constexpr int kRowsOf = Rows_, kNorm = NormChunks_, kInner = InnerChunks_;
  static constexpr int kSets = Rows_ > 4 ? 2 : 1;  // of four rows
  static constexpr bool kOne = Rows_ == 1, kWhole = Whole_;
  static_assert(!kOne || kWhole);
  // Pairs of words that a thread has of a set, for so many chunks.
  template <int Chunks>
  static constexpr int kPieces = kOne ? (kSteps* Chunks + 3) / 4 : kSteps* Chunks;
};

// Where column c of x, o or the feed-forward's middle stands: what a thread needs stands together, and four
// threads read 64 bytes or 32.
constexpr __host__ __device__ int place_of(int c) {
  return (c & ~31) | (c >> 1 & 1) << 4 | (c >> 3 & 3) << 2 | (c >> 1 & 2) | (c & 1);
}
constexpr __host__ __device__ int column_at(int place) {
  return (place & ~31) | (place >> 2 & 3) << 3 | (place >> 1 & 1) << 2 | (place >> 4 & 1) << 1 | (place & 1);
}

struct Self {
  int thread, warp, lane, quad, octet;  // octet: its line
  __device__ static Self here() {
    int t = threadIdx.x;
    asm volatile("" : "+r"(t));  // computed anew in each phase, rather than kept in registers
    return Self(t);
  }
  __device__ explicit Self(int t) : thread(t), warp(t / 32), lane(t % 32), quad(t % 4), octet(t % 32 / 4) {}
  __device__ int half() const { return octet / 4; }
  __device__ int row() const { return octet % 4; }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void read_words(const void* p, uint4& w) {
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(p)
               : "memory");
}
__device__ __forceinline__ void read_words(const void* p, uint2& w) {
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(p) : "memory");
}
__device__ __forceinline__ uint32_t read_word(const uint32_t* p) {
  uint32_t w;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(w) : "l"(p) : "memory");
  return w;
}

template <class In>
__device__ __forceinline__ uint16_t bits_of(float value) {
  if constexpr (std::is_same_v<In, __nv_bfloat16>) return __bfloat16_as_ushort(__float2bfloat16(value));
  if constexpr (std::is_same_v<In, __half>) return __half_as_ushort(__float2half(value));
}
template <class In>
__device__ __forceinline__ uint32_t pair_of(float low, float high) {
  return static_cast<uint32_t>(bits_of<In>(low)) | static_cast<uint32_t>(bits_of<In>(high)) << 16;
}

// Which inputs a thread has in piece n: four, of a step of its warp. Where there are none, and where there is
// no row, it reads others' and no use is made of them: so all threads go the same way.
template <class S>
struct Inputs {
  int count, chunk, chunks, steps, warp, quad, half, row;
  __device__ Inputs(const Phase& phase, const Self& self)
      : count(phase.inputs),
        chunk(phase.chunk),
        chunks(phase.chunks),
        steps(phase.steps),
        warp(self.warp),
        quad(self.quad),
        half(self.half()),
        row(self.row()) {}
  __device__ int step(int n) const { return S::kOne ? 4 * n + row : n; }
  __device__ int first() const { return kInputs * (S::kWhole ? kSteps : steps) * warp; }  // in each chunk
  __device__ int begin(int n) const { return first() + kInputs * (step(n) % kSteps); }
  __device__ bool inside(int n) const {
    const int c = step(n) / kSteps;
    if constexpr (S::kWhole) return c < chunks;
    return c < chunks && step(n) % kSteps < steps && begin(n) + 8 * quad < min(chunk, count - c * chunk);
  }
  // Of 32 columns.
  __device__ int block(int n) const {
    return step(n) / kSteps * (S::kWhole ? kSteps * kChunkUnit : chunk) + begin(n);
  }
  __device__ int column(int n) const { return inside(n) ? block(n) + 8 * quad + 2 * half : 0; }
  __device__ int place(int n) const { return inside(n) ? block(n) + 16 * half + 4 * quad : 0; }
};

// Addresses are computed again in each round of a loop, rather than kept in registers.
template <class Pointer>
__device__ __forceinline__ void fresh(Pointer& p) {
  asm volatile("" : "+l"(p));
}

__device__ __forceinline__ uint32_t highest_of(const uint4& w) {
  return max(max(w.x, w.y), max(w.z, w.w));
}
__device__ __forceinline__ uint32_t highest_of(const uint2& w) {  // of halves
  const uint32_t both = __vmaxu2(w.x, w.y), high = max(both >> 16, both & 0xffff);
  return high == 0xffff ? kUnwritten : high;
}

// All of a row is read at once and again until all of it is there: when the last value comes, the others need
// no second way to the cache. What is unwritten is the highest of all words and halves. Of more rows than one
// it would be too much to ask for again and again: a thread's first words come before all others.
// Between `begin` and `end` there is time for something else.
template <class S, int Pieces, class Value, class Words>
struct Reading {
  const Value* rows;
  int pitch, count;
  __device__ void all(const Inputs<S>& in, Words (&v)[S::kSets][Pieces]) {
    fresh(rows);
#pragma unroll
    for (int set = 0; set < S::kSets; ++set) {
      const Value* const row = rows + (S::kOne ? 0 : min(in.row + 4 * set, count - 1)) * pitch;
#pragma unroll
      for (int n = 0; n < Pieces; ++n) read_words(row + in.place(n), v[set][n]);
    }
  }
  __device__ const Value* first(const Inputs<S>& in) {
    return rows + min(in.row, count - 1) * pitch + in.place(0);
  }
  __device__ static uint32_t highest(const Words (&v)[S::kSets][Pieces]) {
    uint32_t highest = 0;
#pragma unroll
    for (int set = 0; set < S::kSets; ++set)
#pragma unroll
      for (int n = 0; n < Pieces; ++n) highest = max(highest, highest_of(v[set][n]));
    return highest;
  }
  __device__ void begin(const Inputs<S>& in, Words (&v)[S::kSets][Pieces]) {
    if constexpr (S::kOne)
      all(in, v);
    else
      read_words(first(in), v[0][0]);
  }
  __device__ void end(const Inputs<S>& in, Words (&v)[S::kSets][Pieces]) {
    if constexpr (S::kOne) {
      while (highest(v) == kUnwritten) all(in, v);
    } else {
      while (highest_of(v[0][0]) == kUnwritten) read_words(first(in), v[0][0]);
      __syncwarp();
      do all(in, v);
      while (highest(v) == kUnwritten);
    }
    __syncwarp();
  }
};

// x before a half of a block, in the copy that this block reads.
__device__ __forceinline__ const uint32_t* stream_of(const Plan& p, int layer, int half) {
  return p.stream + blockIdx.x % p.copies * p.stream_copy + (2 * layer + half) * p.rows * p.stream_pitch;
}
// o or what is between the layers of the feed-forward: where it stands in a copy.
__device__ __forceinline__ int inner_at(const Plan& p, int layer, int half) {
  return p.rows * (layer * (p.inner_pitch[0] + p.inner_pitch[1]) + half * p.inner_pitch[0]);
}

__device__ __forceinline__ void workers_meet() {
  __syncwarp();
  hopper::named_sync(1, kWorkers);
}

// ---- the norm ----

// Over the threads of a warp that have the same row.
template <class S>
__device__ __forceinline__ float row_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  v += __shfl_xor_sync(0xffffffffu, v, 2);
  v += __shfl_xor_sync(0xffffffffu, v, 16);
  if constexpr (S::kOne) {
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    v += __shfl_xor_sync(0xffffffffu, v, 8);
  }
  return v;
}

template <class S, int Pieces>
__device__ __forceinline__ Share share_of(const Inputs<S>& in, float inverse, const uint4 (&v)[Pieces]) {
  const auto sum_of = [&](const auto& term) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < Pieces; ++n) {
      const float four = (term(__uint_as_float(v[n].x)) + term(__uint_as_float(v[n].y))) +
                         (term(__uint_as_float(v[n].z)) + term(__uint_as_float(v[n].w)));
      if (in.inside(n)) sum += four;
    }
    return row_sum<S>(sum);
  };
  const float mean = sum_of([](float u) { return u; }) * inverse;
  return {mean, sum_of([mean](float u) { return (u - mean) * (u - mean); })};
}

// Mean and 1 / deviation of a row, of all warps' shares in a fixed order.
struct Moments {
  float mean, rstd;
  template <bool Whole>
  __device__ static Moments of(const Plan& p, const Rest& rest, int row) {
    constexpr float kCount = kSteps * kInputs;
    const float4* const from = reinterpret_cast<const float4*>(rest.shares[row]);
    float means[kWarps], squares[kWarps], sum[2] = {}, total[2] = {};
#pragma unroll
    for (int i = 0; i < kWarps / 2; ++i) {
      const float4 two = from[i];
      means[2 * i] = two.x, squares[2 * i] = two.y, means[2 * i + 1] = two.z, squares[2 * i + 1] = two.w;
    }
    const auto count = [&](int w) { return Whole ? kCount : rest.counts[w]; };
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum[w % 2] = fmaf(count(w), means[w], sum[w % 2]);
    const float mean = (sum[0] + sum[1]) * p.inverse;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      total[w % 2] += fmaf(count(w) * (means[w] - mean), means[w] - mean, squares[w]);
    return {mean, rsqrtf(fmaf(total[0] + total[1], p.inverse, p.eps))};
  }
};

struct Modulation {
  float2 scale[2], shift[2];
  __device__ void read(const float* from, int width) {
    const auto two = [&](int at) { return __ldg(reinterpret_cast<const float2*>(from + at)); };
    scale[0] = two(0), scale[1] = two(4), shift[0] = two(width), shift[1] = two(width + 4);
  }
  template <class In>
  __device__ uint2 applied(const uint4& v, const Moments& m) const {
    const auto one = [&](uint32_t bits, float s, float t) {
      return fmaf((__uint_as_float(bits) - m.mean) * m.rstd, 1.0f + s, t);
    };
    return make_uint2(pair_of<In>(one(v.x, scale[0].x, shift[0].x), one(v.y, scale[0].y, shift[0].y)),
                      pair_of<In>(one(v.z, scale[1].x, shift[1].x), one(v.w, scale[1].y, shift[1].y)));
  }
};

// The rows of phases 0 and 2, normalised and modulated. Scale and shift are read before x is there, where
// registers are enough.
template <class In, class S, int Pieces>
struct NormedRows {
  static constexpr bool kAhead = S::kWhole && S::kSets == 1;
  Modulation ahead[S::kSets][Pieces];
  uint4 v[S::kSets][Pieces];

  __device__ static int row_of(const Plan& p, const Inputs<S>& in, int set) {
    return S::kOne ? 0 : min(in.row + 4 * set, p.rows - 1);
  }
  __device__ static const float* scale_of(const Plan& p, const Inputs<S>& in, int layer, int half, int set,
                                          int n) {
    return p.layer[layer].modulation + row_of(p, in, set) * p.modulation_stride + half * 3 * p.width +
           in.column(n);
  }
  __device__ static Reading<S, Pieces, uint32_t, uint4> reading(const Plan& p, int layer, int half) {
    return {stream_of(p, layer, half), p.stream_pitch, p.rows};
  }
  __device__ void begin(const Plan& p, const Inputs<S>& in, int layer, int half) {
    reading(p, layer, half).begin(in, v);
    if constexpr (kAhead) {
#pragma unroll
      for (int set = 0; set < S::kSets; ++set)
#pragma unroll
        for (int n = 0; n < Pieces; ++n) ahead[set][n].read(scale_of(p, in, layer, half, set, n), p.width);
    }
  }
  __device__ void end(const Plan& p, const Inputs<S>& in, int layer, int half, const Self& self,
                      uint2 (&x)[S::kSets][Pieces]) {
    Rest& rest = rest_of(p);
    reading(p, layer, half).end(in, v);
    note(layer, 2 * half, kWordsSeen);
    const float inverse = S::kWhole ? 1.0f / (kSteps * kInputs) : rest.inverses[self.warp];
#pragma unroll
    for (int set = 0; set < S::kSets; ++set) {
      const Share share = share_of<S>(in, inverse, v[set]);
      if (self.quad == 0 && in.half == 0 && (!S::kOne || in.row == 0))
        rest.shares[S::kOne ? 0 : in.row + 4 * set][self.warp] = share;
    }
    workers_meet();
#pragma unroll
    for (int set = 0; set < S::kSets; ++set) {
      const Moments moments = Moments::of<S::kWhole>(p, rest, S::kOne ? 0 : in.row + 4 * set);
#pragma unroll
      for (int n = 0; n < Pieces; ++n) {
        if constexpr (!kAhead) ahead[set][n].read(scale_of(p, in, layer, half, set, n), p.width);
        x[set][n] = ahead[set][n].template applied<In>(v[set][n], moments);
        if (!in.inside(n)) x[set][n] = make_uint2(0, 0);
      }
    }
    note(layer, 2 * half, kNormed);
  }
};

// Those of phases 1 and 3, as they are.
template <class S, int Pieces>
struct PlainRows {
  __device__ static Reading<S, Pieces, uint16_t, uint2> reading(const Plan& p, int layer, int half) {
    return {p.inner + blockIdx.x % p.copies * p.inner_copy + inner_at(p, layer, half), p.inner_pitch[half],
            p.rows};
  }
  uint2 v[S::kSets][Pieces];
  __device__ void begin(const Plan& p, const Inputs<S>& in, int layer, int half) {
    reading(p, layer, half).begin(in, v);
  }
  __device__ void end(const Plan& p, const Inputs<S>& in, int layer, int half, const Self&,
                      uint2 (&x)[S::kSets][Pieces]) {
    reading(p, layer, half).end(in, v);
#pragma unroll
    for (int set = 0; set < S::kSets; ++set)
#pragma unroll
      for (int n = 0; n < Pieces; ++n) x[set][n] = in.inside(n) ? v[set][n] : make_uint2(0, 0);
    note(layer, 1 + 2 * half, kWordsSeen), note(layer, 1 + 2 * half, kNormed);
  }
};

#endif

}  // namespace pom::kernels::stack
