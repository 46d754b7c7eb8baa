// One block on each processor, for the whole step. A layer has four phases: the mixer's two products with
// what makes o of them, its product with `out`, and the two of the feed-forward. In each a block has some
// lines (rows of the weights). One warp copies them: what a block will need, and in which order, is known
// beforehand, so that it waits for nothing but room in the ring of shared memory and the memory never rests.
// Twelve warps share the inputs of every line, 32 at a time: as 16 x 16 matrices through the tensor cores
// against the rows as 16 x 8, which they keep in registers for a phase. Of 32 inputs, thread q of four holds
// 8 q .. 8 q + 7: another order than the tensor cores', but the same for weights and rows. The warps' sums
// meet in shared memory.
//
// Values go from block to block as they are, written and read whole. Every layer has its own place for them,
// where before the step all bits are set, which is no value: who needs one reads it until it is another. So
// there is no other barrier between blocks, no fence and no atomic, nothing is written twice, and a phase
// begins one way through the cache after the one before ended. That way is most of its time; hence all of a
// row is asked for at once, in whole sectors, and few rows stand there in copies for different blocks.
//
// Why it ends: the blocks are all there (a cooperative launch). The copying warp waits for a slot that the
// block's own computing warps give back, and these for slots in the same order and for values of the phase
// before; so the first phase not yet finished by all can always go on. A warp gives a slot back once, after
// it has seen it full: full again means that all twelve had given it back, so no warp is a round ahead. A
// block without lines in a phase copies nothing, reads no values and owes none, but meets its own barriers.
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "pom/kernels/hopper.cuh"
#include "pom/kernels/launch.cuh"
#include "pom/kernels/mixer_math.cuh"
#include "pom/kernels/stack_step.h"

namespace pom::kernels {
namespace {

constexpr int kWarps = 12, kWorkers = 32 * kWarps, kInputs = 32;
constexpr int kThreads = kWorkers + 128;  // registers are dealt to four warps at a time: three have no work
constexpr int kSteps = 3;                 // of a warp in a chunk
constexpr int kChunkUnit = kWarps * kInputs;           // inputs of a chunk are a multiple
constexpr int kLayers = 64, kSlots = 32, kPhases = 4;  // at most, of a launch
constexpr int kMostGroup = 16, kLeastGroup = 8;        // lines of a slot
constexpr int kNormChunks = 2, kInnerChunks = 8;       // at most
constexpr int kRows = static_cast<int>(kMostStackRows);

// What the blocks share in a phase: `base` units for each and one more for the first `extra`.
struct Phase {
  int base, extra;
  int lines;     // of a unit: 2 k of a feature, else 1
  int group[2];  // lines of a slot for a block with base, base + 1 units
  int inputs, chunk, chunks;
};

struct Plan {
  int rows, columns;  // columns: of the sums in shared memory
  int width, features, hidden, order, layers;
  int slots, slot_bytes, pitch;  // pitch: bytes from line to line of a slot
  int turn;                      // by how much the slices move on from phase to phase
  int sums_at[2];                // bytes in shared memory, for phases in turn
  int rest_at;
  bool passing;  // the weights do not stay in the cache
  Phase phases[kPhases];
  float eps, inverse;  // inverse: 1 / d
  int64_t modulation_stride;
  float* x;
  // What blocks tell each other, `copies` times, for every layer: x before its halves, (rows, pitch) each; o
  // and what is between the layers of the feed-forward, (rows, k D) and (rows, h).
  int copies, stream_pitch, stream_copy, inner_copy;  // values, from copy to copy
  uint32_t* stream;
  uint16_t* inner;
  StackLayer layer[kLayers];
};

// Where the time goes.
enum Event { kPhaseBegins, kWordsSeen, kNormed, kMultiplied, kMet, kStored, kWeightsWaited, kEvents };
#ifdef POM_STEP_TRACE
constexpr int kTraceEvery = 33;
__device__ long long trace_times[4][kPhases][kEvents];
__device__ int trace_layer;
#endif

// Of shared memory, behind the ring and the sums: barriers and statistics.
struct Share {
  float mean, squares;
};
struct Rest {
  uint64_t full[kSlots], empty[kSlots];
  // Of what a warp has of a row: mean and squares about it; how many values, and 1 / that or 0.
  Share shares[kWarps][kRows];
  float counts[kWarps], inverses[kWarps];
};

// ---- what blocks tell each other ----

// Stands where nothing was written yet. Sums and roundings never give it: their only NaN is 0x7fff....
constexpr uint32_t kUnwritten = 0xffffffffu;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kWorkerRegisters = 160, kCopierRegisters = 32;

// Where column c of x stands: of 32 columns thread q of four has 8 q .. 8 q + 7, and four threads read 64
// bytes at once.
__device__ constexpr int place_of(int c) {
  return (c & ~31) | (c >> 2 & 1) << 4 | (c >> 3 & 3) << 2 | (c & 3);
}
__device__ __forceinline__ void read_four(const void* p, uint4& w) {
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(p)
               : "memory");
}
__device__ __forceinline__ uint32_t read_word(const uint32_t* p) {
  uint32_t w;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(w) : "l"(p) : "memory");
  return w;
}
__device__ __forceinline__ void write_word(uint32_t* p, uint32_t w) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(w) : "memory");
}
__device__ __forceinline__ void write_word(uint16_t* p, uint16_t w) {
  asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" ::"l"(p), "h"(w) : "memory");
}
template <class Word>  // one, two or four
__device__ __forceinline__ void write_copies(Word* p, int copies, int stride, Word w) {
  write_word(p, w);
  if (copies > 1) write_word(p + stride, w);
  if (copies > 2) write_word(p + 2 * stride, w), write_word(p + 3 * stride, w);
}

