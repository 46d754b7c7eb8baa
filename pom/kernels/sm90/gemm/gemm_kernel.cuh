// The product kernel (sm_90a): one warpgroup copies, two compute. Blocks stay on their processor and take
// tile after tile; the two computing warpgroups take turns on the tensor cores, so that one finishes its tile
// (the epilogue: activation, gate, sums, stores) while the other multiplies. Two blocks form a cluster of two
// tiles of rows and share the tile of weights, each loading half of it for both. M rows, N columns (outputs),
// K inputs; a tile is TM x TN, a step along K 128 bytes of it.
//
// The accumulators of a tile wider than 192 columns fill the registers of both computing warpgroups: they
// work on the same tile, each on half of its rows, and what follows is hidden by nothing. It is for products
// of so few tiles that there is only one for each processor.
//
// Where there are fewer tiles than processors, K may be split: see GemmSplits in gemm.h and `Joins` below.
//
// A thread of a warpgroup holds pairs of neighbouring accumulator columns, 8 apart. So that they are
// neighbours in memory too, the rows of the weights come in another order (`dealt`): of every 32 columns,
// accumulator column 8 g + 2 q + e is column 8 q + 2 g + e of the product, and thread q of four has eight
// columns in a row. The copy engine does it on the way, as a matter of strides.
#pragma once

#include <algorithm>

#include "pom/kernels/common/launch.cuh"
#include "pom/kernels/sm90/gemm/gemm.h"
#include "pom/kernels/sm90/wgmma.cuh"

namespace pom::kernels {

constexpr int kWarpgroup = 128, kGemmThreads = 3 * kWarpgroup;
constexpr int kAbove = 2;             // tiles of rows in a cluster
constexpr int kSharedLimit = 232448;  // bytes a block may have
constexpr int kMaxDevices = 64;
constexpr int kEpilogueRows = 5;  // of TN floats, for the epilogue of each computing warpgroup

// Which Gemm::factors an epilogue takes beside 0; 0: none.
template <class Epilogue>
__host__ __device__ constexpr int factors_of() {
  if constexpr (requires { Epilogue::kFactors; })
    return Epilogue::kFactors;
  else
    return 0;
}

struct GemmShape {
  int factors = 0;  // of a feature, where the weights stand in the paper's layout: see Gemm::factors
  int rows = 0, columns = 0, steps = 0;  // steps along K
  int column_tiles = 0, tiles = 0;       // tiles of a cluster
  int splits = 1;                        // of the steps
  uint32_t* counters = nullptr;          // (tiles, blocks of a cluster, warpgroups on a tile)
  float* sums = nullptr;                 // likewise, the accumulators of a warpgroup each
};

// How the splits of a tile become one result. In every case each waits for the one before it, so that the
// order of the additions is that of K.
enum class Joins {
  none,     // K is not split
  sums,     // what the splits before have added up is read, and left for the next; the last has the epilogue
  results,  // each has the epilogue, which adds to the result; the bias comes with the first
};

template <class In_, int TM_, int TN_, int Beside_, bool Dealt_>
struct GemmTraits {
  using In = In_;
  static constexpr bool kDealt = Dealt_;
  static constexpr int kBeside = Beside_;  // tiles of columns in a cluster: 1 or 2
  static constexpr int kCluster = kAbove * kBeside;
  static constexpr int kSharers =
      kAbove + kBeside - 1;  // blocks that a block's copies go to, itself included
  static constexpr int TM = TM_, TN = TN_;
  static constexpr bool kTogether = TN > 192;  // both warpgroups on a tile: registers hold no more columns
  static constexpr int kOnTile = kTogether ? 2 : 1;  // warpgroups
  static constexpr int MM = TM / 64 / kOnTile;       // times 64 rows of a warpgroup
  static constexpr int kStep = 128 / sizeof(In);     // values of a row in one step
  static constexpr int kA = TM * 128, kW = TN * 128, kStage = kA + kW;
  static constexpr int kEpilogue = 2 * kEpilogueRows * TN * 4;
  static constexpr int kFit = (kSharedLimit - 1024 - kEpilogue - 256) / kStage;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static constexpr int kShared = 1024 + kStages * kStage + kEpilogue + 2 * kStages * 8;
  // Each block loads half of the weights' tile for both, or every other step all of it.
  static constexpr bool kHalves = TN / kAbove % (kDealt ? 32 : 8) == 0;
  static constexpr int kBoxA = TM / kBeside, kBoxW = kHalves ? TN / kAbove : TN;  // rows in one copy
  static_assert(kStages >= 3 && (!kDealt || TN % 32 == 0));
};

// Where a warpgroup's tile, or its half of one, lies and what a thread holds of it: 64 MM rows.
struct TilePlace {
  int row, column;     // of the tile
  int thread;          // of the warpgroup
  int group;           // which of the two warpgroups
  float* shared;       // (kEpilogueRows, TN) floats of the warpgroup: first what prepare() left there
  bool biased = true;  // whether what follows has the bias: of splits with a result each, the first

