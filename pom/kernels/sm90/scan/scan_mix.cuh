// The causal mixer between its products in one kernel (sm_90a): see ScanMix in scan.h. A tile is 128
// rows by 96 columns of the context's weights beside the same 96 of the gate's, so that a thread has both
// factors and gates of its columns; each block of a cluster loads one of the two for both.
//
// Rows are dealt out by the copy engine: accumulator row 64 m + 16 w + 8 h + o is row 32 w + 4 o + 2 m + h of
// the tile, and a thread has four rows in a row. Sums run over them, over the eight threads of a warp by
// shuffles, and over the warps through shared memory.
//
// Tiles of rows hand their sums on through global memory: a word of a column is the value beside what it is,
// the tile's own sum (written at once) or all up to its end (once those before are known). Whoever needs them
// adds up in the order of rows, from the nearest that is complete: the same bits, however many there were.
// Clusters take their tiles from a counter, in the order of rows: a tile waits only for tiles that some
// cluster has already, so that there is no need for all clusters to be on the GPU at once.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_gate.cuh"
#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"
#include "pom/kernels/sm90/scan/scan.h"

namespace pom::kernels {

namespace hopper {

// A box of five axes, from `column` of the first and `group` of the fourth; 0 of the others.
__device__ __forceinline__ void load_dealt_rows(const CUtensorMap* map, uint64_t* barrier, void* to,
                                                int column, int group) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %4, %5, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(0), "r"(group)
      : "memory");
}
// A word to the same place in another block of the cluster, whose barrier of that name counts its bytes.
__device__ __forceinline__ void send_word(uint32_t* to, uint32_t word, uint64_t* barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there, counts;\n"
      "mapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 counts, %2, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %1, [counts];\n"
      "}\n" ::"r"(shared_address(to)),
      "r"(word), "r"(shared_address(barrier)), "r"(block)
      : "memory");
}

}  // namespace hopper

constexpr int kMixColumns = 96;  // of each weight in a tile
constexpr int kMixPairs = 2;     // pairs of row tiles that go through the columns together
constexpr int kMixWindow = 4;    // tiles of rows before that are looked at together
constexpr int kMixHead = 64;     // bytes before the words: the counter of tiles

struct MixShape {
  int rows, columns;  // of the layer: N
  int column_tiles, pairs, tiles;
};

template <class In>
struct MixParams {
  MixShape shape;
  const float *ho_bias, *se_bias;
  int tokens, block;
  int* next;        // the counter of tiles
  uint64_t* words;  // (row tiles, column_tiles * kMixColumns)
  const float* sum;
  const int64_t* count;
  float* total;
  In* out;
};

template <class In>
struct MixTraits : GemmTraits<In, kTileRows, 2 * kMixColumns, 1, true> {
  using Base = GemmTraits<In, kTileRows, 2 * kMixColumns, 1, true>;
  static constexpr int kShared = Base::kShared + 4 * 8 + 2 * 4;  // and the queue
  static_assert(Base::kHalves && Base::kBoxW == kMixColumns);
};

// What a sum in a word is.
constexpr uint32_t kMixOwn = 1, kMixAll = 2;