template <class In>
__device__ __forceinline__ uint16_t bits_of(float value) {
  if constexpr (std::is_same_v<In, __nv_bfloat16>) return __bfloat16_as_ushort(__float2bfloat16(value));
  if constexpr (std::is_same_v<In, __half>) return __half_as_ushort(__float2half(value));
}
__device__ __forceinline__ uint32_t pair_of(uint32_t low, uint32_t high) {  // of their lower halves
  return __byte_perm(low, high, 0x5410);
}

// ---- where the time goes ----

#ifdef POM_STEP_TRACE
__device__ __forceinline__ void note(int layer, int which, Event event, long long value = 0) {
  if (threadIdx.x == 0 && blockIdx.x % kTraceEvery == 0 && blockIdx.x < 4 * kTraceEvery &&
      layer == trace_layer)
    trace_times[blockIdx.x / kTraceEvery][which][event] = value ? value : clock64();
}
#else
__device__ __forceinline__ void note(int, int, Event) {}
#endif

// ---- the ring ----

__device__ __forceinline__ uint64_t copy_policy(bool passing) {
  uint64_t policy;
  if (passing)
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_line(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(hopper::shared_address(to)),
      "l"(from), "r"(bytes), "r"(hopper::shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void give_back(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(hopper::shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void workers_meet() {
  __syncwarp();
  hopper::named_sync(1, kWorkers);
}

__device__ __forceinline__ uint8_t* shared_memory() {
  extern __shared__ uint4 raw[];
  return reinterpret_cast<uint8_t*>(raw);
}
__device__ __forceinline__ Rest& rest_of(const Plan& p) {
  return *reinterpret_cast<Rest*>(shared_memory() + p.rest_at);
}

// What both sides walk through in the same order: slots, and the slices of phases.
struct Walk {
  int at;  // the slice of this block
  int slot = 0;
  uint32_t parity = 0;

  __device__ void next_slot(const Plan& p) {
    if (++slot == p.slots) slot = 0, parity ^= 1;
  }
  __device__ uint64_t* full(const Plan& p) const { return rest_of(p).full + slot; }
#ifdef POM_STEP_TRACE
  long long waited = 0;
  __device__ void wait_full(const Plan& p) {
    const long long from = clock64();
    hopper::barrier_wait(full(p), parity);
    waited += clock64() - from;
  }
#else
  __device__ void wait_full(const Plan& p) const {
    hopper::barrier_wait(full(p), parity);
  }
#endif
  __device__ uint64_t* empty(const Plan& p) const {
    return rest_of(p).empty + slot;
  }
  __device__ uint8_t* memory(const Plan& p) const {
    return shared_memory() + slot * p.slot_bytes;
  }
  __device__ void next_phase(const Plan& p) {
    at += p.turn;
    if (at >= static_cast<int>(gridDim.x)) at -= static_cast<int>(gridDim.x);
  }
};

#ifdef POM_STEP_TRACE
__device__ __forceinline__ void note_waits(int layer, int which, Walk& walk) {
  note(layer, which, kWeightsWaited, max(walk.waited, 1ll)), walk.waited = 0;
}
#else
__device__ __forceinline__ void note_waits(int, int, Walk&) {}
#endif

struct Slice {
  int first, units, lines, group;
  __device__ Slice(const Phase& phase, const Walk& walk) {
    const bool more = walk.at < phase.extra;
    first = phase.base * walk.at + min(walk.at, phase.extra), units = phase.base + more;
    lines = units * phase.lines, group = phase.group[more];
  }
};

__device__ __forceinline__ const uint8_t* line_at(const Plan& p, int layer, int which, const Slice& slice,
                                                  int line) {
  const StackLayer& l = p.layer[layer];
  const void* matrix = which == 1 ? l.out : which == 2 ? l.up : l.down;
  int row = slice.first + line;
  if (which == 0) {
    const int feature = line / (2 * p.order), factor = line % (2 * p.order);
    matrix = factor < p.order ? l.context : l.gate;
    row = (factor < p.order ? factor : factor - p.order) * p.features + slice.first + feature;
  }
  return static_cast<const uint8_t*>(matrix) + static_cast<int64_t>(row) * p.phases[which].inputs * 2;
}

__device__ __forceinline__ void copy_weights(const Plan& p, Walk walk, int lane) {
  const uint64_t policy = copy_policy(p.passing);
  for (int layer = 0; layer < p.layers; ++layer)
    for (int which = 0; which < kPhases; ++which, walk.next_phase(p)) {
      const Phase& phase = p.phases[which];
      const Slice slice(phase, walk);
      for (int first = 0; first < slice.lines; first += slice.group) {
        const int lines = min(slice.group, slice.lines - first);
        const uint8_t* const from = line_at(p, layer, which, slice, first + min(lane, lines - 1));
        for (int k = 0; k < phase.inputs; k += phase.chunk, walk.next_slot(p)) {
          const int bytes = 2 * min(phase.chunk, phase.inputs - k);
          if (lane == 0) {
            hopper::barrier_wait(walk.empty(p), walk.parity ^ 1);
            hopper::barrier_expect(walk.full(p), lines * bytes);
          }
          __syncwarp();
          if (lane < lines)
            copy_line(walk.memory(p) + lane * p.pitch, from + 2 * k, bytes, walk.full(p), policy);
        }
      }
    }
}

// A layer's pointers come from far away when they are read first. A warp without work does it ahead of all.
__device__ __forceinline__ void warm_constants(const Plan& p) {
#pragma unroll 1
  for (int i = 0; i < p.layers; ++i) {
    const StackLayer& l = p.layer[i];
    asm volatile("" ::"l"(l.context), "l"(l.up_bias), "l"(l.next_count));
  }
}

// ---- rows into registers ----

struct Self {
  int thread, warp, lane, quad, octet;  // octet: its row
  // What follows from the thread's number is computed anew in each phase, rather than kept in registers.
  __device__ static Self here() {
    int t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return Self(t);
  }
  __device__ explicit Self(int t) : thread(t), warp(t / 32), lane(t % 32), quad(t % 4), octet(t % 32 / 4) {}
};

// Which inputs a thread has: eight from at(c, j) on, of chunk c and step j. Where there are none, and where
// there is no row, it reads others' and no use is made of them: so all threads go the same way.
struct Inputs {
  int count, chunk, mine[kSteps], row, back;
  __device__ Inputs(const Plan& p, const Phase& phase, const Self& self)
      : count(phase.inputs), chunk(phase.chunk), row(min(self.octet, p.rows - 1)), back(4 * self.quad) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) mine[j] = kInputs * (self.warp + kWarps * j) + 8 * self.quad;
  }
  __device__ int left(int c) const {
    return min(chunk, count - c * chunk);
  }
  __device__ bool inside(int c, int j) const {
    return mine[j] < left(c);
  }
  __device__ int at(int c, int j) const {
    return inside(c, j) ? c * chunk + mine[j] : 0;
  }
  __device__ int place(int c, int j) const {  // as place_of()
    return inside(c, j) ? c * chunk + mine[j] - back : 0;
  }
};

__device__ __forceinline__ void four_of(const float* p, float* v) {
  const float4 f = __ldg(reinterpret_cast<const float4*>(p));
  v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
}

// Addresses are computed again in each round of a loop, rather than kept in registers.
template <class Pointer>
__device__ __forceinline__ void fresh(Pointer& p) {
  asm volatile("" : "+l"(p));
}

// All of a row is read at once and again until all of it is there: when the last value comes, the others need
// no second way to the cache. What is unwritten is the highest of all words and halves.
template <int Chunks>
__device__ __forceinline__ void read_stream(const uint32_t* row, const Inputs& in,
                                            uint4 (&v)[Chunks][kSteps][2]) {
  uint32_t highest;
  do {
    fresh(row);
#pragma unroll
    for (int n = 0; n < 2 * Chunks * kSteps; ++n) {
      const int c = n / 2 / kSteps, j = n / 2 % kSteps;
      read_four(row + in.place(c, j) + 16 * (n % 2), v[c][j][n % 2]);
    }
    highest = 0;
#pragma unroll
    for (int n = 0; n < 2 * Chunks * kSteps; ++n) {
      const uint4& w = v[n / 2 / kSteps][n / 2 % kSteps][n % 2];
      highest = max(highest, max(max(w.x, w.y), max(w.z, w.w)));
    }
  } while (highest == kUnwritten);
}

template <int Chunks>
__device__ __forceinline__ void read_inner(const uint16_t* row, const Inputs& in,
                                           uint4 (&x)[Chunks][kSteps]) {
  uint32_t highest;
  do {
    fresh(row);
#pragma unroll
    for (int n = 0; n < Chunks * kSteps; ++n)
      read_four(row + in.at(n / kSteps, n % kSteps), x[n / kSteps][n % kSteps]);
    highest = 0;
#pragma unroll
    for (int n = 0; n < Chunks * kSteps; ++n) {
      const uint4& w = x[n / kSteps][n % kSteps];
      highest = __vmaxu2(highest, __vmaxu2(__vmaxu2(w.x, w.y), __vmaxu2(w.z, w.w)));
    }
  } while ((highest & 0xffff) == 0xffff || highest >> 16 == 0xffff);
}

__device__ __forceinline__ void floats_of(const uint4 (&w)[2], float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    v[4 * i] = __uint_as_float(w[i].x), v[4 * i + 1] = __uint_as_float(w[i].y);
    v[4 * i + 2] = __uint_as_float(w[i].z), v[4 * i + 3] = __uint_as_float(w[i].w);
  }
}

template <int Chunks>
__device__ __forceinline__ void clear_outside(const Inputs& in, uint4 (&x)[Chunks][kSteps]) {
#pragma unroll
  for (int c = 0; c < Chunks; ++c)
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      if (!in.inside(c, j)) x[c][j] = make_uint4(0, 0, 0, 0);
}

// x before a half of a block, in the copy that this block reads.
__device__ __forceinline__ const uint32_t* stream_of(const Plan& p, int layer, int half) {
  return p.stream + blockIdx.x % p.copies * p.stream_copy + (2 * layer + half) * p.rows * p.stream_pitch;
}
// o or what is between the layers of the feed-forward: where it stands in a copy.
__device__ __forceinline__ int inner_at(const Plan& p, int layer, int half) {
  const int all = p.order * p.features;
  return p.rows * (layer * (all + p.hidden) + half * all);
}

// ---- the norm ----

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

template <int Chunks>
__device__ __forceinline__ Share share_of(const Inputs& in, float inverse,
                                          const uint4 (&v)[Chunks][kSteps][2]) {
  const auto sum_of = [&](const auto& term) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < Chunks; ++c)
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        float u[8];
        floats_of(v[c][j], u);
        const float eight = ((term(u[0]) + term(u[1])) + (term(u[2]) + term(u[3]))) +
                            ((term(u[4]) + term(u[5])) + (term(u[6]) + term(u[7])));
        if (in.inside(c, j)) sum += eight;
      }
    return quad_sum(sum);
  };
  const float mean = sum_of([](float u) { return u; }) * inverse;
  return {mean, sum_of([mean](float u) { return (u - mean) * (u - mean); })};
}

