// What the products share on the host: support, tiles, tensor maps, the layout of the context's weights.
#include <algorithm>
#include <atomic>

#include "pom/kernels/sm90/gemm/epilogue_sums.cuh"

namespace pom::kernels {
namespace {

constexpr GemmTile kTiles[] = {{128, 192, 2, 1}, {128, 144, 2, 1}, {128, 128, 2, 1}, {128, 96, 2, 1},
                               {128, 192, 2, 2}, {128, 144, 2, 2}, {128, 96, 2, 2},  {128, 256, 2, 1}};

constexpr int kWidestInTurns = 0;  // the index of the widest tile of which the warpgroups have one each

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                           cudaEnableDefault, &result);
    return e == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function)
                                                                     : nullptr;
  }();
  return found;
}

int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::e4m3 ? 1 : 2;
}
bool aligned16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

cudaError_t tensor_map_of(CUtensorMap* map, const void* matrix, Dtype dtype, const MapAxes& axes) {
  const Encode encode = encoder();
  if (!encode) return cudaErrorNotSupported;
  const CUtensorMapDataType type = dtype == Dtype::bf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : dtype == Dtype::fp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const cuuint64_t pitch = axes.sizes[0] * static_cast<cuuint64_t>(bytes_of(dtype));
  cuuint64_t pitches[4];
  for (int i = 0; i + 1 < axes.rank; ++i) pitches[i] = axes.rows_apart[i] * pitch;
  cuuint32_t box[5] = {static_cast<cuuint32_t>(128 / bytes_of(dtype))};
  for (int i = 1; i < axes.rank; ++i) box[i] = axes.box[i - 1];
  const cuuint32_t ones[] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(map, type, static_cast<cuuint32_t>(axes.rank), const_cast<void*>(matrix), axes.sizes, pitches,
             box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t tensor_map(CUtensorMap* map, const void* matrix, Dtype dtype, int64_t rows, int64_t inputs,
                       int box_rows, bool dealt) {
  const cuuint64_t K = static_cast<cuuint64_t>(inputs), N = static_cast<cuuint64_t>(rows);
  const cuuint32_t box = static_cast<cuuint32_t>(box_rows);
  // Plain: (input, row). Dealt: (input, e, q, g, block), see gemm_kernel.cuh.
  const MapAxes axes = dealt ? MapAxes{5, {K, 2, 4, 4, N / 32}, {1, 8, 2, 32}, {2, 4, 4, box / 32}}
                             : MapAxes{2, {K, N}, {1}, {box}};
  return tensor_map_of(map, matrix, dtype, axes);
}

cudaError_t tensor_map_by_factor(CUtensorMap* map, const Gemm& p, int box_rows, bool dealt) {
  if (dealt) return tensor_map(map, p.w, p.dtype, p.sizes.outputs, p.sizes.inputs, 32, true);
  const cuuint64_t K = static_cast<cuuint64_t>(p.sizes.inputs);
  const cuuint64_t D = static_cast<cuuint64_t>(p.sizes.outputs / 2);
  // (input, factor, -, -, feature): of five axes, as the copies of dealt weights are.
  const MapAxes axes{5, {K, 2, 1, 1, D}, {D, 1, 1, 1}, {2, 1, 1, static_cast<cuuint32_t>(box_rows / 2)}};
  return tensor_map_of(map, p.w, p.dtype, axes);
}

int processors() {
  static std::atomic<int> known[kMaxDevices];
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  if (device < kMaxDevices)
    if (const int n = known[device].load(std::memory_order_relaxed)) return n;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
  if (device < kMaxDevices) known[device].store(count, std::memory_order_relaxed);
  return count;
}

cudaError_t clusters_at_once(const void* kernel, int shared, int cluster,
                             std::atomic<int> (&known)[kMaxDevices], int* clusters) {
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (device < kMaxDevices)
    if ((*clusters = known[device].load(std::memory_order_relaxed)) > 0) return cudaSuccess;
  if (const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      e != cudaSuccess)
    return e;
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeClusterDimension;
  together.val.clusterDim.x = static_cast<unsigned>(cluster);
  together.val.clusterDim.y = together.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(processors() / cluster * cluster)),
  config.blockDim = dim3(kGemmThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared), config.attrs = &together, config.numAttrs = 1;
  if (const cudaError_t e = cudaOccupancyMaxActiveClusters(clusters, kernel, &config); e != cudaSuccess)
    return e;
  if (*clusters < 1) return cudaErrorNotSupported;
  if (device < kMaxDevices) known[device].store(*clusters, std::memory_order_relaxed);
  return cudaSuccess;
}

bool gemm_device() {
  return built_to_wait() && device_capability() == 90 && encoder() != nullptr;
}

bool gemm_supported(const Gemm& p) {
  const bool typed = p.dtype == Dtype::bf16 || p.dtype == Dtype::fp16 || p.dtype == Dtype::e4m3;
  if (!typed || !gemm_device()) return false;
  const GemmSizes& s = p.sizes;
  const bool fits = s.batch >= 0 && s.tokens >= 1 && s.inputs >= 1 && s.outputs >= 8 &&
                    s.rows() < (1 << 30) && s.outputs < (1 << 24) && s.inputs < (1 << 30);
  return fits && s.inputs * bytes_of(p.dtype) % 16 == 0 && s.outputs % 8 == 0 && aligned16(p.a) &&
         aligned16(p.w) && aligned16(p.bias) && (p.dtype != Dtype::e4m3 || (p.a_scale && p.w_scale));
}

int gemm_tiles() {
  return static_cast<int>(std::size(kTiles));
}
GemmTile gemm_tile(int index) {
  return kTiles[index];
}

// The longest share of any processor in units of work; a narrow tile pays more for its loads. A tile on which
// both warpgroups work has nothing to hide its epilogue behind.
int choose_gemm_tile(const GemmSizes& s, int count, int widest, int splits) {
  int best = 1;
  double least = 0;
  for (int i = 0; i < gemm_tiles(); ++i) {
    const GemmTile t = kTiles[i];
    if (t.columns > widest || !gemm_tile_fits(s, i)) continue;
    const int64_t rows = (s.rows() + t.above * t.rows - 1) / (t.above * t.rows);
    const int64_t tiles = rows * ((s.outputs + t.beside * t.columns - 1) / (t.beside * t.columns));
    const int64_t slots = std::max(1, count / (t.above * t.beside * std::max(1, splits)));
    const double turns = static_cast<double>((tiles + slots - 1) / slots);
    const double bare = t.columns > 192 ? 64 * (turns - 1) : 0;
    const double cost = t.rows * (turns * (t.columns + 24.0) + bare);
    if (least == 0 || cost < least) best = i, least = cost;
  }
  return best;
}

bool gemm_tile_fits(const GemmSizes& s, int index) {
  return s.outputs % 32 == 0 || kTiles[index].columns % 32 != 0;
}

int tile_of(const Gemm& p, bool dealt, int widest, int splits) {
  if (p.tile <= 0) return choose_gemm_tile(p.sizes, processors(), widest, splits);
  if (p.tile > gemm_tiles()) return -1;
  if (kTiles[p.tile - 1].columns > widest) return kWidestInTurns;
  return !dealt || gemm_tile_fits(p.sizes, p.tile - 1) ? p.tile - 1 : -1;
}

// So many that splits and tiles of 128 x 128 come near the processors of an H100 or H200, whatever runs it;
// none of less than 12 steps, which would be as long as what joins them.
int gemm_splits(const GemmSizes& s, Dtype dtype) {
  constexpr int64_t kProcessors = 132, kLeastSteps = 12, kMost = 4, kTile = 128;
  if (s.rows() < 1 || s.outputs < 1) return 1;
  const int64_t tiles = (s.rows() + kTile - 1) / kTile * ((s.outputs + kTile - 1) / kTile);
  const int64_t most = std::min(kMost, s.inputs * bytes_of(dtype) / 128 / kLeastSteps);
  return static_cast<int>(std::max<int64_t>(1, std::min(most, kProcessors / tiles)));
}

GemmSplitBytes gemm_split_bytes(const GemmSizes& s) {
  GemmSplitBytes bytes{0, 0};
  for (const GemmTile& t : kTiles) {
    const int64_t rows = (s.rows() + t.above * t.rows - 1) / (t.above * t.rows) * t.above;
    const int64_t tiles = rows * ((s.outputs + t.beside * t.columns - 1) / (t.beside * t.columns) * t.beside);
    const int64_t counters = tiles * (t.columns > 192 ? 2 : 1);
    bytes.counters = std::max<int64_t>(bytes.counters, counters * static_cast<int64_t>(sizeof(uint32_t)));
    bytes.sums =
        std::max<int64_t>(bytes.sums, tiles * t.rows * t.columns * static_cast<int64_t>(sizeof(float)));
  }
  return bytes;
}

bool splits_fit(const Gemm& p, Joins joins) {
  const GemmSplits& s = p.splits;
  const GemmSplitBytes need = gemm_split_bytes(p.sizes);
  const int64_t steps = (p.sizes.inputs * bytes_of(p.dtype) + 127) / 128;
  const bool counted = s.counters && aligned_to(s.counters, 4) && s.counters_bytes >= need.counters;
  const bool summed = joins != Joins::sums || (s.sums && aligned16(s.sums) && s.sums_bytes >= need.sums);
  return s.count >= 1 && s.count <= steps && counted && summed;
}

bool sums_order(int order) {
  return std::find(std::begin(kSumsOrders), std::end(kSumsOrders), order) != std::end(kSumsOrders);
}
int64_t sums_row(int64_t r, int order, int64_t D) {
  return sums_row_of(r, order, D);
}
bool gate_takes_sums(const GemmSizes& s, const Runs& runs) {
  constexpr int64_t kMost = 16;  // tiles, whose sums every tile of the gate reads
  return s.tokens > 0 && s.tokens % kTileRows == 0 && s.tokens / kTileRows <= kMost &&
         run_shape(s, runs).runs == 1;
}
// A tile of 128 rows has three runs only where one of less than 127 rows has others on both sides.
GateRuns gate_runs(const GemmSizes& s, const Runs& given) {
  const RunShape r = run_shape(s, given);
  const bool one =
      (s.batch == 1 || r.tokens % kTileRows == 0) && (r.runs == 1 || r.run_tokens % kTileRows == 0);
  const int last = r.tokens - (r.runs - 1) * r.run_tokens;  // rows of a sequence's last run
  const bool two = r.run_tokens >= kTileRows && (s.batch == 1 || last >= kTileRows);
  return one ? GateRuns::one : two ? GateRuns::two : GateRuns::any;
}
int64_t sums_slots(const GemmSizes& sizes, const Runs& runs) {
  if (sizes.rows() == 0) return 0;
  return (sizes.rows() + 127) / 128 + sizes.batch * run_shape(sizes, runs).runs;
}

}  // namespace pom::kernels
