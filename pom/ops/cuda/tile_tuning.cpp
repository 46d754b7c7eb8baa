#include "pom/ops/cuda/tile_tuning.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "pom/base/error.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/tile_cache.h"

namespace pom::ops::cuda {
namespace {

constexpr int kRounds = 5, kLaunches = 3;

class Event {
 public:
  Event() { detail::check_launch("tuning", cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { detail::check_launch("tuning", cudaEventRecord(event_, stream)); }
  float since(const Event& start) const {
    float ms = 0;
    detail::check_launch("tuning", cudaEventSynchronize(event_));
    detail::check_launch("tuning", cudaEventElapsedTime(&ms, start.event_, event_));
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

const char* dtype_name(kernels::Dtype dtype) {
  return dtype == kernels::Dtype::bf16 ? "bf16" : dtype == kernels::Dtype::fp16 ? "fp16" : "e4m3";
}

const std::string& device_name() {  // asking takes long
  thread_local int known = -1;
  thread_local std::string name;
  int index = 0;
  detail::check_launch("tuning", cudaGetDevice(&index));
  if (index == known) return name;
  cudaDeviceProp properties;
  detail::check_launch("tuning", cudaGetDeviceProperties(&properties, index));
  name = properties.name, known = index;
  return name;
}

// To be counted up when the kernels change their speed: what was measured before says nothing then.
constexpr int kRevision = 4;

// "NVIDIA H200 gate bf16 4096x1152x4608 in 1 of 8, revision 4": rows, inputs, outputs, splits, and how many
// tiles there were to choose from. Splits are not: their number depends on the sizes alone.
std::string name_of(const kernels::Gemm& p, const char* kind) {
  return pom::detail::concat(device_name(), " ", kind, " ", dtype_name(p.dtype), " ", p.sizes.rows(), "x",
                             p.sizes.inputs, "x", p.sizes.outputs, " in ", p.splits.count, " of ",
                             kernels::gemm_tiles(), ", revision ", kRevision);
}

std::vector<int> tiles_for(const kernels::Gemm& p) {
  std::vector<int> tiles;
  for (int i = 0; i < kernels::gemm_tiles(); ++i)
    if (kernels::gemm_tile_fits(p.sizes, i)) tiles.push_back(i + 1);
  return tiles;
}

// The least time of some rounds that go over all tiles, so that a slow moment is no tile's fault.
int fastest(kernels::Gemm p, const std::vector<int>& tiles, cudaStream_t stream,
            const std::function<cudaError_t(const kernels::Gemm&)>& run) {
  int best = 0;
  std::map<int, float> least;
  for (const int tile : tiles) {  // warms up; a part of a GPU may have no room for a cluster
    p.tile = tile;
    if (run(p) == cudaSuccess)
      least[tile] = std::numeric_limits<float>::max();
    else
      static_cast<void>(cudaGetLastError());
  }
  for (int round = 0; round < kRounds; ++round)
    for (auto& [tile, ms] : least) {
      Event start, end;
      p.tile = tile;
      start.record(stream);
      for (int n = 0; n < kLaunches; ++n) detail::check_launch("tuning", run(p));
      end.record(stream);
      ms = std::min(ms, end.since(start));
    }
  for (const auto& [tile, ms] : least)
    if (best == 0 || ms < least[best]) best = tile;
  return best;
}

}  // namespace

void tune(kernels::Gemm& p, const char* kind, cudaStream_t stream,
          const std::function<cudaError_t(const kernels::Gemm&)>& run) {
  static const bool off = TileCache::switched_off();
  if (off) return;
  static TileCache memory(TileCache::default_file());
  const std::string name = name_of(p, kind);
  const std::vector<int> tiles = tiles_for(p);
  const std::optional<int> known = memory.find(name);
  if (known && std::ranges::find(tiles, *known) != tiles.end()) {
    p.tile = *known;
  } else if (!detail::capturing(stream)) {
    p.tile = fastest(p, tiles, stream, run);
    if (p.tile > 0) memory.keep(name, p.tile);
  }
}

}  // namespace pom::ops::cuda