// Mean and 1 / deviation of a row: four threads have three warps' shares each, added in a fixed order.
struct Moments {
  float mean, rstd;
  __device__ Moments(const Rest& s, const Self& self, float inverse, float eps) {
    static_assert(kWarps % 4 == 0);
    float sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w += 4)
      sum = fmaf(s.counts[w + self.quad], s.shares[w + self.quad][self.octet].mean, sum);
    mean = quad_sum(sum) * inverse;
#pragma unroll
    for (int w = 0; w < kWarps; w += 4) {
      const Share share = s.shares[w + self.quad][self.octet];
      squares += fmaf(s.counts[w + self.quad] * (share.mean - mean), share.mean - mean, share.squares);
    }
    rstd = rsqrtf(fmaf(quad_sum(squares), inverse, eps));
  }
};

template <class In>
__device__ __forceinline__ uint4 modulated(const uint4 (&words)[2], const Moments& m, const float* scale,
                                           const float* shift) {
  float v[8];
  uint32_t y[8];
  floats_of(words, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = bits_of<In>(fmaf((v[i] - m.mean) * m.rstd, 1.0f + scale[i], shift[i]));
  return make_uint4(pair_of(y[0], y[1]), pair_of(y[2], y[3]), pair_of(y[4], y[5]), pair_of(y[6], y[7]));
}

// The rows of phases 0 and 2, normalised and modulated. Scale and shift are read before x is there, where
// registers are enough.
template <class In, int Chunks>
__device__ __forceinline__ void read_normed(const Plan& p, const Inputs& in, int layer, int half,
                                            const Self& self, uint4 (&x)[Chunks][kSteps]) {
  constexpr bool kAhead = Chunks == 1;
  Rest& rest = rest_of(p);
  const float* const scale = p.layer[layer].modulation + in.row * p.modulation_stride + half * 3 * p.width;
  float scales[kSteps][8], shifts[kSteps][8];
  uint4 v[Chunks][kSteps][2];
  const auto read_modulation = [&](int c, int j) {
    const float* const from = scale + in.at(c, j);
    four_of(from, scales[j]), four_of(from + 4, scales[j] + 4);
    four_of(from + p.width, shifts[j]), four_of(from + p.width + 4, shifts[j] + 4);
  };
  if constexpr (kAhead) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) read_modulation(0, j);
  }
  read_stream(stream_of(p, layer, half) + in.row * p.stream_pitch, in, v);
  __syncwarp();
  note(layer, 2 * half, kWordsSeen);
  const Share share = share_of(in, rest.inverses[self.warp], v);
  if (self.quad == 0) rest.shares[self.warp][self.octet] = share;
  workers_meet();
  const Moments moments(rest, self, p.inverse, p.eps);