__device__ __forceinline__ uint64_t mix_word(float value, uint32_t kind) {
  return static_cast<uint64_t>(kind) << 32 | __float_as_uint(value);
}
__device__ __forceinline__ void write_word(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t read_word(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
// The sum up to this tile of rows, of which there are `before` in front; words of a column lie `apart`.
__device__ __forceinline__ float sum_before(const uint64_t* words, int before, int apart) {
  for (;;) {
    uint64_t seen[kMixWindow];
#pragma unroll
    for (int i = 0; i < kMixWindow; ++i)
      seen[i] = i < before ? read_word(words - static_cast<int64_t>(i + 1) * apart) : 0;
    float sum = 0;
    bool known = false;
#pragma unroll
    for (int i = kMixWindow - 1; i >= 0; --i) {
      const uint32_t kind = static_cast<uint32_t>(seen[i] >> 32);
      const float value = __uint_as_float(static_cast<uint32_t>(seen[i]));
      known = kind == kMixAll || (known && kind == kMixOwn);
      sum = kind == kMixAll ? value : sum + value;
    }
    if (known) return sum;
  }
}

// The order of a layer's columns in a tile and in memory. The features of order 2 are dealt out from the
// paper's order, four in a row to a thread; of other orders both weights are in that of gemm_sums.
template <int Order>
struct MixColumns {
  int first, features;  // of the tile, of the layer

  __device__ MixColumns(const MixShape& s, int tile)
      : first(tile * (Order == 2 ? kMixColumns / 2 : kMixColumns)), features(s.columns / Order) {}
  // Accumulator column c: among the weights' rows, and of the results.
  __device__ int row(int c) const { return Order == 2 ? result(c) : first + c; }
  __device__ int result(int c) const {
    if constexpr (Order == 2) return c % 2 * features + first + c / 32 * 16 + c % 8 / 2 * 4 + c / 8 % 4;
    return static_cast<int>(sums_row_of(first + c, Order, features));
  }
  __device__ bool inside(int c) const {
    return Order == 2 ? first + c / 32 * 16 < features : first + c < Order * features;
  }
};

// ---- the epilogue ----

// Seen: 1, each row sees those up to itself; 2 and 4, up to the end of so many or of a multiple.
template <class In, int Order, int Seen>
struct MixEpilogue {
  using Params = MixParams<In>;
  using Acc = float[2][kMixColumns];
  static constexpr int kGroups = kMixColumns / 8;
  // In shared memory: the biases, the sums up to the beginning of each warp and to the end of the last, and
  // the number of rows before the tile's sequence.
  static constexpr int kBases = 2 * kMixColumns, kCount = kBases + 5 * kMixColumns;
  static constexpr bool kTanh = !std::is_same_v<In, __half>;
  static constexpr float kGateScale = kTanh ? 0.5f : -1.44269504f;

  // Of row i of a thread's four, column e of group j: the sum, and the gate.
  static __device__ float& sum(Acc& acc, int i, int j, int e) { return acc[i / 2][4 * j + 2 * (i % 2) + e]; }
  static __device__ float& gate(Acc& acc, int i, int j, int e) { return sum(acc, i, kGroups + j, e); }
  static __device__ constexpr int seen_row(int i) { return i / Seen * Seen + Seen - 1; }

  struct Place : TilePlace {
    MixColumns<Order> columns;
    int rows, tokens, tile;  // tile: of columns
    bool one;                // all of its rows are there and of one sequence

    __device__ Place(const TilePlace& at, const Params& p, int column_tile)
        : TilePlace(at),
          columns(p.shape, column_tile),
          rows(p.shape.rows),
          tokens(p.tokens),
          tile(column_tile) {
      const int last = at.row + kTileRows - 1;
      one = last < rows && at.row / tokens == last / tokens;
    }
    __device__ int first() const { return row + 32 * warp() + 4 * octet(); }  // of the thread's rows
    __device__ int start(int r) const { return r / tokens * tokens; }         // of its sequence
    __device__ int column(int j) const { return 8 * j + 2 * quad(); }
    __device__ float* base(int warp) const { return shared + kBases + warp * kMixColumns; }
  };

  // Where the sequences of a thread's rows start. With One that is no later than the tile.
  template <bool One>
  struct Starts {
    int of[4];
    __device__ explicit Starts(const Place& at) {
      const int first = at.first();
      of[0] = at.start(One ? at.row : first);
#pragma unroll
      for (int i = 1; i < 4; ++i)
        of[i] = !One && first + i - of[i - 1] >= at.tokens ? of[i - 1] + at.tokens : of[i - 1];
    }
  };

  __device__ static void prepare(const Place& at, const Params& p) {
    if (const int c = at.thread; c < kMixColumns) {
      const bool inside = at.columns.inside(c);
      const int row = inside ? at.columns.row(c) : 0;
      at.shared[c] = inside && p.ho_bias ? __ldg(p.ho_bias + row) : 0;
      at.shared[kMixColumns + c] = inside && p.se_bias ? kGateScale * __ldg(p.se_bias + row) : 0;
    } else if (c == kMixColumns) {
      at.shared[kCount] = p.count ? static_cast<float>(p.count[at.row / p.tokens]) : 0.0f;
    }
  }

  // The factors of each feature become their running products, in place.
  __device__ static void powers(Acc& acc, const Place& at) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 bias = *reinterpret_cast<const float2*>(at.shared + at.column(j));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float &x = sum(acc, i, j, 0), &y = sum(acc, i, j, 1);
        x = epilogue_gelu<In>(x + bias.x), y = epilogue_gelu<In>(y + bias.y);
        if ((2 * j) % Order != 0) x *= sum(acc, i, j > 0 ? j - 1 : 0, 1);
        if ((2 * j + 1) % Order != 0) y *= x;
      }
    }
  }
  __device__ static void gates(Acc& acc, const Place& at) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const float2 bias = *reinterpret_cast<const float2*>(at.shared + kMixColumns + at.column(j));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = gate(acc, i, j, e);
          x = fmaf(kGateScale, x, e == 0 ? bias.x : bias.y);
          x = kTanh ? fast_tanh(x) : fast_reciprocal(1.0f + fast_exp2(x));
        }
    }
  }

  // Sums within a warp: of each row up to it, or of the last row of its block where Seen is 4. The last
  // thread leaves the warp's own in shared memory.
  template <bool One>
  __device__ static void scan(Acc& acc, const Place& at, const Params& p) {
    const Starts<One> starts(at);
    const int first = at.first();
    bool adds[3], anew[4];
#pragma unroll
    for (int k = 0; k < 3; ++k)
      adds[k] = at.octet() >= 1 << k && (One || starts.of[3] <= first + 3 - (4 << k));
#pragma unroll
    for (int i = 0; i < 4; ++i) anew[i] = !One && starts.of[i] == first + i;
    const int octets = p.block / 4 - 1;  // of a block, less one, where Seen is 4
    const int end_lane = 4 * (at.octet() | octets) % 32 + at.quad();
    const bool within = p.block <= 32;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      float totals[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float own = sum(acc, 0, j, e);
        if constexpr (One) {
          own = (own + sum(acc, 1, j, e)) + (sum(acc, 2, j, e) + sum(acc, 3, j, e));
        } else {
#pragma unroll
          for (int i = 1; i < 4; ++i) own = (anew[i] ? 0.0f : own) + sum(acc, i, j, e);
        }
        float all = own;
#pragma unroll
        for (int k = 0; k < 3; ++k) {
          const float other = __shfl_up_sync(0xffffffffu, all, 4 << k);
          if (adds[k]) all += other;
        }
        totals[e] = all;
        if constexpr (Seen == 4) {
          const float end = __shfl_sync(0xffffffffu, all, end_lane);
          sum(acc, 3, j, e) = within ? end : 0.0f;
        } else {
          // Not all - own: what comes later must not touch a row, not even by rounding.
          float running = __shfl_up_sync(0xffffffffu, all, 4);
          if (at.octet() == 0) running = 0;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            running = (anew[i] ? 0.0f : running) + sum(acc, i, j, e);
            sum(acc, i, j, e) = running;
          }
        }
      }
      if (at.octet() == 7)
        *reinterpret_cast<float2*>(at.base(at.warp()) + at.column(j)) = make_float2(totals[0], totals[1]);
    }
  }

  // ---- what a thread does for one column of the tile ----

  struct Column {
    int c;
    uint64_t* word;
    bool open;      // the last row's sequence started before the tile
    bool anew[4];   // the last row's of a warp started in it, and not with the tile
    float sums[4];  // of the warps
    float own;      // of the last row's sequence in the tile

    __device__ Column(const Place& at, const Params& p) : c(at.thread) {
      const int last = min(at.row + kTileRows, at.rows) - 1;
      word = p.words + static_cast<int64_t>(at.row / kTileRows) * apart(p) + at.tile * kMixColumns + c;
      open = at.start(last) < at.row;
      own = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int from = at.row + 32 * w;
        anew[w] = !at.one && at.start(from + 31) >= max(from, at.row + 1);
        sums[w] = at.base(w)[c];
        own = w == 0 || anew[w] ? sums[w] : own + sums[w];
      }
    }
    static __device__ int apart(const Params& p) {
      return p.shape.column_tiles * kMixColumns;
    }
    // What the sequence of this row goes on from.
    __device__ float state(const Place& at, const Params& p, int row) const {
      if (!p.sum || !at.columns.inside(c)) return 0;
      return p.sum[static_cast<int64_t>(row / p.tokens) * p.shape.columns + at.columns.result(c)];
    }
  };

  // The tiles of rows after this one need not wait for those before it.
  __device__ static void publish(const Place& at, const Params& p) {
    const Column column(at, p);
    const int last = min(at.row + kTileRows, at.rows) - 1;
    if (column.open)
      write_word(column.word, mix_word(column.own, kMixOwn));
    else
      write_word(column.word, mix_word(column.state(at, p, last) + column.own, kMixAll));
  }
  __device__ static void take_over(const Place& at, const Params& p) {
    const Column column(at, p);
    float sum = at.start(at.row) == at.row ? column.state(at, p, at.row)
                                           : sum_before(column.word, at.row / kTileRows, Column::apart(p));
    if (column.open) write_word(column.word, mix_word(sum + column.own, kMixAll));
    at.base(0)[column.c] = sum;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sum = (column.anew[w] ? 0.0f : sum) + column.sums[w];
      at.base(w + 1)[column.c] = sum;
    }
  }

  // ---- the results ----

  template <bool One>
  struct Finish {
    const Place& at;
    const Params& p;
    Starts<One> starts;
    const float* base;
    float inverse[4];  // one over the number that a mean is of, where kTanh half of that
    bool joined[4];    // its sequence goes on from the base

    __device__ Finish(const Place& place, const Params& params) : at(place), p(params), starts(place) {
      const bool beyond = Seen == 4 && p.block > 32;  // a block is several warps
      base = at.base(beyond ? (at.warp() | (p.block / 32 - 1)) + 1 : at.warp());
      const int warp_row = at.row + 32 * at.warp();
#pragma unroll
      for (int i = Seen - 1; i < 4; i += Seen) {
        const int token = at.first() + i - starts.of[i];
        float before = One ? at.shared[kCount] : 0.0f;
        if (!One && p.count && at.first() + i < at.rows)
          before = static_cast<float>(p.count[starts.of[i] / at.tokens]);
        const float number = 1e-7f + before + static_cast<float>((token | (p.block - 1)) + 1);
        inverse[i] = (kTanh ? 0.5f : 1.0f) * fast_reciprocal(number);
        joined[i] = One || beyond || starts.of[i] <= at.row || starts.of[i] < warp_row;
      }
    }
    __device__ float2 base_of(int j) const {
      return *reinterpret_cast<const float2*>(base + at.column(j));
    }
    // The sum that row i sees.
    __device__ float all(Acc& acc, int i, int j, int e, float before) const {
      const int last = seen_row(i);
      float value = sum(acc, last, j, e);
      if (joined[last]) value += before;
      if constexpr (!One) {
        const int c = at.column(j) + e;
        if (p.sum && starts.of[last] > at.row && at.first() + i < at.rows && at.columns.inside(c))
          value += p.sum[static_cast<int64_t>(starts.of[last] / at.tokens) * p.shape.columns +
                         at.columns.result(c)];
      }
      return value;
    }
    __device__ float result(Acc& acc, int i, int j, int e, float before) const {
      const float h = all(acc, i, j, e, before) * inverse[seen_row(i)], g = gate(acc, i, j, e);
      return kTanh ? fmaf(h, g, h) : h * g;
    }
    __device__ bool row_inside(int i) const {
      return One || at.first() + i < at.rows;
    }
    __device__ In* out(int i) const {
      return p.out + static_cast<int64_t>(at.first() + i) * p.shape.columns;
    }

    // Of a sequence that ends here.
    __device__ void totals(Acc& acc) const {
#pragma unroll
      for (int i = One ? 3 : 0; i < 4; ++i) {
        if (!row_inside(i) || at.first() + i + 1 - starts.of[i] != at.tokens) continue;
        float* const to = p.total + static_cast<int64_t>(starts.of[i] / at.tokens) * p.shape.columns;
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          const float2 before = base_of(j);
          if (!at.columns.inside(at.column(j))) continue;
          to[at.columns.result(at.column(j))] = all(acc, i, j, 0, before.x);
          to[at.columns.result(at.column(j) + 1)] = all(acc, i, j, 1, before.y);
        }
      }
    }
    // Order 2: four features in a row of each factor.
    __device__ void store_fours(Acc& acc) const {
      const int features = at.columns.features, feature = at.columns.first + 4 * at.quad();
#pragma unroll
      for (int block = 0; block < kGroups / 4; ++block) {
        if (!at.columns.inside(32 * block)) continue;
        float2 before[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) before[g] = base_of(4 * block + g);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t words[2][2];
#pragma unroll
          for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int g = 0; g < 4; g += 2) {
              const float2 pair = {
                  result(acc, i, 4 * block + g, e, e == 0 ? before[g].x : before[g].y),
                  result(acc, i, 4 * block + g + 1, e, e == 0 ? before[g + 1].x : before[g + 1].y)};
              words[e][g / 2] = pack_pair<In>(pair);
            }
          if (!row_inside(i)) continue;
          In* const to = out(i) + feature + 16 * block;
          *reinterpret_cast<uint2*>(to) = make_uint2(words[0][0], words[0][1]);
          *reinterpret_cast<uint2*>(to + features) = make_uint2(words[1][0], words[1][1]);
        }
      }
    }
    // Other even orders: a quad has four features in a row of each factor. Of two groups, which are four
    // factors, each thread gets the four features of one.
    __device__ void store_even(Acc& acc) const {
      const bool odd = at.quad() & 1, upper = at.quad() & 2;
      const uint32_t halves = odd ? 0x3276 : 0x5410;  // the second of both, or the first
#pragma unroll
      for (int j = 0; j < kGroups; j += 2) {
        const int c = 8 * (j + (upper ? 1 : 0)) + (odd ? 1 : 0), column = at.columns.result(c);
        const float2 before[2] = {base_of(j), base_of(j + 1)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t w[2];
#pragma unroll
          for (int g = 0; g < 2; ++g) {
            w[g] = pack_pair<In>(
                make_float2(result(acc, i, j + g, 0, before[g].x), result(acc, i, j + g, 1, before[g].y)));
            w[g] = __byte_perm(w[g], __shfl_xor_sync(0xffffffffu, w[g], 1), halves);
          }
          const uint32_t kept = upper ? w[1] : w[0];
          const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[0] : w[1], 2);
          if (row_inside(i) && at.columns.inside(c))
            *reinterpret_cast<uint2*>(out(i) + column) =
                upper ? make_uint2(got, kept) : make_uint2(kept, got);
        }
      }
    }
    // Odd orders: a thread has two features in a row, a quad eight. Of four factors each gets one.
    __device__ void store_odd(Acc& acc) const {
#pragma unroll
      for (int first = 0; first < kGroups; first += 4) {
        // Word f of the tile: factor f % Order of two features, which begin at value 2 (f - f % Order).
        const auto value = [](int f, int feature) {
          return 2 * (f - f % Order) + f % Order + feature * Order;
        };
        const int mine = value(first + at.quad(), 0), c = 8 * (mine / 2) + mine % 2;
        const int column = at.columns.result(c);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t w[4];
#pragma unroll
          for (int g = 0; g < 4; ++g) {
            float pair[2];
#pragma unroll
            for (int feature = 0; feature < 2; ++feature) {
              const int v = value(first + g, feature);
              const float2 before = base_of(v / 2);
              pair[feature] = result(acc, i, v / 2, v % 2, v % 2 == 0 ? before.x : before.y);
            }
            w[g] = pack_pair<In>(make_float2(pair[0], pair[1]));
          }
          transpose_quad(w, at.quad());
          if (row_inside(i) && at.columns.inside(c))
            *reinterpret_cast<uint4*>(out(i) + column) = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
    __device__ void run(Acc& acc) const {
      if (p.total) totals(acc);
      if constexpr (Order == 2)
        store_fours(acc);
      else if constexpr (Order % 2 == 0)
        store_even(acc);
      else
        store_odd(acc);
    }
  };

  template <bool One>
  __device__ static void run(Acc& acc, const Place& at, const Params& p) {
    powers(acc, at);
    scan<One>(acc, at, p);
    at.sync();
    const bool has_column = at.thread < kMixColumns;
    if (has_column) publish(at, p);
    gates(acc, at);  // while the others' sums are on their way
    if (has_column) take_over(at, p);
    at.sync();
    Finish<One>(at, p).run(acc);
  }
  __device__ static void apply(Acc& acc, const Place& at, const Params& p) {
    if (at.one)
      run<true>(acc, at, p);
    else
      run<false>(acc, at, p);
  }
};

