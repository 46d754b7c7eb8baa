// One block on each processor, for the whole step. A layer has four phases: the mixer's two products with
// what makes o of them, its product with `out`, and the two of the feed-forward. In each a block has some
// lines (rows of the weights). One warp copies them: what a block will need, and in which order, is known
// beforehand, so that it waits for nothing but room in the ring of shared memory and the memory never rests.
// Twelve warps share the inputs of every line, 32 at a time: as 16 x 16 matrices through the tensor cores
// against the rows as 16 x 8, which they keep in registers for a phase. Of 32 inputs, thread q of four holds
// 8 q .. 8 q + 7: another order than the tensor cores', but the same for weights and rows. The warps' sums
// meet in shared memory.
//
// Values go from block to block in words that carry the number of their layer beside the value, written and
// read whole: who needs a value reads its word until the number is right. There is no other barrier between
// blocks, no fence and no atomic.
//
// Why it ends: the blocks are all there (a cooperative launch). The copying warp waits for a slot that the
// block's own computing warps give back, and these for slots in the same order and for words of the phase
// before; so the first phase not yet finished by all can always go on. A warp gives a slot back once, after
// it has seen it full: full again means that all twelve had given it back, so no warp is a round ahead. A
// block without lines in a phase copies nothing, reads no words and owes none, but meets its own barriers.
//
// Why no word is overwritten before it was read: what is written anew in a phase was last read by the blocks
// with lines two phases before or earlier, before they wrote their own words; and whoever writes in a phase
// has read all words of the phase before, whose writers had read all of the one before that.
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
  uint64_t *mixed, *fed;         // (rows, d): x after the mixer; after the feed-forward, and at first
  uint32_t *selected, *between;  // (rows, k D), (rows, h)
  StackLayer layer[kLayers];
};

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

// ---- words that carry a number ----

__device__ __forceinline__ uint64_t word_of(float value, uint32_t number) {
  return static_cast<uint64_t>(number) << 32 | __float_as_uint(value);
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kWorkerRegisters = 160, kCopierRegisters = 32;

__device__ __forceinline__ void read_words(const uint64_t* p, uint64_t (&w)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2)
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(w[i]), "=l"(w[i + 1])
                 : "l"(p + i)
                 : "memory");
}
__device__ __forceinline__ uint64_t read_word(const uint64_t* p) {
  uint64_t w;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(w) : "l"(p) : "memory");
  return w;
}
__device__ __forceinline__ void read_words(const uint32_t* p, uint32_t (&w)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 4)
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[i]), "=r"(w[i + 1]), "=r"(w[i + 2]), "=r"(w[i + 3])
                 : "l"(p + i)
                 : "memory");
}
__device__ __forceinline__ void write_word(uint64_t* p, uint64_t w) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(w) : "memory");
}
__device__ __forceinline__ void write_word(uint32_t* p, uint32_t w) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(w) : "memory");
}

__device__ __forceinline__ float value_of(uint64_t word) {
  return __uint_as_float(static_cast<uint32_t>(word));
}
__device__ __forceinline__ uint32_t number_of(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}
template <class In>
__device__ __forceinline__ uint32_t bits_of(float value) {
  if constexpr (std::is_same_v<In, __nv_bfloat16>) return __bfloat16_as_ushort(__float2bfloat16(value));
  if constexpr (std::is_same_v<In, __half>) return __half_as_ushort(__float2half(value));
}
__device__ __forceinline__ uint32_t pair_of(uint32_t low, uint32_t high) {  // of their lower halves
  return __byte_perm(low, high, 0x5410);
}

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
  int slot = 0;
  uint32_t parity = 0;
  int at;  // the slice of this block

  __device__ void next_slot(const Plan& p) {
    if (++slot == p.slots) slot = 0, parity ^= 1;
  }
  __device__ uint64_t* full(const Plan& p) const { return rest_of(p).full + slot; }
  __device__ uint64_t* empty(const Plan& p) const { return rest_of(p).empty + slot; }
  __device__ uint8_t* memory(const Plan& p) const { return shared_memory() + slot * p.slot_bytes; }
  __device__ void next_phase(const Plan& p) {
    at += p.turn;
    if (at >= static_cast<int>(gridDim.x)) at -= static_cast<int>(gridDim.x);
  }
};

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
  int count, chunk, mine[kSteps], row;
  __device__ Inputs(const Plan& p, const Phase& phase, const Self& self)
      : count(phase.inputs), chunk(phase.chunk), row(min(self.octet, p.rows - 1)) {
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
};