#pragma unroll
  for (int c = 0; c < Chunks; ++c)
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      if constexpr (!kAhead) read_modulation(c, j);
      x[c][j] = modulated<In>(v[c][j], moments, scales[j], shifts[j]);
    }
  clear_outside(in, x);
  note(layer, 2 * half, kNormed);
}

template <int Chunks>
__device__ __forceinline__ void read_rows(const Plan& p, const Inputs& in, int layer, int half,
                                          uint4 (&x)[Chunks][kSteps]) {
  const uint16_t* const words = p.inner + blockIdx.x % p.copies * p.inner_copy + inner_at(p, layer, half);
  read_inner(words + in.row * in.count, in, x);
  clear_outside(in, x);
  __syncwarp();
  note(layer, 1 + 2 * half, kWordsSeen), note(layer, 1 + 2 * half, kNormed);
}

// ---- products ----

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

// What the warps have of a line's product with a row: (warps, lines, columns).
struct Sums {
  float* base;
  int lines, columns;
  // Phases use two places in turn: one is written while the other may still be read.
  __device__ Sums(const Plan& p, int which, const Slice& slice)
      : base(reinterpret_cast<float*>(shared_memory() + p.sums_at[which])),
        lines(slice.lines),
        columns(p.columns) {}
  __device__ float* at(int warp, int line, int row) const {
    return base + (warp * lines + line) * columns + row;
  }
  __device__ float of(int line, int row) const {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += *at(warp, line, row);
    return sum;
  }
  __device__ void put(const Self& self, int line, float left, float right) const {
    if (columns == 1 && self.quad == 0) *at(self.warp, line, 0) = left;
    if (columns > 1 && 2 * self.quad < columns)
      *reinterpret_cast<float2*>(at(self.warp, line, 2 * self.quad)) = make_float2(left, right);
  }
};

// What a thread has of a slot's lines: of line `octet` and of the one 8 further.
struct Fragment {
  uint4 low[kSteps], high[kSteps];
  __device__ __forceinline__ void load(const Plan& p, const Inputs& in, int c, int lines, const Self& self,
                                       Walk& walk) {
    walk.wait_full(p);
    const uint8_t* const from = walk.memory(p) + self.octet * p.pitch;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const bool inside = in.inside(c, j);
      low[j] = high[j] = make_uint4(0, 0, 0, 0);
      if (inside && self.octet < lines) low[j] = *reinterpret_cast<const uint4*>(from + 2 * in.mine[j]);
      if (inside && self.octet + 8 < lines)
        high[j] = *reinterpret_cast<const uint4*>(from + 8 * p.pitch + 2 * in.mine[j]);
    }
  }
  template <class In, int Chains>
  __device__ __forceinline__ void multiply_by(const uint4 (&x)[kSteps], float (&sums)[Chains][4]) const {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      multiply<In>(sums[j % Chains], low[j].x, high[j].x, low[j].y, high[j].y, x[j].x, x[j].y);
      multiply<In>(sums[j % Chains], low[j].z, high[j].z, low[j].w, high[j].w, x[j].z, x[j].w);
    }
  }
};

__device__ __forceinline__ void leave_slot(const Plan& p, const Self& self, Walk& walk) {
  __syncwarp();
  if (self.lane == 0) give_back(walk.empty(p));
  walk.next_slot(p);
}

template <int Chains>
__device__ __forceinline__ void put_lines(const Sums& to, const Self& self, int first, int lines,
                                          const float (&sums)[Chains][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int line = 8 * half + self.octet, i = 2 * half;
    float left = sums[0][i], right = sums[0][i + 1];
#pragma unroll
    for (int j = 1; j < Chains; ++j) left += sums[j][i], right += sums[j][i + 1];
    if (line < lines) to.put(self, first + line, left, right);
  }
}