  __device__ int warp() const { return thread / 32; }
  __device__ int quad() const { return thread % 4; }
  __device__ int octet() const { return thread / 4 % 8; }
  __device__ int row_of(int mm, int half) const { return row + 64 * mm + 16 * warp() + 8 * half + octet(); }
  // Of a pair of columns in the tile: group j of eight accumulator columns.
  template <bool Dealt>
  __device__ int offset_of(int j) const {
    return Dealt ? j / 4 * 32 + 8 * quad() + 2 * (j % 4) : 8 * j + 2 * quad();
  }
  __device__ void sync() const { hopper::named_sync(3 + group, kWarpgroup); }
};

// The block's place in its cluster.
template <class Traits>
struct ClusterPlace {
  int above, beside;
  __device__ ClusterPlace()
      : above(static_cast<int>(hopper::cluster_rank()) % kAbove),
        beside(static_cast<int>(hopper::cluster_rank()) / kAbove) {}
  __device__ int row(const GemmShape& s, int tile) const {
    return (tile / s.column_tiles * kAbove + above) * Traits::TM;
  }
  __device__ int column(const GemmShape& s, int tile) const {
    return (tile % s.column_tiles * Traits::kBeside + beside) * Traits::TN;
  }
  // The blocks with the same columns, with the same rows, and the i-th of those that share anything with us.
  __device__ uint16_t same_columns() const { return static_cast<uint16_t>(3 << kAbove * beside); }
  __device__ uint16_t same_rows() const { return static_cast<uint16_t>(5 << above); }
  __device__ uint32_t sharer(int i) const {
    return i < kAbove ? static_cast<uint32_t>(kAbove * beside + i)
                      : static_cast<uint32_t>(above + kAbove * (1 - beside));
  }
};

template <class Traits>
struct SharedPlan {
  uint8_t* base;
  __device__ explicit SharedPlan(uint8_t* raw)
      : base(raw + (1024 - hopper::shared_address(raw) % 1024) % 1024) {}
  __device__ uint8_t* a(int stage) const { return base + stage * Traits::kStage; }
  __device__ uint8_t* w(int stage) const { return a(stage) + Traits::kA; }
  __device__ float* epilogue(int group) const {
    return reinterpret_cast<float*>(base + Traits::kStages * Traits::kStage) +
           group * kEpilogueRows * Traits::TN;
  }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(base + Traits::kStages * Traits::kStage + Traits::kEpilogue) + stage;
  }
  __device__ uint64_t* empty(int stage) const { return full(Traits::kStages + stage); }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The tiles of a cluster: every stride-th from the first on, and of each the steps [begin, begin + steps).
// Clusters in a row have the splits of the same tiles. So a cluster has the same split of all its tiles, and
// waits only for clusters that were launched before it, and for those at a tile no further on than its own:
// none of them can wait for it, however few of them the GPU holds at a time.
struct Share {
  int first, stride, begin, steps, split;
};
template <class Traits, Joins joins>
__device__ __forceinline__ Share share_of(const GemmShape& s) {
  const int cluster = blockIdx.x / Traits::kCluster, clusters = gridDim.x / Traits::kCluster;
  if constexpr (joins == Joins::none) return {cluster, clusters, 0, s.steps, 0};
  const int split = cluster % s.splits;
  const auto step = [&](int n) { return static_cast<int>(static_cast<int64_t>(n) * s.steps / s.splits); };
  return {cluster / s.splits, clusters / s.splits, step(split), step(split + 1) - step(split), split};
}

// One thread keeps the copy engine ahead of the tensor cores. Weights that no kernel before has written
// (`steady`) come before the wait for it. With ByFactor it knows weights of the paper's layout.
template <class Traits, bool ByFactor>
struct Copier {
  const CUtensorMap *a_map, *w_map;
  const GemmShape& s;
  const SharedPlan<Traits>& plan;
  Share share;
  ClusterPlace<Traits> place;