__device__ __forceinline__ void four_of(const float* p, float* v) {
  const float4 f = __ldcg(reinterpret_cast<const float4*>(p));
  v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
}

// Not 0 where a thread's eight words of a step have not all the right number.
struct Numbered {
  uint32_t number;
  __device__ uint32_t off(const uint64_t (&w)[8]) const {
    uint32_t off = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) off |= number_of(w[i]) ^ number;
    return off;
  }
  __device__ uint32_t off(const uint32_t (&w)[8]) const {
    uint32_t off = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) off |= w[i] ^ number << 16;
    return off >> 16;
  }
};

// Takes all steps of a row, `Together` of them read at once: as many as there are registers. The first is
// waited for alone, so that waiting does not keep the memory busy; by then the others are mostly there too.
template <int Steps, int Together, class Word, class Take>
__device__ __forceinline__ void read_numbered(const Word* row, Numbered numbered, const Inputs& in,
                                              const Take& take) {
  Word first[8];
  do read_words(row + in.at(0, 0), first);
  while (numbered.off(first) != 0);
  take(0, first);
#pragma unroll
  for (int from = 1; from < Steps; from += Together) {
    uint32_t off;
    do {
      Word w[Together][8];
      off = 0;
#pragma unroll
      for (int n = 0; n < Together; ++n)
        if (from + n < Steps) read_words(row + in.at((from + n) / kSteps, (from + n) % kSteps), w[n]);
#pragma unroll
      for (int n = 0; n < Together; ++n)
        if (from + n < Steps) off |= numbered.off(w[n]), take(from + n, w[n]);
    } while (off != 0);
  }
}

template <int Chunks>
__device__ __forceinline__ void read_stream(const uint64_t* row, uint32_t number, const Inputs& in,
                                            float (&v)[Chunks][kSteps][8]) {
  read_numbered<Chunks * kSteps, 2>(row, Numbered{number}, in, [&](int n, const uint64_t(&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[n / kSteps][n % kSteps][i] = value_of(w[i]);
  });
}

template <int Chunks>
__device__ __forceinline__ void read_inner(const uint32_t* row, uint32_t number, const Inputs& in,
                                           uint4 (&x)[Chunks][kSteps]) {
  constexpr int kTogether = Chunks <= 4 ? 11 : 3;
  read_numbered<Chunks * kSteps, kTogether>(row, Numbered{number}, in, [&](int n, const uint32_t(&w)[8]) {
    x[n / kSteps][n % kSteps] =
        make_uint4(pair_of(w[0], w[1]), pair_of(w[2], w[3]), pair_of(w[4], w[5]), pair_of(w[6], w[7]));
  });
}

template <int Chunks>
__device__ __forceinline__ void clear_outside(const Inputs& in, uint4 (&x)[Chunks][kSteps]) {
#pragma unroll
  for (int c = 0; c < Chunks; ++c)
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      if (!in.inside(c, j)) x[c][j] = make_uint4(0, 0, 0, 0);
}

// x before a half of a block.
struct Stream {
  const uint64_t* words;
  uint32_t number;
  __device__ Stream(const Plan& p, int layer, int half)
      : words(half == 0 ? p.fed : p.mixed), number(half == 0 ? layer : layer + 1) {}
  __device__ float value(uint64_t word, int at) const {  // of a word that may have been read too early
    while (number_of(word) != number) word = read_word(words + at);
    return value_of(word);
  }
};

// ---- the norm ----

__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

template <int Chunks>
__device__ __forceinline__ Share share_of(const Inputs& in, float inverse,
                                          const float (&v)[Chunks][kSteps][8]) {
  const auto sum_of = [&](const auto& term) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < Chunks; ++c)
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const float(&u)[8] = v[c][j];
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
__device__ __forceinline__ uint4 modulated(const float (&v)[8], const Moments& m, const float* scale,
                                           const float* shift) {
  uint32_t y[8];
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
  const Stream stream(p, layer, half);
  const float* const scale = p.layer[layer].modulation + in.row * p.modulation_stride + half * 3 * p.width;
  float scales[kSteps][8], shifts[kSteps][8], v[Chunks][kSteps][8];
  const auto read_modulation = [&](int c, int j) {
    const float* const from = scale + in.at(c, j);
    four_of(from, scales[j]), four_of(from + 4, scales[j] + 4);
    four_of(from + p.width, shifts[j]), four_of(from + p.width + 4, shifts[j] + 4);
  };
  if constexpr (kAhead) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) read_modulation(0, j);
  }
  read_stream(stream.words + in.row * p.width, stream.number, in, v);
  __syncwarp();
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
}

