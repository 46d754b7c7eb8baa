// The block stack's kernel: see block stack.h. The work of a block of the network is a table of units in an
// order in which every unit depends only on units before it: tiles of products, rows of norms, columns of
// means. Clusters of two blocks take units in turn, and of those the two computing warpgroups in turn, as in
// gemm_kernel.cuh. Of the fourth warpgroup's warps one copies, running ahead through the same table, and
// each computing warpgroup has one for a servant: it waits for what a unit depends on, lays out in shared
// memory what the epilogue will read, and tells the others that the unit is done.
//
// Rows come in bands of 256, a cluster's two tiles. A unit that is done counts up a counter of its phase and
// band (a phase is one product or pass of one block of the network), and whoever reads those rows waits for
// the full count: the copying thread before it loads rows, the servants for the epilogues. All blocks are on
// the processors at once, each goes through its units in order, and the first unit of all that is not done
// waits for nothing: so no wait lasts. A buffer is written again only by a unit whose dependencies have
// passed all its readers, for which the sums and means, read across bands, take turns of two.
#pragma once

#include <cfloat>

#include "pom/kernels/common/columns.cuh"
#include "pom/kernels/sm90/gemm/epilogue_gate.cuh"
#include "pom/kernels/sm90/gemm/epilogue_residual.cuh"
#include "pom/kernels/sm90/gemm/epilogue_store.cuh"
#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"
#include "pom/kernels/sm90/network/block_stack.h"