// ---- the kernel ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The tiles of a cluster, two at most ahead: n-th of them in place n % 2, the number of all tiles at the end.
template <class Traits>
struct TileQueue {
  uint64_t *full, *empty;  // empty: of the first block alone
  uint32_t* tiles;
  __device__ explicit TileQueue(const SharedPlan<Traits>& plan)
      : full(plan.empty(Traits::kStages)), empty(full + 2), tiles(reinterpret_cast<uint32_t*>(full + 4)) {}

  // By one thread of each block, before the cluster's first barrier.
  __device__ void init() const {
    for (int i = 0; i < 2; ++i) {
      hopper::barrier_init(full + i, 1);
      hopper::barrier_init(empty + i, 2 * kAbove);  // each block's copier and one of its warpgroups
    }
  }
  __device__ void expect(int n) const { hopper::barrier_expect(full + n % 2, 4); }
  __device__ int take(int n) const {
    hopper::barrier_wait(full + n % 2, n / 2 & 1);
    return static_cast<int>(*static_cast<volatile uint32_t*>(tiles + n % 2));
  }
  __device__ void taken(int n) const { hopper::barrier_arrive(empty + n % 2, 0); }

  // One thread of the first block: takes tiles for all.
  __device__ void run(int* next, int count) const {
    wait_for_before();
    int ends = 0;  // both warpgroups are told
    for (int n = 0; ends < 2; ++n) {
      if (n == 1) __nanosleep(1000);  // every cluster has its first before any has a second
      if (n >= 2) hopper::barrier_wait(empty + n % 2, (n / 2 & 1) ^ 1);
      const int tile = ends > 0 ? count : min(atomicAdd(next, 1), count);
      ends += tile == count;
      for (uint32_t block = 0; block < kAbove; ++block)
        hopper::send_word(tiles + n % 2, static_cast<uint32_t>(tile), full + n % 2, block);
    }
  }
};