template <int Chunks>
__device__ __forceinline__ void read_rows(const Plan& p, const Inputs& in, int layer, int half,
                                          uint4 (&x)[Chunks][kSteps]) {
  read_inner((half == 0 ? p.selected : p.between) + in.row * in.count, layer + 1, in, x);
  clear_outside(in, x);
  __syncwarp();
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
      hopper::barrier_wait(walk.full(p), walk.parity);
      const uint8_t* const from = walk.memory(p) + self.octet * p.pitch;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        const bool inside = in.inside(c, j);
        if (inside && self.octet < lines) low = *reinterpret_cast<const uint4*>(from + 2 * in.mine[j]);
        if (inside && self.octet + 8 < lines)
          high = *reinterpret_cast<const uint4*>(from + 8 * p.pitch + 2 * in.mine[j]);
        const uint4& row = x[c][j];
        multiply<In>(sums[j % kChains], low.x, high.x, low.y, high.y, row.x, row.y);
        multiply<In>(sums[j % kChains], low.z, high.z, low.w, high.w, row.z, row.w);
      }
      __syncwarp();
      if (self.lane == 0) give_back(walk.empty(p));
      walk.next_slot(p);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = 8 * half + self.octet, i = 2 * half;
      float left = sums[0][i], right = sums[0][i + 1];
#pragma unroll
      for (int j = 1; j < kChains; ++j) left += sums[j][i], right += sums[j][i + 1];
      if (line < lines) to.put(self, first + line, left, right);
    }
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
    gate = sigmoid<float>(sums.of(line + p.order, place.row) + with.gate);
  }
#pragma unroll
  for (int before = 1; before < kMostStackOrder; before *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, product, before, kMostStackOrder);
    if (with.factor >= before) product *= other;
  }
  if (!with.inside) return;
  const float sum = with.sum + product, count = 1e-7f + (static_cast<float>(with.count) + 1.0f);
  p.layer[layer].sum[with.at] = sum;
  write_word(p.selected + with.at,
             static_cast<uint32_t>(layer + 1) << 16 | bits_of<In>(gate * (sum / count)));
}

template <class In, int Chunks>
__device__ __forceinline__ void mix(const Plan& p, int layer, Walk& walk) {
  const Self self = Self::here();
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
  }
  workers_meet();
  finish_factor<In>(p, layer, own, sums, early);
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
  }
  workers_meet();
  const auto finish = [&](const Place& place, float b) {
    const uint32_t bits = bits_of<In>(gelu<float>(sums.of(place.unit, place.row) + b));
    write_word(p.between + place.row * p.hidden + place.column,
               static_cast<uint32_t>(layer + 1) << 16 | bits);
  };
  if (own.inside) finish(own, early);
#pragma unroll 1
  for (int i = self.thread + kWorkers; i < slice.units * p.rows; i += kWorkers) {
    const Place place(p, slice, i);
    finish(place, bias_at(bias, place.column));
  }
}

struct ResidualOperands {
  float bias = 0, gate = 0;
  uint64_t x = 0;
  int at = 0;
  __device__ ResidualOperands(const Plan& p, const StackLayer& l, int half, const Stream& stream,
                              const Place& place) {
    if (!place.inside) return;
    at = place.row * p.width + place.column;
    x = read_word(stream.words + at), bias = bias_at(half == 0 ? l.out_bias : l.down_bias, place.column);
    gate = __ldcg(l.modulation + place.row * p.modulation_stride + (half * 3 + 2) * p.width + place.column);
  }
};