// A line in one chunk: two slots at a time, so that one is read while the other is multiplied.
template <class In>
__device__ __forceinline__ void multiply_lines(const Plan& p, const Inputs& in, int, const Slice& slice,
                                               const Self& self, const uint4 (&x)[1][kSteps], Walk& walk,
                                               const Sums& to) {
#pragma unroll 1
  for (int first = 0; first < slice.lines; first += 2 * slice.group) {
    const int second = first + slice.group, lines = min(slice.group, slice.lines - first);
    const int more = min(slice.group, slice.lines - second);
    float sums[kSteps][4] = {}, others[kSteps][4] = {};
    Fragment one, other;
    one.load(p, in, 0, lines, self, walk), leave_slot(p, self, walk);
    if (more > 0) other.load(p, in, 0, more, self, walk), leave_slot(p, self, walk);
    one.multiply_by<In>(x[0], sums);
    if (more > 0) other.multiply_by<In>(x[0], others);
    put_lines(to, self, first, lines, sums);
    if (more > 0) put_lines(to, self, second, more, others);
  }
}

// In more chunks: one slot at a time; two would not fit into the registers beside the rows.
template <class In, int Chunks>
__device__ __forceinline__ void multiply_lines(const Plan& p, const Inputs& in, int chunks,
                                               const Slice& slice, const Self& self,
                                               const uint4 (&x)[Chunks][kSteps], Walk& walk, const Sums& to) {
  constexpr int kChains = Chunks <= 4 ? kSteps : 1;  // products that need not wait for each other
#pragma unroll 1
  for (int first = 0; first < slice.lines; first += slice.group) {
    const int lines = min(slice.group, slice.lines - first);
    float sums[kChains][4] = {};
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (c >= chunks) break;
      Fragment fragment;
      fragment.load(p, in, c, lines, self, walk);
      fragment.multiply_by<In>(x[c], sums);
      leave_slot(p, self, walk);
    }
    put_lines(to, self, first, lines, sums);
  }
}

// ---- what follows the sums ----

// Value i of a block's outputs: its unit (fastest) and its row.
struct Place {
  int unit, row, column;
  bool inside;
  __device__ Place(const Plan& p, const Slice& slice, int i) {
    const int units = max(slice.units, 1);
    row = i / units, unit = i % units, column = slice.first + unit, inside = i < slice.units * p.rows;
  }
};

__device__ __forceinline__ float bias_at(const float* bias, int at) {
  return bias ? __ldcg(bias + at) : 0.0f;
}

// A feature has four threads, one for each factor. What belongs to a place beside the sums is read before
// they are there.
struct FactorOperands {
  int factor;
  bool inside;
  int at = 0;  // in (rows, k D)
  float context = 0, gate = 0, sum = 0;
  int64_t count = 0;
  __device__ FactorOperands(const Plan& p, const StackLayer& l, const Place& place, int i)
      : factor(i % kMostStackOrder), inside(place.inside && factor < p.order) {
    if (!inside) return;
    const int column = factor * p.features + place.column;
    at = place.row * p.order * p.features + column, count = l.count[place.row], sum = __ldcg(l.sum + at);
    context = bias_at(l.context_bias, column), gate = bias_at(l.gate_bias, column);
  }
};

// The running products of a feature's factors into the state, and o = sigmoid(gate) * H. Whole warps come
// here.
template <class In>
__device__ __forceinline__ void finish_factor(const Plan& p, int layer, const Place& place, const Sums& sums,
                                              const FactorOperands& with) {
  const int line = place.unit * 2 * p.order + with.factor;
  float product = 1, gate = 0;
  if (with.inside) {
    product = gelu<float>(sums.of(line, place.row) + with.context);
    gate = sigmoid<In>(sums.of(line + p.order, place.row) + with.gate);
  }
#pragma unroll
  for (int before = 1; before < kMostStackOrder; before *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, product, before, kMostStackOrder);
    if (with.factor >= before) product *= other;
  }
  if (!with.inside) return;
  const float sum = with.sum + product, count = 1e-7f + (static_cast<float>(with.count) + 1.0f);
  p.layer[layer].sum[with.at] = sum;
  write_copies(p.inner + inner_at(p, layer, 0) + with.at, p.copies, p.inner_copy,
               bits_of<In>(gate * sum * fast_reciprocal(count)));
}

template <class In, int Chunks>
__device__ __forceinline__ void mix(const Plan& p, int layer, Walk& walk) {
  const Self self = Self::here();
  note(layer, 0, kPhaseBegins);
  const Phase& phase = p.phases[0];
  const Slice slice(phase, walk);
  const Place own(p, slice, self.thread / kMostStackOrder);
  const FactorOperands early(p, p.layer[layer], own, self.thread);
  const Sums sums(p, 0, slice);
  if (slice.lines > 0) {
    const Inputs in(p, phase, self);
    uint4 x[Chunks][kSteps];
    read_normed<In>(p, in, layer, 0, self, x);
    multiply_lines<In>(p, in, phase.chunks, slice, self, x, walk, sums);
    note_waits(layer, 0, walk);
  }
  note(layer, 0, kMultiplied);
  workers_meet();
  note(layer, 0, kMet);
  finish_factor<In>(p, layer, own, sums, early);
  note(layer, 0, kStored);
#pragma unroll 1
  for (int i = self.thread + kWorkers; i - self.lane < slice.units * p.rows * kMostStackOrder;
       i += kWorkers) {
    const Place place(p, slice, i / kMostStackOrder);
    finish_factor<In>(p, layer, place, sums, FactorOperands(p, p.layer[layer], place, i));
  }
}

