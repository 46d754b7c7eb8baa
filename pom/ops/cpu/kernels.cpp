// Compiled once for each instruction set, with POM_ISA naming it; dispatch.cpp picks one at run time.
#include "pom/ops/cpu/layer_tiles.h"
#include "pom/ops/cpu/mix_rows.h"

#define POM_JOIN2(a, b) a##b
#define POM_JOIN(a, b) POM_JOIN2(a, b)
#define POM_TEXT2(a) #a
#define POM_TEXT(a) POM_TEXT2(a)

namespace pom::ops::cpu {
namespace {

template <class S>
struct Table {
  using Tile = LayerTile<Operand<S>>;
  using Acc = Arithmetic<S>;

  static std::size_t layer_scratch(const LayerArgs& a) { return Tile(a, nullptr).scratch_bytes(); }
  static void context(const LayerArgs& a, void* w, std::int64_t tile, std::int64_t g0, std::int64_t g1) {
    Tile(a, w).context(tile, g0, g1);
  }
  static void select(const LayerArgs& a, void* w, std::int64_t tile) { Tile(a, w).select(tile); }
  static std::size_t shared_bytes(const LayerArgs& a) {
    return Tile::shared_words(a) * sizeof(typename Operand<S>::Word);
  }
  static void select_gate(const LayerArgs& a, void* w, std::int64_t tile, std::int64_t g0, std::int64_t g1) {
    Tile(a, w).select_gate(tile, g0, g1);
  }
  static void select_aggregate(const LayerArgs& a, void* w, std::int64_t tile, std::int64_t c0,
                               std::int64_t c1) {
    Tile(a, w).select_aggregate(tile, c0, c1);
  }
  static void scan(const LayerArgs& a, void* w, std::int64_t tile) { Tile(a, w).scan(tile); }
  static void rescan(const LayerArgs& a, void* w, std::int64_t tile) { Tile(a, w).rescan(tile); }
  static void backward_query(const LayerArgs& a, void* w, std::int64_t tile) {
    Tile(a, w).backward_query(tile);
  }
  static void backward_context(const LayerArgs& a, void* w, std::int64_t tile) {
    Tile(a, w).backward_context(tile);
  }
  static void backward_scan(const LayerArgs& a, void* w, std::int64_t order, std::int64_t tiles) {
    Tile(a, w).backward_scan(order, tiles);
  }
  static void fold(const LayerArgs& a, const std::int64_t* sub_begin, std::int64_t segments,
                   const double* scale, void* H, std::int64_t f0, std::int64_t f1) {
    fold_subs<Acc>(a, sub_begin, segments, scale, static_cast<Acc*>(H), f0, f1);
  }
  static void walk(const LayerArgs& a, const std::int64_t* begin, std::int64_t sequences, const double* scale,
                   void* H, void* state, bool backwards, std::int64_t f0, std::int64_t f1) {
    walk_segments<Acc>(a, begin, sequences, scale, static_cast<Acc*>(H), static_cast<Acc*>(state), backwards,
                       f0, f1);
  }
  static void mix(const MixArgs& a, void* w, std::int64_t s, std::int64_t f0, std::int64_t f1) {
    MixRows<S>(a, w).forward(s, f0, f1);
  }
  static void mix_backward(const MixArgs& a, void* w, std::int64_t s, std::int64_t f0, std::int64_t f1) {
    MixRows<S>(a, w).backward(s, f0, f1);
  }

  static constexpr Kernels kernels{.isa = POM_TEXT(POM_ISA),
                                   .features_per_vector = kLanes<Acc>,
                                   .layer_scratch = layer_scratch,
                                   .context = context,
                                   .select = select,
                                   .shared_bytes = shared_bytes,
                                   .select_gate = select_gate,
                                   .select_aggregate = select_aggregate,
                                   .scan = scan,
                                   .fold = fold,
                                   .walk = walk,
                                   .rescan = rescan,
                                   .backward_query = backward_query,
                                   .backward_context = backward_context,
                                   .backward_scan = backward_scan,
                                   .mix_scratch = MixRows<S>::scratch_bytes,
                                   .mix = mix,
                                   .mix_backward = mix_backward};
};

}  // namespace

// bf16 pairs are the one thing the avx512bf16 build adds; the other dtypes come from avx512.
const Kernels* POM_JOIN(kernels_, POM_ISA)(DType dtype) {
#if defined(__AVX512BF16__)
  return dtype == DType::bf16 ? &Table<BF16>::kernels : nullptr;
#else
  switch (dtype) {
    case DType::f32:
      return &Table<float>::kernels;
    case DType::f64:
      return &Table<double>::kernels;
    case DType::bf16:
      return &Table<BF16>::kernels;
    case DType::f16:
      return &Table<F16>::kernels;
  }
  return nullptr;
#endif
}

}  // namespace pom::ops::cpu