  // A step of a tile that begins at this column, and at this row: their divisions are not for every step.
  __device__ __forceinline__ void weights(int stage, int tile_column, int step) const {
    const int part = Traits::kHalves ? place.above * Traits::kBoxW : 0;
    if (!Traits::kHalves && step % kAbove != place.above) return;
    const int column = tile_column + part;
    uint8_t* const to = plan.w(stage) + part * 128;
    if constexpr (ByFactor)
      if (s.factors > 0) return weights_by_factor(stage, to, column, step);
    if constexpr (Traits::kDealt)
      hopper::load_blocks_everywhere(w_map, plan.full(stage), to, step * Traits::kStep, column / 32,
                                     place.same_columns());
    else
      hopper::load_box_everywhere(w_map, plan.full(stage), to, step * Traits::kStep, column,
                                  place.same_columns());
  }
  // Rows of the paper's layout, in which the factors of a feature stand D = columns / factors apart. Dealt: a
  // copy for each block of 32 rows, the blocks of all factors of 32 features one after another
  // (context_row_of). Else the two factors of each feature side by side (sums_row_of).
  __device__ __forceinline__ void weights_by_factor(int stage, uint8_t* to, int column, int step) const {
    if constexpr (Traits::kDealt) {
      const int units = s.columns / 32 / s.factors;  // of 32 features
      for (int i = 0; i < Traits::kBoxW / 32; ++i) {
        const int block = column / 32 + i, unit = block / s.factors;
        const int from = unit < units ? block % s.factors * units + unit : s.columns / 32;  // beyond: zeros
        hopper::load_blocks_everywhere(w_map, plan.full(stage), to + 32 * 128 * i, step * Traits::kStep, from,
                                       place.same_columns());
      }
    } else {
      hopper::load_blocks_everywhere(w_map, plan.full(stage), to, step * Traits::kStep, column / 2,
                                     place.same_columns());
    }
  }
  __device__ __forceinline__ void rows(int stage, int tile_row, int step) const {
    const int part = place.beside * Traits::kBoxA, row = tile_row + part;
    uint8_t* const to = plan.a(stage) + part * 128;
    if constexpr (Traits::kBeside > 1)
      hopper::load_box_everywhere(a_map, plan.full(stage), to, step * Traits::kStep, row, place.same_rows());
    else
      hopper::load_box(a_map, plan.full(stage), to, step * Traits::kStep, row);
  }
  __device__ __forceinline__ void run(bool steady) const {
    const int first = share.first, begin = share.begin, end = begin + share.steps;
    int ahead = steady && first < s.tiles ? min(Traits::kStages, share.steps) : 0;  // steps begun already
    for (int step = 0; step < ahead; ++step) {
      hopper::barrier_expect(plan.full(step), Traits::kStage);
      weights(step, place.column(s, first), begin + step);
    }
    wait_for_before();
    let_next_start();  // not before: what the next one reads early must have been written by then
    int stage = 0;
    uint32_t parity = 1;  // a fresh barrier counts as passed
    for (int tile = first; tile < s.tiles; tile += share.stride) {
      const int row = place.row(s, tile), column = place.column(s, tile);
      for (int step = begin; step < end; ++step) {
        if (ahead > 0) {
          --ahead;
        } else {
          hopper::barrier_wait(plan.empty(stage), parity);
          hopper::barrier_expect(plan.full(stage), Traits::kStage);
          weights(stage, column, step);
        }
        rows(stage, row, step);
        if (++stage == Traits::kStages) stage = 0, parity ^= 1;
      }
    }
  }
};

// The accumulators of one tile, or of a warpgroup's half of it; steps counted from `first` over all tiles of
// the block.
template <class Traits>
__device__ __forceinline__ void multiply(float (&acc)[Traits::MM][Traits::TN / 2], const GemmShape& s,
                                         const SharedPlan<Traits>& plan, int first, int group) {
  using In = typename Traits::In;
  const bool releasing = threadIdx.x % kWarpgroup < Traits::kSharers;
  const uint32_t sharer = ClusterPlace<Traits>().sharer(threadIdx.x % kWarpgroup);
  const auto release = [&](int stage) {  // to all blocks whose copies come here
    if (releasing) hopper::barrier_arrive(plan.empty(stage), sharer);
  };
  const int half = Traits::kTogether ? 512 * group : 0;  // its rows, in units of 16 bytes
  int stage = first % Traits::kStages, before = 0;
  uint32_t parity = (first / Traits::kStages) & 1;
#pragma unroll
  for (int mm = 0; mm < Traits::MM; ++mm) hopper::wgmma_fence(acc[mm]);
  for (int step = 0; step < s.steps; ++step) {
    hopper::barrier_wait(plan.full(stage), parity);
    const uint64_t a = hopper::matrix_of(plan.a(stage)) + half, w = hopper::matrix_of(plan.w(stage));
    hopper::wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
        hopper::gemm<In>(acc[mm], a + 2 * k + 512 * mm, w + 2 * k, step > 0 || k > 0);
    hopper::wgmma_commit();
    hopper::wgmma_wait<1>();
    if (step > 0) release(before);
    before = stage;
    if (++stage == Traits::kStages) stage = 0, parity ^= 1;
  }
  if constexpr (!Traits::kTogether)
    hopper::named_arrive(1 + (1 - group), 2 * kWarpgroup);  // the other's turn
  hopper::wgmma_wait<0>();
  release(before);
#pragma unroll
  for (int mm = 0; mm < Traits::MM; ++mm) hopper::wgmma_fence(acc[mm]);
}

// Where the splits of a tile meet: a count of those that are done, and what they have added up. A warpgroup
// has its own for what it computes of a tile, and a thread reads what the same thread of another block wrote.
template <class Traits>
struct Meeting {
  static constexpr int kFours = Traits::MM * Traits::TN / 8;  // of a thread's accumulators
  uint32_t* counter;
  float4* sums;
  const TilePlace& at;
  int split, splits;

