// The step of a stack, third part: the products of a slot's lines with the rows, where the warps' sums meet,
// and what follows them in each phase.
#pragma once

#include "pom/kernels/common/activations.cuh"
#include "pom/kernels/sm90/decode/stack_step_rows.cuh"

namespace pom::kernels::stack {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// c += (16 lines x 16 inputs) (16 inputs x 8 columns), of what a thread read of a line: words 0 and 2 are
// line `octet`, words 1 and 3 the one 8 further.
template <class In>
__device__ __forceinline__ void multiply(float (&c)[4], const uint4& w, const uint2& x) {
  if constexpr (std::is_same_v<In, __nv_bfloat16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "r"(x.x), "r"(x.y));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w), "r"(x.x), "r"(x.y));
}

// What the warps have of a line's product with a row: (lines, rows, warps).
struct Sums {
  float* base;
  int rows;
  // Phases use two places in turn: one is written while the other may still be read.
  __device__ Sums(const Plan& p, int which)
      : base(reinterpret_cast<float*>(shared_memory() + p.sums_at[which])), rows(p.rows) {}
  __device__ float* at(int line, int row) const { return base + (line * rows + row) * kWarps; }
  __device__ float of(int line, int row) const {
    const float4* const from = reinterpret_cast<const float4*>(at(line, row));
    float sum[kWarps / 4];
#pragma unroll
    for (int i = 0; i < kWarps / 4; ++i) {
      const float4 four = from[i];
      sum[i] = (four.x + four.y) + (four.z + four.w);
    }
    static_assert(kWarps == 12);
    return (sum[0] + sum[1]) + sum[2];
  }
};

// Eight lines' products with all rows.
template <class S>
struct Gemms {
  static constexpr int kChains = S::kOne ? 4 : S::kSets == 1 ? 3 : 1;  // that need not wait for each other
  float c[S::kSets][kChains][4] = {};

  template <class In, int Pieces>
  __device__ __forceinline__ void add(const uint4& w, const uint2 (&x)[S::kSets][Pieces], int step) {
#pragma unroll
    for (int set = 0; set < S::kSets; ++set)
      multiply<In>(c[set][step % kChains], w, x[set][S::kOne ? step / 4 : step]);
  }
  // With one row, step n is in columns n % 4 and 4 + n % 4.
  __device__ __forceinline__ void put_one(const Sums& to, const Self& self, int line, bool inside) const {
    const float(&d)[kChains][4] = c[0];
    const bool low = self.quad < 2, even = self.quad % 2 == 0;
    const float first = low ? d[0][0] + d[1][1] : d[0][2] + d[1][3];
    const float second = low ? d[2][0] + d[3 % kChains][1] : d[2 % kChains][2] + d[3 % kChains][3];
    float sum = even ? first : second;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (self.quad == 0 && inside) to.at(line, 0)[self.warp] = sum;
  }
  __device__ __forceinline__ void put(const Sums& to, const Self& self, int first, int lines) const {
    const int line = first + self.octet;
    const bool inside = self.octet < lines;
    if constexpr (S::kOne) {
      put_one(to, self, line, inside);
      return;
    } else {
#pragma unroll
      for (int set = 0; set < S::kSets; ++set) {
        float d[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          d[i] = c[set][0][i];
#pragma unroll
          for (int j = 1; j < kChains; ++j) d[i] += c[set][j][i];
        }
        d[0] += __shfl_xor_sync(0xffffffffu, d[2], 2), d[1] += __shfl_xor_sync(0xffffffffu, d[3], 2);
        const int row = 4 * set + 2 * self.quad;
        if (inside && self.quad < 2 && row < to.rows) to.at(line, row)[self.warp] = d[0];
        if (inside && self.quad < 2 && row + 1 < to.rows) to.at(line, row + 1)[self.warp] = d[1];
      }
    }
  }
};

// What a thread has of a slot's lines: of line `octet`, and with two groups of the one 8 further.
template <class S, int Groups>
struct Fragment {
  uint4 w[Groups][kSteps];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int group = 0; group < Groups; ++group)
