// 3x3 convolutions by Winograd's F(2x2, 3x3): no torch, no instruction set.
//
// A tile of 2x2 results sees 4x4 values. In one axis, with the kernel g and the values d,
//
//   U = g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2       V = d0 - d2, d1 + d2, d2 - d1, d1 - d3
//   M = U V                                                   y = M0 + M1 + M2, M1 - M2 - M3
//
// and so in both: 16 multiply-adds a tile and pair of channels in place of 36. Of a map whose pixels are all
// doubled the tile at a pixel sees d1 = d2, so that V2 is zero: 9 in place of 36. Each of the 16 (9) *points*
// is a product of matrices, tiles by channels. All sums are in fp32 and in an order that neither tiles nor
// threads change.
#pragma once

#include "pom/ops/cpu/kernels.h"

namespace pom::ops::cpu {

constexpr int kMaxWinogradTiles = 96;  // at once: their points stay in cache

struct WinogradArgs {
  std::int64_t height = 0, width = 0;  // of the result; of x half of it where it is upsampled
  std::int64_t in = 0, out = 0;        // channels, of which whole panels are taken
  bool upsampled = false;
  const void* x = nullptr;      // pixels without gaps, their channels side by side; so y, other
  const void* other = nullptr;  // added to the result, or null
  void* y = nullptr;            // may be other
  const float* weights = nullptr;
  const float* bias = nullptr;  // or null

  int points() const { return upsampled ? 9 : 16; }
  std::int64_t tile_columns() const { return (width + 1) / 2; }
  std::int64_t tiles() const { return (height + 1) / 2 * tile_columns(); }
};

struct WinogradKernels {
  // Weights (out, in, 3, 3) by their strides into points() * in * out values.
  void (*pack)(const WinogradArgs&, const float* weights, const std::int64_t* strides, float* packed);
  std::size_t (*scratch)(const WinogradArgs&);
  // Tiles begin … end of the picture, at most kMaxWinogradTiles of them.
  void (*run)(const WinogradArgs&, void* scratch, std::int64_t begin, std::int64_t end);
};

const WinogradKernels& winograd_table(DType dtype);  // of x, y and other; fp64 has none

}  // namespace pom::ops::cpu