  __device__ Meeting(const GemmShape& s, int tile, const TilePlace& at, int split)
      : at(at), split(split), splits(s.splits) {
    const int block = tile * Traits::kCluster + static_cast<int>(hopper::cluster_rank());
    const int index = block * Traits::kOnTile + (Traits::kTogether ? at.group : 0);
    counter = s.counters + index;
    sums = reinterpret_cast<float4*>(s.sums) + static_cast<int64_t>(index) * kFours * kWarpgroup + at.thread;
  }
  __device__ __forceinline__ bool last() const { return split + 1 == splits; }
  // All that the splits before have written is seen after it.
  __device__ __forceinline__ void wait() const {
    if (split == 0) return;
    if (at.thread == 0) {
      int done;
      do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(done) : "l"(counter) : "memory");
      } while (done != split);
    }
    at.sync();
  }
  // The last leaves the counter as it was: nobody waits there any more.
  __device__ __forceinline__ void finish() const {
    if (last()) {
      if (at.thread == 0) *counter = 0;
      return;
    }
    at.sync();
    if (at.thread == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
  }
  // In the order of K, whatever the tile: what there was before, and then this.
  template <class Acc>
  __device__ __forceinline__ void add(Acc& acc) const {
    if (split == 0) return;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float4 before = __ldcg(sums + i * kWarpgroup);
      float* const v = &acc[i / (Traits::TN / 8)][4 * (i % (Traits::TN / 8))];
      v[0] = before.x + v[0], v[1] = before.y + v[1], v[2] = before.z + v[2], v[3] = before.w + v[3];
    }
  }
  template <class Acc>
  __device__ __forceinline__ void leave(const Acc& acc) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float* const v = &acc[i / (Traits::TN / 8)][4 * (i % (Traits::TN / 8))];
      __stcg(sums + i * kWarpgroup, make_float4(v[0], v[1], v[2], v[3]));
    }
  }
};

// What becomes of a tile's accumulators.
template <class Traits, class Epilogue, Joins joins, class Acc>
__device__ __forceinline__ void finish_tile(Acc& acc, const GemmShape& s, int tile, const TilePlace& at,
                                            int split, const typename Epilogue::Params& params) {
  if constexpr (joins == Joins::none) {
    Epilogue::template apply<Traits>(acc, s, at, params);
  } else {
    const Meeting<Traits> meeting(s, tile, at, split);
    meeting.wait();
    if constexpr (joins == Joins::sums) meeting.add(acc);
    if (joins == Joins::results || meeting.last())
      Epilogue::template apply<Traits>(acc, s, at, params);
    else
      meeting.leave(acc);
    meeting.finish();
  }
}