namespace pom::kernels {

constexpr int kBandRows = kAbove * kTileRows;
constexpr int kBlockStackColumns = 144;  // of a tile: the widest whose epilogues leave registers
constexpr int kBlockStackVectors = 9;    // of four values, of a row in a warp
constexpr int64_t kBlockStackWidest = 4 * 32 * kBlockStackVectors;  // width of a row
constexpr int kMeanColumns = 32;                                    // of a block in a unit of means

enum class BlockStackKind : int { sums, means, gate, gelu, store, norm };
constexpr int kBlockStackPhases = 8;  // of a block: sums, means, gate, store, norm, gelu, store, norm

// How a block stack's GELU takes its argument and what it leaves to the reader of its result. Sums and stored
// values have the same, since its code is there once.
template <class In>
struct BlockStackGelu {
  static constexpr float kFactor = 0.2f, kOwed = 2.5f;
  __device__ explicit BlockStackGelu(const float*) {}
  __device__ __forceinline__ float operator()(float y) const { return fifth_gelu(y); }
};
template <>
struct BlockStackGelu<__nv_fp8_e4m3> {
  static constexpr float kFactor = kFold<__nv_fp8_e4m3>, kOwed = 1;
  FoldedGelu folded;
  __device__ explicit BlockStackGelu(const float* out_scale)
      : folded((out_scale ? *out_scale : 1.0f) / kFactor) {}
  __device__ __forceinline__ float operator()(float y) const { return folded(y); }
};

struct BlockStackUnit {
  uint16_t phase;  // of the block
  uint16_t steps;  // along K; 0 of what is no product
  int index;       // within the phase
};

struct BlockStackPhase {
  CUtensorMap a, w;
  BlockStackKind kind;
  int columns, column_tiles, splits;
  const int* ready;  // counters by band of what is read: rows of a product, or of y
  int ready_count;
  int* done;  // by band; of means by sequence
  Affine affine;
  float factor, bias_factor;  // of what the product gives and of its bias, before the epilogue's activation
  void* out;                  // of a product; (splits, rows, columns) of store
  const float* out_scale;
  // sums, means, gate
  const int* sums_ready;  // of means by band; of a gate by band, or where there are means by sequence
  int sums_count;
  float *partial, *H, *largest;
  // norm
  const void* y;
  const float *gate, *scale, *shift;
  void* normal;  // null: only x is written
  float* row_scale;
};

struct BlockStackShape {
  int rows, tokens, batch, width;
  int norm_rows;  // of a block in a unit
  float eps;
  int64_t stride;
  float* x;
  int units, block_units;  // of all blocks, of one
  const BlockStackUnit* table;
  const BlockStackPhase* phases;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace stack {

__device__ __forceinline__ int counted(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}
__device__ __forceinline__ void await(const int* counter, int count) {
  while (counted(counter) < count) {
  }
}
// ---- named barriers between a computing warpgroup and its servant ----

constexpr int kBothThreads = kWarpgroup + 32, kPrepared = 5, kFinished = 7;  // and the group

// What a unit is, in shared memory.
struct Card {
  const BlockStackPhase* phase;
  int row, column, split;
};

// The units of a cluster, one after another; the next one's entry is read a unit ahead. Products go to the
// two groups in turn, and what comes between two of them too, beginning with the group of the next product,
// which reads the rows of the first: none of it waits for the product before.
struct Walk {
  const BlockStackShape& c;
  int unit, stride;
  int2 word, ahead;
  int gemms = 0, others = 0;  // before this one: all, and since the last product
  __device__ explicit Walk(const BlockStackShape& c)
      : c(c), unit(static_cast<int>(blockIdx.x) / kAbove), stride(static_cast<int>(gridDim.x) / kAbove) {
    word = at(unit), ahead = at(unit + stride);
  }
  __device__ int2 at(int i) const {
    return __ldg(reinterpret_cast<const int2*>(c.table) + i % c.block_units);
  }
  __device__ bool more() const { return unit < c.units; }
  __device__ void next() {
    if (steps() > 0)
      ++gemms, others = 0;
    else
      ++others;
    unit += stride;
    word = ahead, ahead = at(unit + stride);
  }
  __device__ int steps() const { return word.x >> 16; }
  __device__ int index() const { return word.y; }
  __device__ int group() const { return (steps() > 0 ? gemms : gemms + others) % 2; }
  __device__ const BlockStackPhase& phase() const {
    return c.phases[unit / c.block_units * kBlockStackPhases + (word.x & 0xffff)];
  }
};

// Where a unit of a product lies.
struct Part {
  int band, column, split;
  template <int TN>
  __device__ static Part of(const BlockStackPhase& p, int index) {
    const int each = p.column_tiles * p.splits, rest = index % each;
    return {index / each, rest / p.splits * TN, rest % p.splits};
  }
};

template <class In, int TN>
struct Copier {
  using Traits = GemmTraits<In, kTileRows, TN, 1, false>;
  const BlockStackShape& c;
  const SharedPlan<Traits>& plan;
  int rank;

  __device__ __forceinline__ void weights(const BlockStackPhase& p, int stage, int column, int step) const {
    const int part = Traits::kHalves ? rank * Traits::kBoxW : 0;
    if (!Traits::kHalves && step % kAbove != rank) return;
    uint8_t* const to = plan.w(stage) + part * 128;
    constexpr uint16_t kBoth = 3;
    hopper::load_box_everywhere(&p.w, plan.full(stage), to, step * Traits::kStep, column + part, kBoth);
  }
  __device__ __forceinline__ void run() const {
    int stage = 0;
    uint32_t parity = 1;  // a fresh barrier counts as passed
    const BlockStackPhase* last = nullptr;
    for (Walk walk(c); walk.more(); walk.next()) {
      const int steps = walk.steps();
      if (steps == 0) continue;
      const BlockStackPhase& p = walk.phase();
      if (&p != last) hopper::map_changed(&p.a), hopper::map_changed(&p.w);
      last = &p;
      const Part part = Part::of<TN>(p, walk.index());
      const int row = part.band * kBandRows + rank * kTileRows, from = part.split * steps;
      const int* const ready = p.ready_count > 0 ? p.ready + part.band : nullptr;
      // While the rows are not there, weights come ahead of them.
      int ahead = 0, ahead_stage = stage;
      uint32_t ahead_parity = parity;
      while (ready && ahead < min(Traits::kStages, steps) && counted(ready) < p.ready_count) {
        hopper::barrier_wait(plan.empty(ahead_stage), ahead_parity);
        hopper::barrier_expect(plan.full(ahead_stage), Traits::kStage);
        weights(p, ahead_stage, part.column, from + ahead);
        if (++ahead_stage == Traits::kStages) ahead_stage = 0, ahead_parity ^= 1;
        ++ahead;
      }
      if (ready) {
        await(ready, p.ready_count);
        asm volatile("fence.proxy.async.global;" ::: "memory");
      }
      for (int step = 0; step < steps; ++step) {
        if (step >= ahead) {
          hopper::barrier_wait(plan.empty(stage), parity);
          hopper::barrier_expect(plan.full(stage), Traits::kStage);
          weights(p, stage, part.column, from + step);
        }
        hopper::load_box(&p.a, plan.full(stage), plan.a(stage), (from + step) * Traits::kStep, row);
        if (++stage == Traits::kStages) stage = 0, parity ^= 1;
      }
    }
  }
};

// ---- the servants ----

template <class In, int TN>
struct Servant {
  const BlockStackShape& c;
  Card& card;
  float* shared;  // (4, TN) of the group: biases, scales of the weights, means
  int group, rank;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ __forceinline__ void await_all(const int* counters, int from, int to, int count) const {
    for (int i = from + lane(); i <= to; i += 32) await(counters + i, count);
    __syncwarp();
  }

  __device__ __forceinline__ void columns(const BlockStackPhase& p, int first, int split) const {
    const Affine f = p.affine;
    const float stored = kScaled<In> && p.kind == BlockStackKind::gelu ? 1.0f / *p.out_scale : 1.0f;
#pragma unroll 2
    for (int i = lane(); i < TN; i += 32) {
      const bool inside = first + i < p.columns;
      shared[i] = inside && f.bias && split == 0 ? stored * p.bias_factor * __ldg(f.bias + first + i) : 0;
      if constexpr (kScaled<In>)
        shared[TN + i] = inside ? stored * p.factor * __ldg(f.w_scale + first + i) : 1;
    }
  }

  // The means of the tile's sequence, as folded_gate() takes them.
  __device__ __forceinline__ void means(const BlockStackPhase& p, int row, int first) const {
    const int sequence = row / c.tokens, tiles = c.tokens / kTileRows, start = sequence * c.tokens;
    if (p.partial == nullptr) {
      await_all(p.sums_ready, sequence, sequence, p.sums_count);
      const float* const H = p.H + static_cast<int64_t>(sequence) * p.columns + first;
      const float factor = kScaled<In> ? kFold<In> / p.out_scale[sequence] : kFold<In>;
#pragma unroll 2
      for (int i = lane(); i < TN; i += 32) shared[2 * TN + i] = first + i < p.columns ? factor * H[i] : 0;
      return;
    }
    await_all(p.sums_ready, start / kBandRows, (start + c.tokens - 1) / kBandRows, p.sums_count);
    const float* const sums =
        p.partial + static_cast<int64_t>(sequence * tiles + sequence) * p.columns + first;
    constexpr int kEach = (TN + 31) / 32;  // columns of a lane, read together
    float totals[kEach] = {};
#pragma unroll 1
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (const int column = 32 * i + lane(); column < TN && first + column < p.columns)
          totals[i] += sums[static_cast<int64_t>(t) * p.columns + column];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const int column = 32 * i + lane(); column < TN)
        shared[2 * TN + column] = totals[i] * (kFold<In> / static_cast<float>(c.tokens));
  }

  // Where the unit's counter is.
  __device__ __forceinline__ int prepare(const BlockStackPhase& p, int index) const {
    Card now{&p, 0, 0, 0};
    int place = 0;
    if (p.column_tiles > 0) {
      const Part part = Part::of<TN>(p, index);
      place = part.band;
      now.row = part.band * kBandRows + rank * kTileRows, now.column = part.column, now.split = part.split;
      columns(p, now.column, now.split);
      if (kScaled<In> && p.ready_count > 0)  // the epilogue reads the rows' scales
        await_all(p.ready, part.band, part.band, p.ready_count);
      if (p.kind == BlockStackKind::gate && now.row < c.rows) means(p, now.row, now.column);
    } else if (p.kind == BlockStackKind::norm) {
      now.row = (index * kAbove + rank) * c.norm_rows, place = now.row / kBandRows;
      await_all(p.ready, place, place, p.ready_count);
    } else {
      const int each = (p.columns + kAbove * kMeanColumns - 1) / (kAbove * kMeanColumns);
      place = index / each;
      now.row = place * c.tokens, now.column = (index % each * kAbove + rank) * kMeanColumns;
      await_all(p.sums_ready, now.row / kBandRows, (now.row + c.tokens - 1) / kBandRows, p.sums_count);
    }
    if (lane() == 0) card = now;
    return place;
  }

  __device__ __forceinline__ void run() const {
    for (Walk walk(c); walk.more(); walk.next()) {
      if (walk.group() != group) continue;
      const BlockStackPhase& p = walk.phase();
      int* const done = p.done + prepare(p, walk.index());
      __syncwarp();
      hopper::named_arrive(kPrepared + group, kBothThreads);
      hopper::named_sync(kFinished + group, kBothThreads);
      if (lane() == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(done) : "memory");
    }
  }
};

// ---- what the warpgroups do beside products ----

// A warp takes a stretch of the tiles for some columns.
__device__ __forceinline__ void take_means(const BlockStackShape& c, const BlockStackPhase& p,
                                           const TilePlace& at, const Card& card) {
  constexpr int kWarps = kWarpgroup / 32;
  const int sequence = card.row / c.tokens, lane = at.thread % 32, column = card.column + lane;
  const int tile = card.row / kTileRows, tiles = c.tokens / kTileRows;
  float sum = 0;
  if (column < p.columns) {
    const float* from = p.partial + static_cast<int64_t>(tile + sequence) * p.columns + column;
#pragma unroll 8
    for (int t = tiles * at.warp() / kWarps; t < tiles * (at.warp() + 1) / kWarps; ++t)
      sum += from[static_cast<int64_t>(t) * p.columns];
  }
  at.shared[at.thread] = sum;
  at.sync();
  if (at.warp() > 0 || column >= p.columns) return;
  const float* s = at.shared + lane;
  const float mean = ((s[0] + s[32]) + (s[64] + s[96])) / static_cast<float>(c.tokens);
  p.H[static_cast<int64_t>(sequence) * p.columns + column] = mean;
  if (p.largest)  // non-negative floats have the order of their bits; a scale is never zero
    atomicMax(reinterpret_cast<int*>(p.largest + sequence),
              __float_as_int(fmaxf(fabsf(mean) * (1.0f / 448.0f), 6e-13f)));
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// Four values of each vector lane, lane + 32, … of a row; zeros beyond the width.
struct Fours {
  float v[kBlockStackVectors][4];
  __device__ __forceinline__ void read(const float* row, int width, int lane) {
#pragma unroll
    for (int i = 0; i < kBlockStackVectors; ++i) {
      const int column = 4 * (32 * i + lane);
      const float4 four =
          column < width ? *reinterpret_cast<const float4*>(row + column) : make_float4(0, 0, 0, 0);
      v[i][0] = four.x, v[i][1] = four.y, v[i][2] = four.z, v[i][3] = four.w;
    }
  }
};

// x += gate * the parts of y, and its modulated norm: a warp takes a row.
template <class In>
__device__ __forceinline__ void take_norm(const BlockStackShape& c, const BlockStackPhase& p,
                                          const TilePlace& at, const Card& card) {
  using Y = Wide<In>;
  const int first = card.row, end = min(first + c.norm_rows, c.rows), lane = at.thread % 32, width = c.width;
  for (int row = first + at.warp(); row < end; row += kWarpgroup / 32) {
    const int64_t modulation = row / c.tokens * c.stride;
    float* const to = c.x + static_cast<int64_t>(row) * width;
    Fours x, gate;
    x.read(to, width, lane);
    gate.read(p.gate + modulation, width, lane);
    for (int part = 0; part < p.splits; ++part) {
      const Y* const y = static_cast<const Y*>(p.y) + (static_cast<int64_t>(part) * c.rows + row) * width;
      Word<Y, 4> words[kBlockStackVectors];
#pragma unroll
      for (int i = 0; i < kBlockStackVectors; ++i)
        if (4 * (32 * i + lane) < width) words[i] = load<4>(y + 4 * (32 * i + lane));
#pragma unroll
      for (int i = 0; i < kBlockStackVectors; ++i) {
        if (4 * (32 * i + lane) >= width) continue;
        float values[4];
        unpack<Y, 4>(words[i], values);
#pragma unroll
        for (int v = 0; v < 4; ++v) x.v[i][v] = fmaf(values[v], gate.v[i][v], x.v[i][v]);
      }
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kBlockStackVectors; ++i) {
      const int column = 4 * (32 * i + lane);
      if (column < width)
        *reinterpret_cast<float4*>(to + column) = make_float4(x.v[i][0], x.v[i][1], x.v[i][2], x.v[i][3]);
      sum += (x.v[i][0] + x.v[i][1]) + (x.v[i][2] + x.v[i][3]);
    }
    if (!p.normal) continue;
    Fours scale, shift;
    scale.read(p.scale + modulation, width, lane), shift.read(p.shift + modulation, width, lane);
    const float mean = warp_sum(sum) / static_cast<float>(width);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kBlockStackVectors; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        x.v[i][v] = 4 * (32 * i + lane) < width ? x.v[i][v] - mean : 0;
        squares = fmaf(x.v[i][v], x.v[i][v], squares);
      }
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + c.eps);
    float greatest = 0;
#pragma unroll
    for (int i = 0; i < kBlockStackVectors; ++i)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        x.v[i][v] = fmaf(x.v[i][v] * rstd, 1.0f + scale.v[i][v], shift.v[i][v]);
        if constexpr (kScaled<In>) greatest = fmaxf(greatest, fabsf(x.v[i][v]));
      }
    if constexpr (kScaled<In>) {
      constexpr float kGreatest = 448.0f;
      greatest = warp_max(greatest);
      const float factor = greatest == 0 ? 1.0f : fminf(kGreatest / greatest, FLT_MAX);
      if (lane == 0) p.row_scale[row] = greatest == 0 ? 1.0f : greatest / kGreatest;
      uint8_t* const out = static_cast<uint8_t*>(p.normal) + static_cast<int64_t>(row) * width;
#pragma unroll
      for (int i = 0; i < kBlockStackVectors; ++i) {
        if (4 * (32 * i + lane) >= width) continue;
        const float2 low = {x.v[i][0] * factor, x.v[i][1] * factor};
        const float2 high = {x.v[i][2] * factor, x.v[i][3] * factor};
        *reinterpret_cast<uint32_t*>(out + 4 * (32 * i + lane)) =
            pack_pair<__nv_fp8_e4m3>(low) | pack_pair<__nv_fp8_e4m3>(high) << 16;
      }
    } else {
      In* const out = static_cast<In*>(p.normal) + static_cast<int64_t>(row) * width;
#pragma unroll
      for (int i = 0; i < kBlockStackVectors; ++i)
        if (4 * (32 * i + lane) < width) store_values<4>(out + 4 * (32 * i + lane), x.v[i]);
    }
  }
}