// up and GELU
template <class In, int Chunks>
__device__ __forceinline__ void widen(const Plan& p, int layer, Walk& walk) {
  const Self self = Self::here();
  note(layer, 2, kPhaseBegins);
  const Phase& phase = p.phases[2];
  const Slice slice(phase, walk);
  const Place own(p, slice, self.thread);
  const float* const bias = p.layer[layer].up_bias;
  const float early = own.inside ? bias_at(bias, own.column) : 0;
  const Sums sums(p, 0, slice);
  if (slice.lines > 0) {
    const Inputs in(p, phase, self);
    uint4 x[Chunks][kSteps];
    read_normed<In>(p, in, layer, 1, self, x);
    multiply_lines<In>(p, in, phase.chunks, slice, self, x, walk, sums);
    note_waits(layer, 2, walk);
  }
  note(layer, 2, kMultiplied);
  workers_meet();
  note(layer, 2, kMet);
  const auto finish = [&](const Place& place, float b) {
    write_copies(p.inner + inner_at(p, layer, 1) + place.row * p.hidden + place.column, p.copies,
                 p.inner_copy, bits_of<In>(gelu<In>(sums.of(place.unit, place.row) + b)));
  };
  if (own.inside) finish(own, early);
  note(layer, 2, kStored);
#pragma unroll 1
  for (int i = self.thread + kWorkers; i < slice.units * p.rows; i += kWorkers) {
    const Place place(p, slice, i);
    finish(place, bias_at(bias, place.column));
  }
}

struct ResidualOperands {
  float bias = 0, gate = 0;
  uint32_t x = 0;
  int at = 0;  // of x in a layer's half
  __device__ ResidualOperands(const Plan& p, const StackLayer& l, int layer, int half, const Place& place) {
    if (!place.inside) return;
    at = place.row * p.stream_pitch + place_of(place.column);
    x = read_word(stream_of(p, layer, half) + at),
    bias = bias_at(half == 0 ? l.out_bias : l.down_bias, place.column);
    gate = __ldcg(l.modulation + place.row * p.modulation_stride + (half * 3 + 2) * p.width + place.column);
  }
};

// x += gate * product, for all blocks, or after the last layer to where x was.
__device__ __forceinline__ void finish_residual(const Plan& p, int layer, int half, const Place& place,
                                                const Sums& sums, const ResidualOperands& with) {
  const float product = sums.of(place.unit, place.row) + with.bias;
  uint32_t before = with.x;
  while (before == kUnwritten) before = read_word(stream_of(p, layer, half) + with.at);
  const float x = fmaf(with.gate, product, __uint_as_float(before));
  if (half == 1 && layer + 1 == p.layers)
    p.x[place.row * p.width + place.column] = x;
  else
    write_copies(p.stream + (2 * layer + half + 1) * p.rows * p.stream_pitch + with.at, p.copies,
                 p.stream_copy, __float_as_uint(x));
  const StackLayer& l = p.layer[layer];
  // Who read the count wrote an o, which came before all that is here.
  if (half == 1 && place.column == 0 && l.next_count) l.next_count[place.row] = l.count[place.row] + 1;
}

template <class In, int Chunks>
__device__ __forceinline__ void narrow(const Plan& p, int layer, int half, Walk& walk) {
  const Self self = Self::here();
  note(layer, 1 + 2 * half, kPhaseBegins);
  const Phase& phase = p.phases[1 + 2 * half];
  const Slice slice(phase, walk);
  const Place own(p, slice, self.thread);
  const ResidualOperands early(p, p.layer[layer], layer, half, own);
  const Sums sums(p, 1, slice);
  if (slice.lines > 0) {
    const Inputs in(p, phase, self);
    uint4 x[Chunks][kSteps];
    read_rows(p, in, layer, half, x);
    multiply_lines<In>(p, in, phase.chunks, slice, self, x, walk, sums);
    note_waits(layer, 1 + 2 * half, walk);
  }
  note(layer, 1 + 2 * half, kMultiplied);
  workers_meet();
  note(layer, 1 + 2 * half, kMet);
  if (own.inside) finish_residual(p, layer, half, own, sums, early);
  note(layer, 1 + 2 * half, kStored);
#pragma unroll 1
  for (int i = self.thread + kWorkers; i < slice.units * p.rows; i += kWorkers) {
    const Place place(p, slice, i);
    finish_residual(p, layer, half, place, sums, ResidualOperands(p, p.layer[layer], layer, half, place));
  }
}

// ---- the kernel ----

__device__ __forceinline__ float inputs_of_warp(const Phase& phase, int warp) {
  int count = 0;
  for (int c = 0; c < phase.chunks; ++c)
    for (int j = 0; j < kSteps; ++j) {
      const int left = min(phase.chunk, phase.inputs - c * phase.chunk) - kInputs * (warp + kWarps * j);
      count += max(0, min(kInputs, left));
    }
  return static_cast<float>(count);
}

template <class In, int NormChunks, int InnerChunks>
__device__ __forceinline__ void compute(const Plan& p, Walk walk) {
#pragma unroll 1
  for (int layer = 0; layer < p.layers; ++layer) {
    mix<In, NormChunks>(p, layer, walk), walk.next_phase(p);
    narrow<In, InnerChunks>(p, layer, 0, walk), walk.next_phase(p);
    widen<In, NormChunks>(p, layer, walk), walk.next_phase(p);
    narrow<In, InnerChunks>(p, layer, 1, walk), walk.next_phase(p);
  }
}

#endif

