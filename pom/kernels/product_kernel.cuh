// The product kernel (sm_90a): one warpgroup copies, two compute. Blocks stay on their processor and take
// tile after tile; the two computing warpgroups take turns on the tensor cores, so that one finishes its tile
// (the tail: activation, gate, sums, stores) while the other multiplies. Two blocks form a cluster of two
// tiles of rows and share the tile of weights, each loading half of it for both. M rows, N columns (outputs),
// K inputs; a tile is TM x TN, a step along K 128 bytes of it.
//
// A thread of a warpgroup holds pairs of neighbouring accumulator columns, 8 apart. So that they are
// neighbours in memory too, the rows of the weights come in another order (`dealt`): of every 32 columns,
// accumulator column 8 g + 2 q + e is column 8 q + 2 g + e of the product, and thread q of four has eight
// columns in a row. The copy engine does it on the way, as a matter of strides.
#pragma once

#include "pom/kernels/launch.cuh"
#include "pom/kernels/product.h"
#include "pom/kernels/wgmma.cuh"

namespace pom::kernels {

constexpr int kCluster = 2, kWarpgroup = 128, kProductThreads = 3 * kWarpgroup;
constexpr int kSharedLimit = 232448;  // bytes a block may have

struct ProductShape {
  int rows = 0, columns = 0, steps = 0;  // steps along K
  int column_tiles = 0, tiles = 0;       // tiles of a pair of blocks
};

template <class In_, int TM_, int TN_, bool Dealt_>
struct ProductTraits {
  using In = In_;
  static constexpr bool kDealt = Dealt_;
  static constexpr int TM = TM_, TN = TN_, MM = TM / 64;
  static constexpr int kStep = 128 / sizeof(In);  // values of a row in one step
  static constexpr int kA = TM * 128, kW = TN * 128, kStage = kA + kW;
  static constexpr int kTail = 2 * 4 * TN * 4;  // floats of each computing warp
  static constexpr int kFit = (kSharedLimit - 1024 - kTail - 256) / kStage;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static constexpr int kShared = 1024 + kStages * kStage + kTail + 2 * kStages * 8;
  // Each block loads half of the weights' tile for both, or every other step all of it.
  static constexpr bool kHalves = TN / kCluster % (kDealt ? 32 : 8) == 0;
  static constexpr int kBox = kHalves ? TN / kCluster : TN;  // rows of the weights in one copy
  static_assert(kStages >= 3 && (!kDealt || TN % 32 == 0));
};

// Where a warpgroup's tile lies and what a thread holds of it.
struct TilePlace {
  int row, column;  // of the tile
  int thread;       // of the warpgroup
  int group;        // which of the two warpgroups
  float* shared;    // (4, TN) floats of the warpgroup: first what prepare() left there

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

template <class Traits>
struct SharedPlan {
  uint8_t* base;
  __device__ explicit SharedPlan(uint8_t* raw)
      : base(raw + (1024 - hopper::shared_address(raw) % 1024) % 1024) {}
  __device__ uint8_t* a(int stage) const { return base + stage * Traits::kStage; }
  __device__ uint8_t* w(int stage) const { return a(stage) + Traits::kA; }
  __device__ float* tail(int group) const {
    return reinterpret_cast<float*>(base + Traits::kStages * Traits::kStage) + group * 4 * Traits::TN;
  }
  __device__ uint64_t* full(int stage) const {
    return reinterpret_cast<uint64_t*>(base + Traits::kStages * Traits::kStage + Traits::kTail) + stage;
  }
  __device__ uint64_t* empty(int stage) const { return full(Traits::kStages + stage); }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// One thread keeps the copy engine ahead of the tensor cores.
template <class Traits>
__device__ __forceinline__ void copy_tiles(const CUtensorMap* a_map, const CUtensorMap* w_map,
                                           const ProductShape& s, const SharedPlan<Traits>& plan) {
  const int rank = static_cast<int>(hopper::cluster_rank()), part = Traits::kHalves ? rank * Traits::kBox : 0;
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  int stage = 0;
  uint32_t parity = 1;  // a fresh barrier counts as passed
  for (int tile = blockIdx.x / kCluster; tile < s.tiles; tile += gridDim.x / kCluster) {
    const int row = (tile / s.column_tiles * kCluster + rank) * Traits::TM;
    const int column = tile % s.column_tiles * Traits::TN + part;
    for (int step = 0; step < s.steps; ++step) {
      uint64_t* const full = plan.full(stage);
      uint8_t* const w = plan.w(stage) + part * 128;
      hopper::barrier_wait(plan.empty(stage), parity);
      hopper::barrier_expect(full, Traits::kStage);
      hopper::load_box(a_map, full, plan.a(stage), step * Traits::kStep, row);
      if (Traits::kHalves || step % kCluster == rank) {
        if constexpr (Traits::kDealt)
          hopper::load_blocks_everywhere(w_map, full, w, step * Traits::kStep, column / 32, kBoth);
        else
          hopper::load_box_everywhere(w_map, full, w, step * Traits::kStep, column, kBoth);
      }
      if (++stage == Traits::kStages) stage = 0, parity ^= 1;
    }
  }
}

// The accumulators of one tile; steps counted from `first` over all tiles of the block.
template <class Traits>
__device__ __forceinline__ void multiply(float (&acc)[Traits::MM][Traits::TN / 2], const ProductShape& s,
                                         const SharedPlan<Traits>& plan, int first, int group) {
  using In = typename Traits::In;
  const auto release = [&](int stage) {  // to both blocks, whose copies go to both
    if (threadIdx.x % kWarpgroup < kCluster)
      hopper::barrier_arrive(plan.empty(stage), threadIdx.x % kWarpgroup);
  };
  int stage = first % Traits::kStages, before = 0;
  uint32_t parity = (first / Traits::kStages) & 1;
#pragma unroll
  for (int mm = 0; mm < Traits::MM; ++mm) hopper::products_fence(acc[mm]);
  for (int step = 0; step < s.steps; ++step) {
    hopper::barrier_wait(plan.full(stage), parity);
    const uint64_t a = hopper::matrix_of(plan.a(stage)), w = hopper::matrix_of(plan.w(stage));
    hopper::products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int mm = 0; mm < Traits::MM; ++mm)
        hopper::product<In>(acc[mm], a + 2 * k + 512 * mm, w + 2 * k, step > 0 || k > 0);
    hopper::products_commit();
    hopper::products_wait<1>();
    if (step > 0) release(before);
    before = stage;
    if (++stage == Traits::kStages) stage = 0, parity ^= 1;
  }
  hopper::named_arrive(1 + (1 - group), 2 * kWarpgroup);  // the other's turn
  hopper::products_wait<0>();
  release(before);
#pragma unroll
  for (int mm = 0; mm < Traits::MM; ++mm) hopper::products_fence(acc[mm]);
}

template <class Traits, class Tail>
__device__ __forceinline__ void compute_tiles(const ProductShape& s, const SharedPlan<Traits>& plan,
                                              const typename Tail::Params& params) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup - 1, stride = gridDim.x / kCluster;
  const int rank = static_cast<int>(hopper::cluster_rank());
  if (group == 1) hopper::named_arrive(1, 2 * kWarpgroup);
  int first = group * s.steps;
  for (int tile = blockIdx.x / kCluster + group * stride; tile < s.tiles;
       tile += 2 * stride, first += 2 * s.steps) {
    TilePlace place;
    place.row = (tile / s.column_tiles * kCluster + rank) * Traits::TM;
    place.column = tile % s.column_tiles * Traits::TN;
    place.thread = threadIdx.x % kWarpgroup, place.group = group, place.shared = plan.tail(group);
    place.sync();  // the tail before has read its part of shared memory
    if (place.row < s.rows) Tail::template prepare<Traits>(s, place, params);
    float acc[Traits::MM][Traits::TN / 2];
    hopper::named_sync(1 + group, 2 * kWarpgroup);
    multiply<Traits>(acc, s, plan, first, group);
    place.sync();
    if (place.row < s.rows) Tail::template apply<Traits>(acc, s, place, params);
  }
}

#endif

template <class Traits, class Tail>
__global__ void __launch_bounds__(kProductThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap w_map,
                   const ProductShape shape, const typename Tail::Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw[];
  const SharedPlan<Traits> plan(raw);
  if (threadIdx.x == 0) {
    hopper::prefetch_map(&a_map), hopper::prefetch_map(&w_map);
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      hopper::barrier_init(plan.full(stage), 1);
      hopper::barrier_init(plan.empty(stage), kCluster);
    }
    hopper::barriers_ready();
  }
  hopper::cluster_sync();
  let_next_start();
  wait_for_before();
  if (threadIdx.x < kWarpgroup) {
    hopper::give_registers<40>();
    if (threadIdx.x == 0) copy_tiles<Traits>(&a_map, &w_map, shape, plan);
  } else {
    hopper::take_registers<232>();
    compute_tiles<Traits, Tail>(shape, plan, params);
  }
  __syncwarp();
  hopper::cluster_sync();  // the other block may still write here
#endif
}

