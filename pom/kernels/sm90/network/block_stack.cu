// The orders of a block stack: buffers, counters, the table of units, the phases; and the launch.
#include <algorithm>
#include <cstring>
#include <vector>

#include "pom/kernels/portable/residual_norm.h"
#include "pom/kernels/sm90/network/block_stack_kernel.cuh"
#include "pom/kernels/sm90/network/block_stack_launch.h"

namespace pom::kernels {
namespace {

int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::e4m3 ? 1 : 2;
}
int64_t up_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// What follows from the sizes alone.
struct Plan {
  int splits = 1;
  int bands = 0, places = 0;  // counters of a phase
  int norm_rows = 4;          // of a block in a unit
  int lag = 0;                // bands by which norms follow the product before them
  bool means = false;         // a phase of their own
  int step = 64;              // inputs of a step

  int tiles(int64_t n) const { return static_cast<int>((n + kBlockStackColumns - 1) / kBlockStackColumns); }
  int norm_units() const { return bands * (kBandRows / (kAbove * norm_rows)); }
  int means_each(const BlockStack& c) const {
    return static_cast<int>((c.features + kAbove * kMeanColumns - 1) / (kAbove * kMeanColumns));
  }
};

int chosen_splits(const BlockStack& c, const Plan& p, int clusters) {
  const auto steps = [&](int64_t inputs) { return (inputs + p.step - 1) / p.step; };
  int best = 1;
  double least = 0;
  for (const int splits : {1, 2, 4}) {
    if (steps(c.features) % splits != 0 || steps(c.hidden) % splits != 0) continue;
    const int units = p.bands * p.tiles(c.width) * splits;
    const double turns = (units + clusters - 1) / clusters;
    // The norm adds up the parts; and it runs beside the product where that takes more than one turn.
    const double alone = units <= clusters && p.step == 64 ? 0.06 : 0.0;
    const double cost = turns / splits + 0.015 * (splits - 1) + alone;
    if (least == 0 || cost < least) best = splits, least = cost;
  }
  return best;
}

Plan plan_of(const BlockStack& c) {
  Plan p;
  const int clusters = std::max(1, processors() / kAbove);
  p.step = static_cast<int>(128 / bytes_of(c.dtype));
  p.bands = static_cast<int>((c.rows() + kBandRows - 1) / kBandRows);
  p.places = std::max(p.bands, static_cast<int>(c.batch));
  p.splits = c.splits > 0 ? c.splits : chosen_splits(c, p, clusters);
  while (p.norm_rows < 64 && c.rows() >= int64_t{8} * clusters * p.norm_rows) p.norm_rows *= 2;
  const int each = p.tiles(c.width) * p.splits;  // units of a band under way: two of a cluster
  p.lag = 2 * clusters / each + 2;
  const GemmSizes sizes{c.batch, c.tokens, c.width, c.features};
  p.means = c.dtype == Dtype::e4m3 || !gate_takes_sums(sizes, {});
  return p;
}

// ---- memory ----

struct Layout {
  int64_t normal, wide, hidden, y, row_scale, partial[2], H[2], counters, largest, end;
  int64_t reset() const { return end - counters; }  // bytes to be zero at the start
};

Layout layout_of(const BlockStack& c, const Plan& p) {
  constexpr int64_t kAlign = 256;
  Layout l{};
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t here = at;
    at = up_to(at + bytes, kAlign);
    return here;
  };
  const int64_t rows = c.rows(), size = bytes_of(c.dtype);
  l.normal = take(rows * c.width * size);
  l.wide = take(rows * c.features * size);
  l.hidden = c.hidden == c.features ? l.wide : take(rows * c.hidden * size);
  l.y = take(p.splits * rows * c.width * 2);
  l.row_scale = take(c.dtype == Dtype::e4m3 ? 4 * rows : 0);
  const int64_t slots = sums_slots({c.batch, c.tokens, c.width, c.features}, {});
  for (int64_t& partial : l.partial) partial = take(slots * c.features * 4);
  for (int64_t& H : l.H) H = take(p.means ? c.batch * c.features * 4 : 0);
  l.counters = take(int64_t{4} * c.count * kBlockStackPhases * p.places);
  l.largest = take(int64_t{4} * c.count * c.batch);
  l.end = at;
  return l;
}