template <class In, int NormChunks, int InnerChunks>
__global__ void __launch_bounds__(kThreads, 1) stack_step_kernel(const __grid_constant__ Plan p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  Rest& rest = rest_of(p);
  if (static_cast<int>(threadIdx.x) < p.slots) {
    hopper::barrier_init(rest.full + threadIdx.x, 1), hopper::barrier_init(rest.empty + threadIdx.x, kWarps);
    hopper::barriers_ready();
  }
  if (threadIdx.x < kWarps) {
    const float count = inputs_of_warp(p.phases[0], threadIdx.x);
    rest.counts[threadIdx.x] = count, rest.inverses[threadIdx.x] = count > 0 ? 1 / count : 0;
  }
  __syncthreads();
  const Walk walk{static_cast<int>(blockIdx.x)};
  const int warp = threadIdx.x / 32;
  if (warp >= kWarps) {
    hopper::give_registers<kCopierRegisters>();
    if (warp == kWarps) copy_weights(p, walk, threadIdx.x % 32);
    if (warp == kWarps + 1) warm_constants(p);
  } else {
    hopper::take_registers<kWorkerRegisters>();
    compute<In, NormChunks, InnerChunks>(p, walk);
  }
#else
  __trap();  // built for another GPU than stack_step_supported() lets through
#endif
}

// Before it: x, in all copies, and else nothing written.
struct Beginning {
  const float* x;
  uint4* words;                                  // all of them, `count`
  int width, pitch, first, copy, copies, count;  // first: values of x before the first layer, of `copy`
};
__global__ void begin_kernel(const Beginning b) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), value = 4 * i;
  if (i >= b.count) return;
  uint4 w = make_uint4(kUnwritten, kUnwritten, kUnwritten, kUnwritten);
  if (value < b.copies * b.copy && value % b.copy < b.first) {
    const int row = value % b.copy / b.pitch, at = value % b.pitch;
    const int column = (at & ~31) | (at >> 2 & 3) << 3 | (at >> 4 & 1) << 2;
    if (column < b.width) w = *reinterpret_cast<const uint4*>(b.x + row * b.width + column);
    for (uint32_t* u : {&w.x, &w.y, &w.z, &w.w})
      if (*u == kUnwritten && column < b.width) *u = 0x7fffffffu;  // another NaN
  }
  b.words[i] = w;
}

// ---- the host's half ----

int up(int64_t count, int64_t by) {
  return static_cast<int>((count + by - 1) / by);
}
bool aligned(const void* p) {
  return p && reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// What the current device has, asked for once.
struct Device {
  int processors = 0, shared = 0;  // bytes for a block
};
Device device() {
  constexpr int kDevices = 64;
  static std::atomic<int64_t> known[kDevices];
  int index = 0, processors = 0, shared = 0;
  if (cudaGetDevice(&index) != cudaSuccess) return {};
  if (index < kDevices)
    if (const int64_t both = known[index].load(std::memory_order_relaxed))
      return {static_cast<int>(both >> 32), static_cast<int>(both & 0xffffffff)};
  if (cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index) != cudaSuccess)
    return {};
  if (index < kDevices) known[index].store(int64_t{processors} << 32 | shared, std::memory_order_relaxed);
  return {processors, shared};
}

Phase phase_of(int64_t units, int lines, int64_t inputs, int blocks) {
  Phase phase{};
  phase.base = static_cast<int>(units / blocks), phase.extra = static_cast<int>(units % blocks);
  phase.lines = lines, phase.inputs = static_cast<int>(inputs);
  const int steps = up(inputs, kInputs), chunks = up(steps, kSteps * kWarps);
  phase.chunk = kChunkUnit * up(steps, kWarps * chunks), phase.chunks = up(inputs, phase.chunk);
  return phase;
}

int most_lines(const Phase& phase) {
  return (phase.base + (phase.extra > 0)) * phase.lines;
}
// Lines in groups of nearly the same size, at most `most`.
int group_of(int lines, int most) {
  return lines == 0 ? most : up(lines, up(lines, most));
}

// The shape alone; false where it does not fit into a block.
bool plan_shape(const StackStep& s, const Device& device, Plan* plan) {
  Plan& p = *plan;
  const int64_t all = s.order * s.features;
  p.rows = static_cast<int>(s.rows), p.columns = s.rows == 1 ? 1 : p.rows + p.rows % 2;
  p.width = static_cast<int>(s.width), p.features = static_cast<int>(s.features);
  p.hidden = static_cast<int>(s.hidden), p.order = s.order;
  p.phases[0] = phase_of(s.features, 2 * s.order, s.width, device.processors);
  p.phases[1] = phase_of(s.width, 1, all, device.processors);
  p.phases[2] = phase_of(s.hidden, 1, s.width, device.processors);
  p.phases[3] = phase_of(s.width, 1, s.hidden, device.processors);
  const int slim = std::max(most_lines(p.phases[1]), most_lines(p.phases[3]));
  const int wide = std::max(most_lines(p.phases[0]), most_lines(p.phases[2]));
  // The narrow phases have few lines and long ones: their slots are full.
  const int group = std::max(group_of(slim, kMostGroup), kLeastGroup);
  int chunk = 0;
  for (Phase& phase : p.phases) {
    for (int more = 0; more < 2; ++more)
      phase.group[more] = group_of((phase.base + more) * phase.lines, group);
    chunk = std::max(chunk, phase.chunk);
  }
  p.pitch = 2 * chunk + 64;  // an odd number of 64 bytes: two lines are read without a conflict
  p.slot_bytes = group * p.pitch;
  p.turn = device.processors * 5 / 8;
  const int line_bytes = kWarps * p.columns * static_cast<int>(sizeof(float));
  const int64_t behind = int64_t{wide + slim} * line_bytes + 16 + static_cast<int64_t>(sizeof(Rest));
  p.slots = static_cast<int>(std::min<int64_t>(kSlots, (device.shared - behind) / p.slot_bytes));
  if (p.slots < 2) return false;
  p.sums_at[0] = p.slots * p.slot_bytes, p.sums_at[1] = p.sums_at[0] + wide * line_bytes;
  p.rest_at = (p.sums_at[1] + slim * line_bytes + 15) / 16 * 16;
  return p.phases[0].chunks <= kNormChunks &&
         std::max(p.phases[1].chunks, p.phases[3].chunks) <= kInnerChunks;
}