// ---- the host's half ----

// How the copy engine sees a matrix (rows, K): boxes of box_rows rows of 128 bytes, zeros beyond the edges.
cudaError_t tensor_map(CUtensorMap* map, const void* matrix, Dtype dtype, int64_t rows, int64_t inputs,
                       int box_rows, bool dealt = false);
int processors();  // of the current device
// Lets a kernel have this much shared memory, once for each device.
cudaError_t allow_shared(const void* kernel, int bytes, std::atomic<uint64_t>& devices);

template <class Traits, class Tail>
cudaError_t launch_product(const Product& p, const typename Tail::Params& params, cudaStream_t stream) {
  const auto kernel = product_kernel<Traits, Tail>;
  static std::atomic<uint64_t> prepared;  // a bit for each device
  if (const cudaError_t e = allow_shared(reinterpret_cast<const void*>(kernel), Traits::kShared, prepared);
      e != cudaSuccess)
    return e;
  ProductShape s;
  s.rows = static_cast<int>(p.sizes.rows()), s.columns = static_cast<int>(p.sizes.outputs);
  s.steps = static_cast<int>((p.sizes.inputs + Traits::kStep - 1) / Traits::kStep);
  s.column_tiles = (s.columns + Traits::TN - 1) / Traits::TN;
  s.tiles = (s.rows + kCluster * Traits::TM - 1) / (kCluster * Traits::TM) * s.column_tiles;
  CUtensorMap a, w;
  if (const cudaError_t e = tensor_map(&a, p.a, p.dtype, s.rows, p.sizes.inputs, Traits::TM);
      e != cudaSuccess)
    return e;
  if (const cudaError_t e =
          tensor_map(&w, p.w, p.dtype, s.columns, p.sizes.inputs, Traits::kBox, Traits::kDealt);
      e != cudaSuccess)
    return e;
  const int blocks = kCluster * (s.tiles < processors() / kCluster ? s.tiles : processors() / kCluster);
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kProductThreads), Traits::kShared, stream,
                kCluster, a, w, s, params);
}

// Calls f.template operator()<In>() for the dtype of a product.
template <class F>
cudaError_t with_input(Dtype dtype, const F& f) {
  if (dtype == Dtype::bf16) return f.template operator()<__nv_bfloat16>();
  if (dtype == Dtype::fp16) return f.template operator()<__half>();
  if (dtype == Dtype::e4m3) return f.template operator()<__nv_fp8_e4m3>();
  return cudaErrorNotSupported;
}

// Calls f.template operator()<TM, TN>() for a tile: product_tile() has the same list. Those whose columns can
// be dealt out need a multiple of 32 of them.
template <class F>
cudaError_t with_tile(int index, const F& f) {
  switch (index) {
    case 0:
      return f.template operator()<128, 192>();
    case 1:
      return f.template operator()<128, 144>();
    case 2:
      return f.template operator()<128, 128>();
    case 3:
      return f.template operator()<128, 96>();
    default:
      return cudaErrorInvalidValue;
  }
}

template <class In, int TM, int TN>
using DealtTraits = ProductTraits<In, TM, TN, TN % 32 == 0>;

// The tile asked for, or the best for the sizes; an index. -1 where the sizes do not allow the one asked for.
int tile_of(const Product& product, bool dealt);

}  // namespace pom::kernels