// ---- the table ----

std::vector<BlockStackUnit> table_of(const BlockStack& c, const Plan& p) {
  std::vector<BlockStackUnit> table;
  const auto add = [&](int phase, int steps, int from, int to) {
    for (int i = from; i < to; ++i)
      table.push_back({static_cast<uint16_t>(phase), static_cast<uint16_t>(steps), i});
  };
  const auto steps = [&](int64_t inputs) { return static_cast<int>((inputs + p.step - 1) / p.step); };
  // A product back to d and the norm that follows it some bands behind.
  const auto with_norm = [&](int phase, int64_t inputs) {
    const int each = p.tiles(c.width) * p.splits, norms = p.norm_units() / p.bands;
    for (int band = 0; band < p.bands + p.lag; ++band) {
      if (band < p.bands) add(phase, steps(inputs) / p.splits, band * each, (band + 1) * each);
      if (const int behind = band - p.lag; behind >= 0)
        add(phase + 1, 0, behind * norms, (behind + 1) * norms);
    }
  };
  add(0, steps(c.width), 0, p.bands * p.tiles(c.features));
  if (p.means) add(1, 0, 0, static_cast<int>(c.batch) * p.means_each(c));
  add(2, steps(c.width), 0, p.bands * p.tiles(c.features));
  with_norm(3, c.features);
  add(5, steps(c.width), 0, p.bands * p.tiles(c.hidden));
  with_norm(6, c.hidden);
  return table;
}

int block_units(const BlockStack& c, const Plan& p) {
  const int wide = p.bands * p.tiles(c.features), back = p.bands * p.tiles(c.width) * p.splits;
  const int means = p.means ? static_cast<int>(c.batch) * p.means_each(c) : 0;
  return 2 * wide + means + 2 * back + 2 * p.norm_units() + p.bands * p.tiles(c.hidden);
}

// ---- the phases ----

struct Writer {
  const BlockStack& c;
  const Plan p;
  const Layout l;
  BlockStackPhase* phases;
  cudaError_t worst = cudaSuccess;

  char* at(int64_t offset) const { return static_cast<char*>(c.workspace) + offset; }
  float* floats(int64_t offset) const { return reinterpret_cast<float*>(at(offset)); }
  int* counters(int block, int phase) const {
    return reinterpret_cast<int*>(at(l.counters)) + (block * kBlockStackPhases + phase) * p.places;
  }
  bool e4m3() const { return c.dtype == Dtype::e4m3; }

  template <class In>
  static float factor_of(BlockStackKind kind) {
    if (kind == BlockStackKind::sums || kind == BlockStackKind::gelu) return BlockStackGelu<In>::kFactor;
    return kind == BlockStackKind::gate ? kFold<In> : 1.0f;
  }
  float factor_of(BlockStackKind kind) const {
    return e4m3() ? factor_of<__nv_fp8_e4m3>(kind) : factor_of<__nv_bfloat16>(kind);
  }

  BlockStackPhase& gemm(int block, int phase, BlockStackKind kind, const BlockStackMatrix& m, const void* a,
                        int64_t inputs, int64_t outputs) {
    BlockStackPhase& f = phases[block * kBlockStackPhases + phase];
    f.kind = kind;
    f.columns = static_cast<int>(outputs), f.column_tiles = p.tiles(outputs);
    f.splits = kind == BlockStackKind::store ? p.splits : 1;
    f.done = counters(block, phase);
    f.affine = {m.bias, nullptr, m.w_scale, 1};
    f.factor = f.bias_factor = factor_of(kind);
    const cudaError_t maps[] = {
        tensor_map(&f.a, a, c.dtype, c.rows(), inputs, kTileRows, false),
        tensor_map(&f.w, m.w, c.dtype, outputs, inputs, kBlockStackColumns / kAbove, false)};
    for (const cudaError_t e : maps) worst = worst == cudaSuccess ? e : worst;
    return f;
  }
  // The rows that a product reads are those of a product or a norm before.
  void reads(BlockStackPhase& f, int block, int phase, int count) const {
    f.ready = counters(block, phase), f.ready_count = count;
  }
  int counts(int64_t outputs, int splits = 1) const { return kAbove * p.tiles(outputs) * splits; }
  int norm_counts() const { return kBandRows / p.norm_rows; }