// Blocks that read the same lines of the cache at the same time wait for each other; with few rows there is
// room for copies.
int copies_of(const StackStep& s) {
  return s.rows == 1 ? 4 : s.rows == 2 ? 2 : 1;
}
int stream_pitch_of(const StackStep& s) {
  return kInputs * up(s.width, kInputs);
}

bool sizes_supported(const StackStep& s) {
  constexpr int64_t kMostInner = 9216, kMostWidth = 2304;
  if (s.order < 1 || s.order > kMostStackOrder || s.rows < 1 || s.rows > kMostStackRows) return false;
  if (s.features < 1 || s.features > kMostInner || s.width < 8 || s.hidden < 8) return false;
  const int64_t all = s.order * s.features;
  return s.width % 8 == 0 && all % 8 == 0 && s.hidden % 8 == 0 && s.width <= kMostWidth &&
         all <= kMostInner && s.hidden <= kMostInner;
}

bool layer_supported(const StackLayer& l) {
  return aligned(l.context) && aligned(l.gate) && aligned(l.out) && aligned(l.up) && aligned(l.down) &&
         aligned(l.modulation) && l.sum && l.count;
}

template <class In, int NormChunks, int InnerChunks>
cudaError_t start(const Plan& plan, const Device& device, cudaStream_t stream) {
  const auto kernel = stack_step_kernel<In, NormChunks, InnerChunks>;
  static std::atomic<uint64_t> prepared;  // a bit for each device
  int index = 0;
  if (const cudaError_t e = cudaGetDevice(&index); e != cudaSuccess) return e;
  const uint64_t bit = index < 64 ? uint64_t{1} << index : 0;
  if (!(prepared.load(std::memory_order_relaxed) & bit)) {
    if (const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared);
        e != cudaSuccess)
      return e;
    prepared.fetch_or(bit, std::memory_order_relaxed);
  }
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative, together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(device.processors)), config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.rest_at) + sizeof(Rest), config.stream = stream;
  config.attrs = &together, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, plan);
}

template <class In>
cudaError_t start_variant(const Plan& plan, const Device& device, cudaStream_t stream) {
  const int inner = std::max(plan.phases[1].chunks, plan.phases[3].chunks);
  if (plan.phases[0].chunks == 1 && inner <= 4) return start<In, 1, 4>(plan, device, stream);
  return start<In, kNormChunks, kInnerChunks>(plan, device, stream);
}

}  // namespace

#ifdef POM_STEP_TRACE
// For bench/step_cuda.cu: which layer is looked at, and cycles of four blocks' phases in it.
cudaError_t stack_step_trace_layer(int layer) {
  return cudaMemcpyToSymbol(trace_layer, &layer, sizeof(layer));
}
cudaError_t stack_step_trace(long long (*to)[kPhases][7]) {
  static_assert(kEvents == 7);
  return cudaMemcpyFromSymbol(to, trace_times, sizeof(trace_times));
}
#endif

bool stack_step_supported(const StackStep& s) {
  if (device_capability() != 90 || (s.dtype != Dtype::bf16 && s.dtype != Dtype::fp16)) return false;
  if (!sizes_supported(s) || !s.layers || s.layer_count < 1) return false;
  if (!aligned(s.x) || !aligned(s.workspace) || s.modulation_stride % 4 != 0) return false;
  for (int64_t i = 0; i < s.layer_count; ++i)
    if (!layer_supported(s.layers[i])) return false;
  Plan plan{};
  const Device at = device();
  return at.processors > 0 && plan_shape(s, at, &plan);
}

int64_t stack_step_workspace(const StackStep& s) {
  const int64_t layers = std::min<int64_t>(s.layer_count, kLayers);
  return copies_of(s) * layers * s.rows * 2 *
         (stream_pitch_of(s) * int64_t{sizeof(float)} + s.order * s.features + s.hidden);
}

cudaError_t stack_step(const StackStep& s, cudaStream_t stream) {
  if (!stack_step_supported(s)) return cudaErrorNotSupported;
  constexpr int64_t kCache = int64_t{32} << 20;
  constexpr int kBeginThreads = 256;
  const Device at = device();
  Plan plan{};
  plan_shape(s, at, &plan);
  plan.eps = s.eps, plan.inverse = 1.0f / static_cast<float>(s.width),
  plan.modulation_stride = s.modulation_stride, plan.x = s.x;
  plan.copies = copies_of(s), plan.stream_pitch = stream_pitch_of(s);
  plan.stream = static_cast<uint32_t*>(s.workspace);
  plan.passing = s.layer_count * 2 * s.width * (3 * s.order * s.features + 2 * s.hidden) > kCache;
  for (int64_t first = 0; first < s.layer_count; first += kLayers) {
    plan.layers = static_cast<int>(std::min<int64_t>(kLayers, s.layer_count - first));
    std::copy_n(s.layers + first, plan.layers, plan.layer);
    const int halves = 2 * plan.layers * plan.rows;
    plan.stream_copy = halves * plan.stream_pitch;
    plan.inner_copy = plan.layers * plan.rows * static_cast<int>(s.order * s.features + s.hidden);
    plan.inner = reinterpret_cast<uint16_t*>(plan.stream + plan.copies * plan.stream_copy);
    const int words = plan.copies * (plan.stream_copy / 4 + plan.inner_copy / 8);
    begin_kernel<<<up(words, kBeginThreads), kBeginThreads, 0, stream>>>(
        {s.x, static_cast<uint4*>(s.workspace), plan.width, plan.stream_pitch, plan.rows * plan.stream_pitch,
         plan.stream_copy, plan.copies, words});
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    const cudaError_t e = s.dtype == Dtype::bf16 ? start_variant<__nv_bfloat16>(plan, at, stream)
                                                 : start_variant<__half>(plan, at, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace pom::kernels
