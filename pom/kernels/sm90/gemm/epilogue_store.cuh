// The epilogue that stores a tile, as it is or through GELU: see StoreEpilogue in gemm.h.
#pragma once

#include "pom/kernels/sm90/gemm/epilogue_parts.cuh"

namespace pom::kernels {

template <class In, class Out, Keeps keeps>
struct StoreEpilogueOf {
  static_assert(keeps != Keeps::any);
  static constexpr bool kPassing = keeps == Keeps::before;
  struct Params {
    Affine affine;
    Out* out;
    Wide<In>* before;
    const float* out_scale;
    bool gelu;
  };
  // 1 / what the columns are multiplied by
  __device__ static float back_of(const Params& p) {
    const float back = p.gelu ? 1 / kFold<In> : 1.0f;
    if constexpr (kScaled<Out>) return back * *p.out_scale;
    return back;
  }
  template <class Traits>
  __device__ static void prepare(const GemmShape& s, const TilePlace& at, const Params& p) {
    prepare_columns<Traits>(s, at, p.affine, nullptr, 1 / back_of(p));
  }
  struct Nothing {};
  struct Gelu {
    FoldedGelu scaled;
    __device__ Nothing at(int) const { return {}; }
    __device__ float2 operator()(int, int, int, float2 v, Nothing) const {
      if constexpr (kScaled<Out>) return make_float2(scaled(v.x), scaled(v.y));
      if constexpr (std::is_same_v<In, __half>) return make_float2(gelu<__half>(v.x), gelu<__half>(v.y));
      return make_float2(FoldedGelu(2)(v.x), FoldedGelu(2)(v.y));
    }
  };
  struct Same {
    __device__ Nothing at(int) const { return {}; }
    __device__ float2 operator()(int, int, int, float2 v, Nothing) const { return v; }
  };
  // One branch for all values: with one for each there would be nothing to overlap.
  template <class Traits, class Acc>
  __device__ static void apply(Acc& acc, const GemmShape& s, const TilePlace& at, const Params& p) {
    const float back = back_of(p), factor = p.gelu ? kFold<In> : 1.0f;  // scaled columns have theirs
    // Always so; but without the branch the compiler would keep values from one pass to the next, and spill.
    if (keeps == Keeps::before && p.before)
      store_tile<Traits, kPassing>(acc, s, at, p.affine, p.before, Plain{back}, factor);
    if (p.gelu)
      store_tile<Traits, kPassing>(acc, s, at, p.affine, p.out, Gelu{FoldedGelu(back)}, factor);
    else
      store_tile<Traits, kPassing>(acc, s, at, p.affine, p.out, Same(), factor);
  }
};

}  // namespace pom::kernels