  void norm(int block, int phase, const float* gate, const float* scale, const float* shift) {
    BlockStackPhase& f = phases[block * kBlockStackPhases + phase];
    f.kind = BlockStackKind::norm, f.splits = p.splits;
    f.done = counters(block, phase);
    reads(f, block, phase - 1, counts(c.width, p.splits));
    f.y = at(l.y), f.gate = gate, f.scale = scale, f.shift = shift;
    f.normal = scale ? at(l.normal) : nullptr, f.row_scale = floats(l.row_scale);
  }

  void mixer(int block) {
    const BlockStackBlock& b = c.blocks[block];
    float *const partial = floats(l.partial[block % 2]), *const H = floats(l.H[block % 2]);
    float* const largest = e4m3() ? floats(l.largest) + block * c.batch : nullptr;
    BlockStackPhase& sums =
        gemm(block, 0, BlockStackKind::sums, b.context, at(l.normal), c.width, c.features);
    BlockStackPhase& gate = gemm(block, 2, BlockStackKind::gate, b.select, at(l.normal), c.width, c.features);
    for (BlockStackPhase* f : {&sums, &gate}) {
      if (block > 0) reads(*f, block - 1, 7, norm_counts());
      f->affine.a_scale = floats(l.row_scale);
    }
    sums.partial = partial;
    gate.out = at(l.wide), gate.out_scale = largest;
    if (p.means) {
      BlockStackPhase& means = phases[block * kBlockStackPhases + 1];
      means.kind = BlockStackKind::means, means.columns = static_cast<int>(c.features);
      means.done = counters(block, 1);
      means.sums_ready = counters(block, 0), means.sums_count = counts(c.features);
      means.partial = partial, means.H = H, means.largest = largest;
      gate.H = H, gate.sums_ready = means.done, gate.sums_count = kAbove * p.means_each(c);
    } else {
      gate.partial = partial, gate.sums_ready = counters(block, 0), gate.sums_count = counts(c.features);
    }
    BlockStackPhase& back =
        gemm(block, 3, BlockStackKind::store, b.aggregate, at(l.wide), c.features, c.width);
    reads(back, block, 2, counts(c.features));
    back.out = at(l.y), back.affine.a_scale = largest, back.affine.scale_rows = static_cast<int>(c.tokens);
    norm(block, 4, b.mixing_gate, b.feeding_scale, b.feeding_shift);
  }

  void feed_forward(int block) {
    const BlockStackBlock& b = c.blocks[block];
    BlockStackPhase& up = gemm(block, 5, BlockStackKind::gelu, b.up, at(l.normal), c.width, c.hidden);
    reads(up, block, 4, norm_counts());
    up.affine.a_scale = floats(l.row_scale), up.out = at(l.hidden), up.out_scale = b.hidden_scale;
    BlockStackPhase& back = gemm(block, 6, BlockStackKind::store, b.down, at(l.hidden), c.hidden, c.width);
    reads(back, block, 5, counts(c.hidden));
    back.out = at(l.y), back.affine.a_scale = b.hidden_scale;
    back.affine.scale_rows = static_cast<int>(c.rows());
    back.factor = e4m3() ? BlockStackGelu<__nv_fp8_e4m3>::kOwed : BlockStackGelu<__nv_bfloat16>::kOwed;
    const bool last = block + 1 == c.count;
    norm(block, 7, b.feeding_gate, last ? nullptr : c.blocks[block + 1].mixing_scale,
         last ? nullptr : c.blocks[block + 1].mixing_shift);
  }
};

int64_t phases_size(const BlockStack& c) {
  return int64_t{sizeof(BlockStackPhase)} * kBlockStackPhases * c.count;
}

}  // namespace