#pragma unroll
      for (int j = 0; j < kSteps; ++j) w[group][j] = make_uint4(0, 0, 0, 0);
  }
  // Threads without a line read the last one, and no use is made of what they have.
  __device__ __forceinline__ void load(const Plan& p, const Inputs<S>& in, int c, int lines, const Self& self,
                                       const Walk& walk) {
    const uint8_t* const from = walk.memory(p) + 2 * in.first() + 16 * self.quad;
#pragma unroll
    for (int group = 0; group < Groups; ++group) {
      const uint8_t* const line = from + min(kLines * group + self.octet, lines - 1) * p.pitch;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        if constexpr (!S::kWhole) w[group][j] = make_uint4(0, 0, 0, 0);
        if (S::kWhole || in.inside(kSteps * c + j))
          w[group][j] = *reinterpret_cast<const uint4*>(line + 2 * kInputs * j);
      }
    }
  }
  template <class In, int Pieces>
  __device__ __forceinline__ void multiply_by(const uint2 (&x)[S::kSets][Pieces], int c,
                                              Gemms<S> (&sums)[Groups]) const {
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
#pragma unroll
      for (int group = 0; group < Groups; ++group)
        sums[group].template add<In>(w[group][j], x, kSteps * c + j);
  }
};

// Of slots that all of this warp has read.
__device__ __forceinline__ void give_slot(const Plan& p, const Self& self, Walk& behind) {
  if (self.lane == 0) give_back(behind.empty(p));
  behind.next_slot(p);
}

// Slots are read into registers while the rows are still on their way, as far as there is room for them; what
// is given back so makes room in the ring, too. More is not better: with one row, all four chunks of a narrow
// phase or all slots of a wide one took longer, though without copies the step was faster then, because a
// full ring keeps copies back while words travel. Nor must fragments spill: what does goes through the same
// queues (1.8 times the reading of the weights instead of 1.35).

// A line in one chunk: some slots at a time (a round), so that their reads wait together. Where there is no
// slot any more zeros stand for it, and no use is made of them.
template <class In, class S, int Pieces>
__device__ __forceinline__ void multiply_short(const Plan& p, const Inputs<S>& in, const Slice& slice,
                                               const Self& self, int layer, int half, Walk& walk,
                                               const Sums& to, NormedRows<In, S, Pieces>& rows) {
  constexpr int kTogether = S::kSets == 1 ? kMostRound : 2, kBuffers = 2;
  constexpr int kAhead = S::kOne || S::kSets > 1 ? 2 : 1;  // buffers, filled before the rows are there
  const int group = slice.group, round = kTogether * group;
  Fragment<S, 1> f[kBuffers][kTogether];
  uint2 x[S::kSets][Pieces];
  const auto load = [&](Fragment<S, 1>(&into)[kTogether], int first) {
    Walk behind = walk;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int left = slice.lines - first - i * group;
      if (left > 0) {
        walk.wait_full(p);
        into[i].load(p, in, 0, min(group, left), self, walk);
        walk.next_slot(p);
      } else {
        into[i].clear();
      }
    }
    slot_is_read();
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (first + i * group < slice.lines) give_slot(p, self, behind);
  };
  const auto multiply_round = [&](const Fragment<S, 1>(&with)[kTogether], int first) {
    Gemms<S> sums[kTogether][1];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) with[i].template multiply_by<In>(x, 0, sums[i]);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int line = first + i * group;
      sums[i][0].put(to, self, line, min(group, slice.lines - line));
    }
  };
  rows.begin(p, in, layer, half);
#pragma unroll
  for (int b = 0; b < kAhead; ++b) load(f[b], b * round);
  rows.end(p, in, layer, half, self, x);
  if constexpr (S::kOne) {
    const auto multiply_all = [&](int first) {
#pragma unroll
      for (int b = 0; b < kBuffers; ++b)
        if (first + b * round < slice.lines) multiply_round(f[b], first + b * round);
    };
    multiply_all(0);
#pragma unroll 1
    for (int first = kBuffers * round; first < slice.lines; first += kBuffers * round) {
#pragma unroll
      for (int b = 0; b < kBuffers; ++b) load(f[b], first + b * round);
      multiply_all(first);
    }
  } else {
#pragma unroll
    for (int b = kAhead; b < kBuffers; ++b) load(f[b], b * round);
#pragma unroll 1
    for (int first = 0; first < slice.lines; first += kBuffers * round)
#pragma unroll
      for (int b = 0; b < kBuffers; ++b) {
        const int at = first + b * round, next = at + kBuffers * round;
        if (at >= slice.lines) break;
        multiply_round(f[b], at);
        if (next < slice.lines) load(f[b], next);
      }
  }
}