// ---- the warpgroups ----

template <class In, int TN, int Order>
struct Worker {
  using Traits = GemmTraits<In, kTileRows, TN, 1, false>;
  const BlockStackShape& c;
  const SharedPlan<Traits>& plan;
  const Card& card;
  int group;

  // ---- epilogues as passes over the accumulators, in place: what several have in common is there once,
  // since all phases' code must stay in the processors' instruction cache ----

  using Acc = float[Traits::MM][TN / 2];
  static constexpr int kGroups = TN / 8;
  static constexpr float kOwed = BlockStackGelu<In>::kOwed;

  // f(pair of values, group, mm, half)
  template <class F>
  __device__ __forceinline__ static void each_pair(Acc& acc, const F& f) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const v = &acc[mm][4 * j + 2 * half];
          const float2 now = f(make_float2(v[0], v[1]), j, mm, half);
          v[0] = now.x, v[1] = now.y;
        }
  }
  __device__ __forceinline__ static void pass_ends(Acc& acc) {  // the next one is code of its own
#pragma unroll
    for (int mm = 0; mm < Traits::MM; ++mm) hopper::wgmma_fence(acc[mm]);
  }

  __device__ __forceinline__ void affine(Acc& acc, const BlockStackPhase& p, const TilePlace& at) const {
    float scales[Traits::MM][2] = {};
    if constexpr (kScaled<In>)
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          scales[mm][half] = row_scale_of<In>(p.affine, at.row_of(mm, half), true);
    const float factor = p.factor;  // where there are scales, it is in them
    each_pair(acc, [&](float2 v, int j, int mm, int half) {
      return ColumnPair<Traits>(at, j).of(v.x, v.y, scales[mm][half], factor);
    });
  }
  template <class Out>
  __device__ __forceinline__ static void store(Acc& acc, const GemmShape& s, const TilePlace& at, Out* out) {
    constexpr int kWhole = kGroups / 4 * 4;  // groups that are stored by four
#pragma unroll
    for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = at.row_of(mm, half);
        const auto word = [&](int j) {
          const float* v = &acc[mm][4 * j + 2 * half];
          return pack_pair<Out>(make_float2(v[0], v[1]));
        };
#pragma unroll
        for (int first = 0; first < kWhole; first += 4) {
          uint32_t words[4] = {word(first), word(first + 1), word(first + 2), word(first + 3)};
          store_groups<false>(out, row, true, at.column + 8 * first, s.columns, words, at.quad());
        }
#pragma unroll
        for (int j = kWhole; j < kGroups; ++j)
          store_pair(out, row, true, at.column + at.template offset_of<false>(j), s.columns, word(j));
      }
  }
  __device__ __forceinline__ void sums(Acc& acc, const GemmShape& s, const BlockStackPhase& p,
                                       const TilePlace& at) const {
    using Sums = SumsEpilogueOf<In, Order>;
    const typename Sums::Params params{p.affine, {c.tokens, c.tokens, 1}, nullptr, p.partial};
    const int slot = at.row / kTileRows + at.row / c.tokens;
    if constexpr (Order == 2) {
      static_assert(Sums::kOwed == kOwed);
      Sums::template add_rows<Traits>(acc);
      at.sync();  // the biases have been read
      Sums::template sum<true, Traits, true>(acc, s, at, params, 0, 0, slot);
    } else {
      each_pair(acc, [&](float2 v, int, int, int) { return make_float2(kOwed * v.x, kOwed * v.y); });
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int mm = 0; mm < Traits::MM; ++mm)
#pragma unroll
          for (int half = 0; half < 2; ++half) Sums::template running_products<Traits>(acc, j, mm, half);
      at.sync();
      Sums::template sum<true, Traits>(acc, s, at, params, 0, 0, slot);
    }
  }

  __device__ __forceinline__ void epilogue(Acc& acc, const GemmShape& s, const BlockStackPhase& p,
                                           const TilePlace& at, int split) const {
    const BlockStackKind kind = p.kind;
    affine(acc, p, at);
    pass_ends(acc);
    if (kind == BlockStackKind::sums || kind == BlockStackKind::gelu) {
      const BlockStackGelu<In> gelu(kind == BlockStackKind::gelu ? p.out_scale : nullptr);
      each_pair(acc, [&](float2 v, int, int, int) { return make_float2(gelu(v.x), gelu(v.y)); });
    }
    pass_ends(acc);
    if (kind == BlockStackKind::gate)
      each_pair(acc, [&](float2 v, int j, int, int) {
        const float2 h = prepared<Traits>(at, 2, j);
        return make_float2(folded_gate<In>(v.x, h.x), folded_gate<In>(v.y, h.y));
      });
    pass_ends(acc);
    if (kind == BlockStackKind::sums) return sums(acc, s, p, at);
    if constexpr (kScaled<In>)
      if (kind == BlockStackKind::gate || kind == BlockStackKind::gelu)
        return store(acc, s, at, static_cast<In*>(p.out));
    store(acc, s, at, static_cast<Wide<In>*>(p.out) + static_cast<int64_t>(split) * s.rows * s.columns);
  }

  __device__ __forceinline__ void gemm(int steps, TilePlace& at, int first) const {
    float acc[Traits::MM][TN / 2] = {};  // else the compiler takes them for alive in every other unit
    GemmShape s;
    s.rows = c.rows, s.steps = steps;
    hopper::named_sync(1 + group, 2 * kWarpgroup);
    multiply<Traits>(acc, s, plan, first, group);
    hopper::named_sync(kPrepared + group, kBothThreads);
    const BlockStackPhase& p = *card.phase;
    at.row = card.row, at.column = card.column, s.columns = p.columns;
    if (at.row < s.rows) epilogue(acc, s, p, at, card.split);
  }

  __device__ __forceinline__ void run() const {
    if (group == 1) hopper::named_arrive(1, 2 * kWarpgroup);
    TilePlace at;
    at.thread = threadIdx.x % kWarpgroup, at.group = group, at.shared = plan.epilogue(group);
    int first = 0;  // steps of all units before
    for (Walk walk(c); walk.more(); first += walk.steps(), walk.next()) {
      if (walk.group() != group) continue;
      if (walk.steps() > 0) {
        gemm(walk.steps(), at, first);
      } else {
        hopper::named_sync(kPrepared + group, kBothThreads);
        const BlockStackPhase& p = *card.phase;
        if (p.kind == BlockStackKind::means)
          take_means(c, p, at, card);
        else
          take_norm<In>(c, p, at, card);
      }
      asm volatile("fence.proxy.async.global;" ::: "memory");  // the copy engine may read it next
      hopper::named_arrive(kFinished + group, kBothThreads);
    }
  }
};

}  // namespace stack