bool block_stack_supported(const BlockStack& c) {
  if (c.dtype != Dtype::bf16 && c.dtype != Dtype::e4m3) return false;  // y would leave the range of fp16
  if (c.count < 1 || c.rows() < 1 || c.tokens % kTileRows != 0 || c.width > kBlockStackWidest ||
      c.width % 8 != 0)
    return false;
  if (c.order < 2 || c.order > 4 || c.features % (8 * c.order) != 0 || c.rows() >= (1 << 22)) return false;
  static const char aligned[16] = {};
  const auto has = [&](int64_t inputs, int64_t outputs) {
    Gemm p;
    p.sizes = {c.batch, c.tokens, inputs, outputs}, p.dtype = c.dtype;
    p.a_scale = p.w_scale = reinterpret_cast<const float*>(aligned);
    return gemm_supported(p) && outputs % 8 == 0;
  };
  return has(c.width, c.features) && has(c.features, c.width) && has(c.width, c.hidden) &&
         has(c.hidden, c.width) && c.stride % 4 == 0 && c.batch * c.tokens / kTileRows < (1 << 20);
}

int64_t block_stack_workspace(const BlockStack& c) {
  return layout_of(c, plan_of(c)).end;
}
int64_t block_stack_orders_size(const BlockStack& c) {
  return phases_size(c) + int64_t{sizeof(BlockStackUnit)} * block_units(c, plan_of(c));
}

cudaError_t block_stack_write_orders(const BlockStack& c, void* orders) {
  if (!block_stack_supported(c) || !c.workspace || !c.blocks || !c.x) return cudaErrorInvalidValue;
  const Plan p = plan_of(c);
  for (const int64_t inputs : {c.features, c.hidden})
    if ((inputs + p.step - 1) / p.step % p.splits != 0) return cudaErrorInvalidValue;
  std::vector<BlockStackPhase> phases(static_cast<size_t>(kBlockStackPhases) * c.count);
  Writer writer{c, p, layout_of(c, p), phases.data()};
  for (int block = 0; block < c.count; ++block) writer.mixer(block), writer.feed_forward(block);
  if (writer.worst != cudaSuccess) return writer.worst;
  const std::vector<BlockStackUnit> table = table_of(c, p);
  std::memcpy(orders, phases.data(), static_cast<size_t>(phases_size(c)));
  std::memcpy(static_cast<char*>(orders) + phases_size(c), table.data(),
              sizeof(BlockStackUnit) * table.size());
  return cudaSuccess;
}

cudaError_t block_stack_run(const BlockStack& c, const void* orders, cudaStream_t stream) {
  if (!block_stack_supported(c) || !orders || !c.workspace) return cudaErrorInvalidValue;
  const Plan p = plan_of(c);
  const Layout l = layout_of(c, p);
  char* const memory = static_cast<char*>(c.workspace);
  if (const cudaError_t e = cudaMemsetAsync(memory + l.counters, 0, static_cast<size_t>(l.reset()), stream);
      e != cudaSuccess)
    return e;
  StreamNormParams first;
  first.batch = c.batch, first.tokens = c.tokens, first.width = c.width, first.x = c.x;
  first.scale = c.blocks[0].mixing_scale, first.shift = c.blocks[0].mixing_shift;
  first.stride = c.stride, first.eps = c.eps, first.out_dtype = c.dtype, first.out = memory + l.normal;
  if (c.dtype == Dtype::e4m3) first.row_scale = reinterpret_cast<float*>(memory + l.row_scale);
  if (const cudaError_t e = stream_norm(first, stream); e != cudaSuccess) return e;
  BlockStackShape s{};
  s.rows = static_cast<int>(c.rows()), s.tokens = static_cast<int>(c.tokens);
  s.batch = static_cast<int>(c.batch), s.width = static_cast<int>(c.width);
  s.norm_rows = p.norm_rows, s.eps = c.eps, s.stride = c.stride, s.x = c.x;
  s.block_units = block_units(c, p), s.units = s.block_units * c.count;
  s.phases = static_cast<const BlockStackPhase*>(orders);
  s.table = reinterpret_cast<const BlockStackUnit*>(static_cast<const char*>(orders) + phases_size(c));
  if (c.dtype == Dtype::bf16) return launch_block_stack_bf16(s, c.order, stream);
  return launch_block_stack_e4m3(s, c.order, stream);
}

}  // namespace pom::kernels