template <class Traits, class Epilogue, Joins joins>
__device__ __forceinline__ void compute_tiles(const GemmShape& s, const Share& share,
                                              const SharedPlan<Traits>& plan,
                                              const typename Epilogue::Params& params) {
  constexpr bool kTogether = Traits::kTogether;
  constexpr int kTurns = kTogether ? 1 : 2;  // a warpgroup has every so many-th tile of the block
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1, turn = kTogether ? 0 : group;
  const ClusterPlace<Traits> cluster;
  GemmShape part = s;
  part.steps = share.steps;
  if (!kTogether && group == 1) hopper::named_arrive(1, 2 * kWarpgroup);
  int first = turn * share.steps;
  for (int tile = share.first + turn * share.stride; tile < s.tiles;
       tile += kTurns * share.stride, first += kTurns * share.steps) {
    TilePlace place;
    place.row = cluster.row(s, tile) + (kTogether ? 64 * Traits::MM * group : 0);
    place.column = cluster.column(s, tile);
    place.thread = threadIdx.x % kWarpgroup, place.group = group, place.shared = plan.epilogue(group);
    place.biased = joins != Joins::results || share.split == 0;
    place.sync();  // the epilogue before has read its part of shared memory
    if (place.row < s.rows && place.column < s.columns) Epilogue::template prepare<Traits>(s, place, params);
    float acc[Traits::MM][Traits::TN / 2];
    if (!kTogether) hopper::named_sync(1 + group, 2 * kWarpgroup);
    multiply<Traits>(acc, part, plan, first, group);
    place.sync();
    if (place.row < s.rows && place.column < s.columns)
      finish_tile<Traits, Epilogue, joins>(acc, s, tile, place, share.split, params);
  }
}

#endif

template <class Traits, class Epilogue, Joins joins>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                const GemmShape shape, const bool steady, const typename Epilogue::Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  const SharedPlan<Traits> plan(raw);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&a_map), hopper::prefetch_map(&w_map);
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      hopper::barrier_init(plan.full(stage), 1);
      hopper::barrier_init(plan.empty(stage), Traits::kOnTile * Traits::kSharers);
    }
    hopper::barriers_ready();
  }
  hopper::cluster_sync();
  const Share share = share_of<Traits, joins>(shape);
  if (threadIdx.x < kWarpgroup) {
    hopper::give_registers<40>();
    if (threadIdx.x == 0)
      Copier<Traits, (factors_of<Epilogue>() > 0)>{&a_map, &w_map, shape, plan, share, {}}.run(steady);
  } else {
    hopper::take_registers<232>();
    wait_for_before();
    compute_tiles<Traits, Epilogue, joins>(shape, share, plan, params);
  }
  __syncwarp();
  hopper::cluster_sync();  // the others may still write here
#else
  __trap();  // built for another GPU than gemm_device() lets through
#endif
}

// ---- the host's half ----

// How the copy engine sees a matrix (rows, K): boxes of rows of 128 bytes, zeros beyond the edges. Its first
// axis runs along a row, each other over rows so far apart; a box has all 128 bytes of the first.
struct MapAxes {
  int rank;
  cuuint64_t sizes[5], rows_apart[4];  // rows_apart and box from the second axis on
  cuuint32_t box[4];
};
cudaError_t tensor_map_of(CUtensorMap* map, const void* matrix, Dtype dtype, const MapAxes& axes);
cudaError_t tensor_map(CUtensorMap* map, const void* matrix, Dtype dtype, int64_t rows, int64_t inputs,
                       int box_rows, bool dealt);
// Of weights whose factors the copies bring together.
cudaError_t tensor_map_by_factor(CUtensorMap* map, const Gemm& gemm, int box_rows, bool dealt);
int processors();  // of the current device
// How many clusters of this kernel the current device holds at once; asked for once a device, in `known`.
// Lets the kernel have its shared memory first.
cudaError_t clusters_at_once(const void* kernel, int shared, int cluster,
                             std::atomic<int> (&known)[kMaxDevices], int* clusters);