struct MixTile {
  int row, column;  // the column tile
  __device__ MixTile(const MixShape& s, int tile) {
    const int whole = kMixPairs * s.column_tiles, group = tile / whole, within = tile % whole;
    const int pairs = min(kMixPairs, s.pairs - kMixPairs * group);
    row = (kMixPairs * group + within % pairs) * kAbove * kTileRows;
    row += static_cast<int>(hopper::cluster_rank()) * kTileRows;
    column = within / pairs;
  }
};

template <class Traits, int Order>
struct MixCopier {
  const CUtensorMap *a_map, *ho_map, *se_map;
  const MixShape& s;
  const GemmShape& gemm;
  const SharedPlan<Traits>& plan;
  const TileQueue<Traits>& queue;

  __device__ __forceinline__ void run() const {
    wait_for_before();
    let_next_start();
    const uint32_t rank = hopper::cluster_rank();
    const CUtensorMap* const w_map = rank == 0 ? ho_map : se_map;
    constexpr uint16_t kBoth = (1 << kAbove) - 1;
    int stage = 0;
    uint32_t parity = 1;  // a fresh barrier counts as passed
    queue.expect(0), queue.expect(1);
    for (int n = 0;; ++n) {
      const int tile = queue.take(n);
      if (tile >= s.tiles) break;
      queue.expect(n);
      queue.taken(n);
      const MixTile at(s, tile);
      for (int step = 0; step < gemm.steps; ++step) {
        hopper::barrier_wait(plan.empty(stage), parity);
        hopper::barrier_expect(plan.full(stage), Traits::kStage);
        uint8_t* const to = plan.w(stage) + rank * kMixColumns * 128;
        const int k = step * Traits::kStep;
        if constexpr (Order == 2)
          hopper::load_blocks_everywhere(w_map, plan.full(stage), to, k, at.column * (kMixColumns / 32),
                                         kBoth);
        else
          hopper::load_box_everywhere(w_map, plan.full(stage), to, k, at.column * kMixColumns, kBoth);
        hopper::load_dealt_rows(a_map, plan.full(stage), plan.a(stage), k, at.row / 32);
        if (++stage == Traits::kStages) stage = 0, parity ^= 1;
      }
    }
  }
};