#endif

template <class In, int TN>
constexpr int kBlockStackShared = GemmTraits<In, kTileRows, TN, 1, false>::kShared + 128;  // and two cards

template <class In, int TN, int Order>
__global__ void __launch_bounds__(kGemmThreads, 1) block_stack_kernel(const BlockStackShape c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Traits = GemmTraits<In, kTileRows, TN, 1, false>;
  extern __shared__ uint8_t raw[];
  const SharedPlan<Traits> plan(raw);
  stack::Card* const cards = reinterpret_cast<stack::Card*>(plan.empty(Traits::kStages));
  const int rank = static_cast<int>(hopper::cluster_rank()), warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      hopper::barrier_init(plan.full(stage), 1);
      hopper::barrier_init(plan.empty(stage), Traits::kSharers);
    }
    hopper::barriers_ready();
  }
  hopper::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    hopper::give_registers<40>();
    if (threadIdx.x == 0) stack::Copier<In, TN>{c, plan, rank}.run();
    if (warp == 1 || warp == 2)
      stack::Servant<In, TN>{c, cards[warp - 1], plan.epilogue(warp - 1), warp - 1, rank}.run();
  } else {
    hopper::take_registers<232>();
    const int group = warp / 4 - 1;
    stack::Worker<In, TN, Order>{c, plan, cards[group], group}.run();
  }
  __syncwarp();
  hopper::cluster_sync();  // the other may still write here
#else
  __trap();  // built for another GPU than gemm_device() lets through
#endif
}

}  // namespace pom::kernels