// x += gate * product, to words, or after the last layer to where x was.
__device__ __forceinline__ void finish_residual(const Plan& p, int layer, int half, const Stream& stream,
                                                const Place& place, const Sums& sums,
                                                const ResidualOperands& with) {
  const float product = sums.of(place.unit, place.row) + with.bias;
  const float x = fmaf(with.gate, product, stream.value(with.x, with.at));
  if (half == 1 && layer + 1 == p.layers)
    p.x[with.at] = x;
  else
    write_word((half == 0 ? p.mixed : p.fed) + with.at, word_of(x, layer + 1));
  const StackLayer& l = p.layer[layer];
  // Who read the count wrote an o, which came before all that is here.
  if (half == 1 && place.column == 0 && l.next_count) l.next_count[place.row] = l.count[place.row] + 1;
}

template <class In, int Chunks>
__device__ __forceinline__ void narrow(const Plan& p, int layer, int half, Walk& walk) {
  const Self self = Self::here();
  const Phase& phase = p.phases[1 + 2 * half];
  const Slice slice(phase, walk);
  const Place own(p, slice, self.thread);
  const Stream stream(p, layer, half);
  const ResidualOperands early(p, p.layer[layer], half, stream, own);
  const Sums sums(p, 1, slice);
  if (slice.lines > 0) {
    const Inputs in(p, phase, self);
    uint4 x[Chunks][kSteps];
    read_rows(p, in, layer, half, x);
    multiply_lines<In>(p, in, phase.chunks, slice, self, x, walk, sums);
  }
  workers_meet();
  if (own.inside) finish_residual(p, layer, half, stream, own, sums, early);
#pragma unroll 1
  for (int i = self.thread + kWorkers; i < slice.units * p.rows; i += kWorkers) {
    const Place place(p, slice, i);
    finish_residual(p, layer, half, stream, place, sums,
                    ResidualOperands(p, p.layer[layer], half, stream, place));
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
  const Walk walk{0, 0, static_cast<int>(blockIdx.x)};
  const int warp = threadIdx.x / 32;
  if (warp >= kWarps) {
    hopper::give_registers<kCopierRegisters>();
    if (warp == kWarps) copy_weights(p, walk, threadIdx.x % 32);
  } else {
    hopper::take_registers<kWorkerRegisters>();
    compute<In, NormChunks, InnerChunks>(p, walk);
  }
#else
  __trap();  // built for another GPU than stack_step_supported() lets through
#endif
}

// Before it: x in words of number 0, and no other word has a number that is waited for.
__global__ void begin_kernel(const float* x, uint64_t* fed, int values, uint4* others, int others_count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < values) fed[i] = word_of(x[i], 0);
  if (i < others_count) others[i] = make_uint4(0, 0, 0, 0);
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
  return s.rows * (2 * s.width * int64_t{sizeof(uint64_t)} +
                   (s.order * s.features + s.hidden) * int64_t{sizeof(uint32_t)});
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
  plan.mixed = static_cast<uint64_t*>(s.workspace);
  plan.selected = reinterpret_cast<uint32_t*>(plan.mixed + s.rows * s.width);
  plan.between = plan.selected + s.rows * s.order * s.features;
  plan.fed = reinterpret_cast<uint64_t*>(plan.between + s.rows * s.hidden);
  const int values = static_cast<int>(s.rows * s.width);
  const int others = static_cast<int>((stack_step_workspace(s) - values * sizeof(uint64_t)) / sizeof(uint4));
  plan.passing = s.layer_count * 2 * s.width * (3 * s.order * s.features + 2 * s.hidden) > kCache;
  for (int64_t first = 0; first < s.layer_count; first += kLayers) {
    plan.layers = static_cast<int>(std::min<int64_t>(kLayers, s.layer_count - first));
    std::copy_n(s.layers + first, plan.layers, plan.layer);
    begin_kernel<<<up(std::max(values, others), kBeginThreads), kBeginThreads, 0, stream>>>(
        s.x, plan.fed, values, static_cast<uint4*>(s.workspace), others);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    const cudaError_t e = s.dtype == Dtype::bf16 ? start_variant<__nv_bfloat16>(plan, at, stream)
                                                 : start_variant<__half>(plan, at, stream);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace pom::kernels