template <class Traits, class Epilogue>
__device__ __forceinline__ void mix_tiles(const GemmShape& gemm, const SharedPlan<Traits>& plan,
                                          const TileQueue<Traits>& queue,
                                          const typename Epilogue::Params& params) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  if (group == 1) hopper::named_arrive(1, 2 * kWarpgroup);
  for (int n = group;; n += 2) {
    const int tile = queue.take(n);
    if (tile >= params.shape.tiles) break;
    const MixTile where(params.shape, tile);
    TilePlace at;
    at.row = where.row, at.column = 0, at.thread = threadIdx.x % kWarpgroup;
    at.group = group, at.shared = plan.epilogue(group);
    at.sync();  // the epilogue before has read its part of shared memory, and all have taken the tile
    if (at.thread == 0) queue.taken(n);
    const typename Epilogue::Place place(at, params, where.column);
    const bool inside = at.row < params.shape.rows;
    if (inside) Epilogue::prepare(place, params);
    float acc[Traits::MM][Traits::TN / 2];
    hopper::named_sync(1 + group, 2 * kWarpgroup);
    multiply<Traits>(acc, gemm, plan, n * gemm.steps, group);
    at.sync();
    if (inside) Epilogue::apply(acc, place, params);
  }
}

#endif

template <class In, int Order, int Seen>
__global__ void __launch_bounds__(kGemmThreads, 1)
    mix_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap ho_map,
               const __grid_constant__ CUtensorMap se_map, const GemmShape gemm, const MixParams<In> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Traits = MixTraits<In>;
  extern __shared__ uint8_t raw[];
  const SharedPlan<Traits> plan(raw);
  const TileQueue<Traits> queue(plan);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&a_map), hopper::prefetch_map(hopper::cluster_rank() == 0 ? &ho_map : &se_map);
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      hopper::barrier_init(plan.full(stage), 1);
      hopper::barrier_init(plan.empty(stage), Traits::kSharers);
    }
    queue.init();
    hopper::barriers_ready();
  }
  hopper::cluster_sync();
  if (threadIdx.x < kWarpgroup) {
    hopper::give_registers<40>();
    if (threadIdx.x == 0)
      MixCopier<Traits, Order>{&a_map, &ho_map, &se_map, params.shape, gemm, plan, queue}.run();
    if (threadIdx.x == 32 && hopper::cluster_rank() == 0) queue.run(params.next, params.shape.tiles);
  } else {
    hopper::take_registers<232>();
    wait_for_before();
    mix_tiles<Traits, MixEpilogue<In, Order, Seen>>(gemm, plan, queue, params);
  }
  __syncwarp();
  hopper::cluster_sync();  // the others may still write here