// In more chunks: where all are whole some before the rows are there, and each further one when one of these
// is done.
template <class In, int Chunks, int Groups, class S, int Pieces, class Rows>
__device__ __forceinline__ void multiply_long(const Plan& p, const Inputs<S>& in, const Slice& slice,
                                              const Self& self, int layer, int half, Walk& walk,
                                              const Sums& to, Rows& rows) {
  constexpr int kAhead = S::kWhole && S::kSets == 1 ? 3 : 1;
  Fragment<S, Groups> f[kAhead];
  uint2 x[S::kSets][Pieces];
  const auto load = [&](int first, int c) {
    walk.wait_full(p);
    f[c % kAhead].load(p, in, c, min(slice.group, slice.lines - first), self, walk);
    slot_is_read();
    give_slot(p, self, walk);
  };
  const auto load_first = [&](int first) {
#pragma unroll
    for (int c = 0; c < kAhead; ++c)
      if (c < in.chunks)
        load(first, c);
      else
        f[c].clear();
  };
  const auto multiply_all = [&](int first) {
    Gemms<S> sums[Groups];
#pragma unroll
    for (int c = 0; c < Chunks; ++c) {
      if (c >= in.chunks) break;
      f[c % kAhead].template multiply_by<In>(x, c, sums);
      if (c + kAhead < Chunks && c + kAhead < in.chunks) load(first, c + kAhead);
    }
    const int lines = min(slice.group, slice.lines - first);
#pragma unroll
    for (int group = 0; group < Groups; ++group)
      sums[group].put(to, self, first + kLines * group, lines - kLines * group);
  };
  rows.begin(p, in, layer, half);
  if constexpr (S::kWhole) load_first(0);
  rows.end(p, in, layer, half, self, x);
  if constexpr (S::kWhole) multiply_all(0);
#pragma unroll 1
  for (int first = S::kWhole ? slice.group : 0; first < slice.lines; first += slice.group)
    load_first(first), multiply_all(first);
}

// ---- what follows the sums ----

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

// Value i of a block's outputs: its unit (fastest) and its row.
struct Place {
  int unit, row, column;
  bool inside;
  __device__ Place(const Plan& p, const Slice& slice, int i) {
    inside = i < slice.units * p.rows, row = 0, unit = i;
    if (p.rows > 1) {
      const int units = max(slice.units, 1);
      row = i / units, unit = i % units;
    }
    column = slice.first + unit;
  }
};

__device__ __forceinline__ float bias_at(const float* bias, int at) {
  return bias ? __ldcg(bias + at) : 0.0f;
}

// A feature has four threads, one for each factor. What belongs to a place beside the sums is read before
// they are there.
struct FactorOperands {
  int factor = 0;
  bool inside = false;
  int at = 0;     // in (rows, k D)
  int place = 0;  // in a copy of o
  float context = 0, gate = 0, sum = 0;
  int64_t count = 0;
  FactorOperands() = default;
  __device__ FactorOperands(const Plan& p, const StackLayer& l, int layer, const Place& place_, int i)
      : factor(i % kMostStackOrder), inside(place_.inside && factor < p.order) {
    if (!inside) return;
    const int column = factor * p.features + place_.column;
    at = place_.row * p.order * p.features + column, sum = __ldcg(l.sum + at);
    place = inner_at(p, layer, 0) + place_.row * p.inner_pitch[0] + place_of(column);
    context = bias_at(l.context_bias, column), gate = bias_at(l.gate_bias, column);
    count = l.count[place_.row];
  }
};

// The running products of a feature's factors into the state, and o = sigmoid(gate) * H. Whole warps come
// here.
template <class In>
__device__ __forceinline__ void finish_factor(const Plan& p, int layer, const Place& place, const Sums& sums,
                                              const FactorOperands& with) {
  const int line = place.unit * 2 * p.order + with.factor;
  float gemm = 1, gate = 0;
  if (with.inside) {
    gemm = gelu<float>(sums.of(line, place.row) + with.context);
    gate = sigmoid<In>(sums.of(line + p.order, place.row) + with.gate);
  }
#pragma unroll
  for (int before = 1; before < kMostStackOrder; before *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, gemm, before, kMostStackOrder);
    if (with.factor >= before) gemm *= other;
  }
  if (!with.inside) return;
  const float sum = with.sum + gemm, count = 1e-7f + (static_cast<float>(with.count) + 1.0f);
  write_copies(p.inner + with.place, p.copies, p.inner_copy,
               bits_of<In>(gate * sum * fast_reciprocal(count)));
  p.layer[layer].sum[with.at] = sum;
}