template <class Traits, class Epilogue, Joins joins = Joins::none>
cudaError_t launch_gemm(const Gemm& p, const typename Epilogue::Params& params, cudaStream_t stream) {
  const auto kernel = gemm_kernel<Traits, Epilogue, joins>;
  static std::atomic<int> known[kMaxDevices];
  int clusters = 0;
  if (const cudaError_t e = clusters_at_once(reinterpret_cast<const void*>(kernel), Traits::kShared,
                                             Traits::kCluster, known, &clusters);
      e != cudaSuccess)
    return e;
  constexpr int kColumns = Traits::kBeside * Traits::TN, kRows = kAbove * Traits::TM;  // of a cluster
  GemmShape s;
  s.rows = static_cast<int>(p.sizes.rows()), s.columns = static_cast<int>(p.sizes.outputs);
  s.steps = static_cast<int>((p.sizes.inputs + Traits::kStep - 1) / Traits::kStep);
  s.column_tiles = (s.columns + kColumns - 1) / kColumns;
  s.tiles = (s.rows + kRows - 1) / kRows * s.column_tiles;
  if constexpr (joins != Joins::none)
    s.splits = p.splits.count, s.counters = p.splits.counters, s.sums = static_cast<float*>(p.splits.sums);
  if (p.factors != 0 && p.factors != factors_of<Epilogue>()) return cudaErrorNotSupported;
  s.factors = p.factors;
  CUtensorMap a, w;
  if (const cudaError_t e = tensor_map(&a, p.a, p.dtype, s.rows, p.sizes.inputs, Traits::kBoxA, false);
      e != cudaSuccess)
    return e;
  if (const cudaError_t e = s.factors > 0 ? tensor_map_by_factor(&w, p, Traits::kBoxW, Traits::kDealt)
                                          : tensor_map(&w, p.w, p.dtype, s.columns, p.sizes.inputs,
                                                       Traits::kBoxW, Traits::kDealt);
      e != cudaSuccess)
    return e;
  if (clusters < s.splits) return cudaErrorNotSupported;  // those who wait for each other run together
  const int slots = std::max(1, clusters / s.splits);     // whole tiles at a time: see Share
  const unsigned blocks = static_cast<unsigned>(Traits::kCluster * s.splits * std::min(s.tiles, slots));
  return launch(kernel, dim3(blocks), dim3(kGemmThreads), Traits::kShared, stream, Traits::kCluster, a, w, s,
                p.steady, params);
}

// Calls f.template operator()<In>() for the dtype of a product.
template <class F>
cudaError_t with_input(Dtype dtype, const F& f) {
  if (dtype == Dtype::bf16) return f.template operator()<__nv_bfloat16>();
  if (dtype == Dtype::fp16) return f.template operator()<__half>();
  if (dtype == Dtype::e4m3) return f.template operator()<__nv_fp8_e4m3>();
  return cudaErrorNotSupported;
}

// Calls f.template operator()<TN, Beside>() for a tile: gemm_tile() has the same list. Those whose columns
// can be dealt out need a multiple of 32 of them.
template <class F>
cudaError_t with_tile(int index, const F& f) {
  switch (index) {
    case 0:
      return f.template operator()<192, 1>();
    case 1:
      return f.template operator()<144, 1>();
    case 2:
      return f.template operator()<128, 1>();
    case 3:
      return f.template operator()<96, 1>();
    case 4:
      return f.template operator()<192, 2>();
    case 5:
      return f.template operator()<144, 2>();
    case 6:
      return f.template operator()<96, 2>();
    case 7:
      return f.template operator()<256, 1>();
    default:
      return cudaErrorInvalidValue;
  }
}

constexpr int kTileRows = 128;
template <class In, int TN, int Beside>
using DealtTraits = GemmTraits<In, kTileRows, TN, Beside, TN % 32 == 0>;

inline bool aligned_to(const void* p, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// The tile asked for, or the best for the sizes, of at most `widest` columns; an index. One asked for that is
// wider is the widest of them. -1 where the sizes do not allow the one asked for.
constexpr int kAnyWidth = 1 << 30;
int tile_of(const Gemm& gemm, bool dealt, int widest = kAnyWidth, int splits = 1);

// Whether splits were asked for, and whether all that they need is there: `sums` too where the accumulators
// are joined.
inline bool split(const Gemm& p) {
  return p.splits.count != 1;
}
bool splits_fit(const Gemm& p, Joins joins);

}  // namespace pom::kernels