#else
  __trap();  // built for another GPU than gemm_device() lets through
#endif
}

// ---- the host's half ----

// For orders other than 2.
cudaError_t mix_of_order(const Gemm& gemm, const ScanMix& mix, cudaStream_t stream);

template <class In, int Order, int Seen>
cudaError_t launch_mix(const Gemm& p, const ScanMix& t, cudaStream_t stream) {
  using Traits = MixTraits<In>;
  const auto kernel = mix_kernel<In, Order, Seen>;
  static std::atomic<int> known[kMaxDevices];
  int clusters = 0;
  if (const cudaError_t e = clusters_at_once(reinterpret_cast<const void*>(kernel), Traits::kShared,
                                             Traits::kCluster, known, &clusters);
      e != cudaSuccess)
    return e;
  constexpr int kRows = kAbove * kTileRows;
  const int rows = static_cast<int>(p.sizes.rows()), columns = static_cast<int>(p.sizes.outputs);
  MixParams<In> params;
  MixShape& s = params.shape;
  s.rows = rows, s.columns = columns;
  s.column_tiles = (columns + kMixColumns - 1) / kMixColumns, s.pairs = (rows + kRows - 1) / kRows;
  s.tiles = s.pairs * s.column_tiles;
  GemmShape gemm;
  gemm.rows = rows, gemm.columns = columns, gemm.column_tiles = s.column_tiles;
  gemm.tiles = s.tiles;
  gemm.steps = static_cast<int>((p.sizes.inputs + Traits::kStep - 1) / Traits::kStep);
  params.ho_bias = p.bias, params.se_bias = t.se_bias, params.tokens = static_cast<int>(p.sizes.tokens);
  params.block = static_cast<int>(t.block), params.next = static_cast<int*>(t.work);
  params.words = reinterpret_cast<uint64_t*>(static_cast<uint8_t*>(t.work) + kMixHead);
  params.sum = t.sum, params.count = t.count, params.total = t.total, params.out = static_cast<In*>(t.out);

  const cuuint64_t K = static_cast<cuuint64_t>(p.sizes.inputs), N = static_cast<cuuint64_t>(columns);
  const cuuint64_t groups = (static_cast<cuuint64_t>(rows) + 31) / 32;
  const MapAxes row_axes{5, {K, 8, 2, groups, 2}, {4, 1, 32, 2}, {8, 2, kTileRows / 32, 2}};
  const MapAxes weight_axes =
      Order == 2 ? MapAxes{5, {K, 2, 4, 4, N / 32}, {N / 2, 4, 1, 16}, {2, 4, 4, kMixColumns / 32}}
                 : MapAxes{2, {K, N}, {1}, {kMixColumns}};
  CUtensorMap a, ho, se;
  const cudaError_t maps[] = {tensor_map_of(&a, p.a, p.dtype, row_axes),
                              tensor_map_of(&ho, p.w, p.dtype, weight_axes),
                              tensor_map_of(&se, t.se, p.dtype, weight_axes)};
  for (const cudaError_t e : maps)
    if (e != cudaSuccess) return e;
  if (const cudaError_t e = cudaMemsetAsync(t.work, 0, static_cast<size_t>(scan_mix_work(p.sizes)), stream);
      e != cudaSuccess)
    return e;
  const unsigned blocks = static_cast<unsigned>(Traits::kCluster * (s.tiles < clusters ? s.tiles : clusters));
  return launch(kernel, dim3(blocks), dim3(kGemmThreads), Traits::kShared, stream, Traits::kCluster, a, ho,
                se, gemm, params);
}

}  // namespace pom::kernels