// GELU of what `up` gave.
template <class In>
__device__ __forceinline__ void finish_up(const Plan& p, int layer, const Place& place, const Sums& sums,
                                          float bias) {
  write_copies(p.inner + inner_at(p, layer, 1) + place.row * p.inner_pitch[1] + place_of(place.column),
               p.copies, p.inner_copy, bits_of<In>(gelu<In>(sums.of(place.unit, place.row) + bias)));
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
  const float gemm = sums.of(place.unit, place.row) + with.bias;
  uint32_t before = with.x;
  while (before == kUnwritten) before = read_word(stream_of(p, layer, half) + with.at);
  const float x = fmaf(with.gate, gemm, __uint_as_float(before));
  if (half == 1 && layer + 1 == p.layers)
    p.x[place.row * p.width + place.column] = x;
  else
    write_copies(p.stream + (2 * layer + half + 1) * p.rows * p.stream_pitch + with.at, p.copies,
                 p.stream_copy, __float_as_uint(x));
  const StackLayer& l = p.layer[layer];
  // Who read the count wrote an o, which came before all that is here.
  if (half == 1 && place.column == 0 && l.next_count) l.next_count[place.row] = l.count[place.row] + 1;
}

// ---- phases ----

template <class In, class S>
__device__ __forceinline__ void multiply_wide(const Plan& p, int layer, int half, const Slice& slice,
                                              const Self& self, Walk& walk, const Sums& sums) {
  if (slice.lines > 0) {
    const Inputs<S> in(p.phases[2 * half], self);
    constexpr int kPieces = S::template kPieces<S::kNorm>;
    NormedRows<In, S, kPieces> rows;
    if constexpr (S::kNorm == 1)
      multiply_short(p, in, slice, self, layer, half, walk, sums, rows);
    else
      multiply_long<In, S::kNorm, 1, S, kPieces>(p, in, slice, self, layer, half, walk, sums, rows);
    note_waits(layer, 2 * half, walk);
  }
  note(layer, 2 * half, kMultiplied);
  workers_meet();
  note(layer, 2 * half, kMet);
}

// What there are more places than threads.
template <class In>
__device__ __forceinline__ void finish_others(const Plan& p, int layer, int half, const Slice& slice,
                                              const Self& self, const Sums& sums) {
  const StackLayer& l = p.layer[layer];
  const int count = slice.units * p.rows * (half == 0 ? kMostStackOrder : 1);
#pragma unroll 1
  for (int i = self.thread + kWorkers; i - self.lane < count; i += kWorkers) {
    const Place place(p, slice, half == 0 ? i / kMostStackOrder : i);
    if (half == 0)
      finish_factor<In>(p, layer, place, sums, FactorOperands(p, l, layer, place, i));
    else if (place.inside)
      finish_up<In>(p, layer, place, sums, bias_at(l.up_bias, place.column));
  }
}

// Both products of the mixer's norm and what makes o of them, or `up` and GELU: one code for both products,
// because what a layer needs of it must stay in the cache of instructions.
template <class In, class S>
__device__ __forceinline__ void widen(const Plan& p, int layer, int half, Walk& walk) {
  const Self self = Self::here();
  note(layer, 2 * half, kPhaseBegins);
  const Slice slice(p.phases[2 * half], walk);
  const StackLayer& l = p.layer[layer];
  const Sums sums(p, 0);
  const Place own(p, slice, half == 0 ? self.thread / kMostStackOrder : self.thread);
  FactorOperands early;
  if (half == 0)
    early = FactorOperands(p, l, layer, own, self.thread);
  else if (own.inside)
    early.context = bias_at(l.up_bias, own.column);
  multiply_wide<In, S>(p, layer, half, slice, self, walk, sums);
  if (half == 0)
    finish_factor<In>(p, layer, own, sums, early);
  else if (own.inside)
    finish_up<In>(p, layer, own, sums, early.context);
  note(layer, 2 * half, kStored);
  if (slice.units * p.rows * (half == 0 ? kMostStackOrder : 1) > kWorkers)
    finish_others<In>(p, layer, half, slice, self, sums);
}

// `out` or `down`, and what they add to x.
template <class In, class S>
__device__ __forceinline__ void narrow(const Plan& p, int layer, int half, Walk& walk) {
  const Self self = Self::here();
  note(layer, 1 + 2 * half, kPhaseBegins);
  const Phase& phase = p.phases[1 + 2 * half];
  const Slice slice(phase, walk);
  const Place own(p, slice, self.thread);
  const ResidualOperands early(p, p.layer[layer], layer, half, own);
  const Sums sums(p, 1);
  if (slice.lines > 0) {
    const Inputs<S> in(phase, self);
    constexpr int kPieces = S::template kPieces<S::kInner>;
    PlainRows<S, kPieces> rows;
    multiply_long<In, S::kInner, 2, S, kPieces>(p, in, slice, self, layer, half, walk, sums, rows);
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

#endif

}  // namespace pom::kernels::stack
