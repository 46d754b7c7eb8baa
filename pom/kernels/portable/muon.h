// Muon's step of many matrices but for its products: three launches before them, one between two products for
// all matrices at once, one after. The products are batched GEMMs of whoever calls this.
//
// Matrices are (rows, columns) in fp32, in flat buffers; a GEMM sees them in bf16 as (short, long),
// transposed where there are more rows than columns, so that the Gram matrix (short, short) is the smaller
// one.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

#include "pom/kernels/portable/weight_copies.h"

namespace pom::kernels {

struct MuonMatrix {
  int64_t p = 0, g = 0, own = 0;  // where it begins in p, in g, in m and the average
  int64_t x = 0;                  // and in the values of the GEMMs
  int64_t rows = 0, columns = 0;
  float size = 0;          // of an update, times the learning rate
  WeightPart copies;       // written with the new values; its own begin and tiles do not count
  int64_t first_tile = 0;  // see number_tiles()
};
int64_t number_tiles(std::vector<MuonMatrix>& matrices);

struct MuonTable {
  const MuonMatrix* matrices = nullptr;  // on the device
  int count = 0;
  int64_t tiles = 0;
};

// m = momentum m + (1 - momentum) g *scale; u = momentum m + (1 - momentum) g *scale, never stored; x = u
// over its Frobenius norm, or 0 where that is 0. Sums have an order that depends on the matrix alone.
struct MuonDirectionParams {
  MuonTable table;
  const float* g = nullptr;
  float* m = nullptr;
  const float* scale = nullptr;  // one value
  double momentum = 0.95, least_norm = 1e-7;
  float* partial = nullptr;  // (tiles)
  float* inverse = nullptr;  // (count)
  void* x = nullptr;         // bf16
};
cudaError_t muon_directions(const MuonDirectionParams& params, cudaStream_t stream);

// Of Gram matrices and their squares, in bf16: squares = b gram + c square + a on the diagonal.
struct MuonGrams {
  int64_t begin = 0, n = 0;  // of matrices (n, n), one after another up to the next ones
};
struct MuonPolynomialParams {
  const MuonGrams* grams = nullptr;  // on the device, in order and without gaps from 0 on
  int count = 0;
  int64_t values = 0;   // in all
  bool eights = false;  // every n is a multiple of 8
  const void* gram = nullptr;
  void* squares = nullptr;
  double a = 0, b = 0, c = 0;
};
cudaError_t muon_polynomial(const MuonPolynomialParams& params, cudaStream_t stream);

// p = kept p - lr size x; average += weight (p - average); and the copies of p. numbers: kept, -lr and
// weight, on the device, so that a step can be part of a graph.
struct MuonUpdateParams {
  MuonTable table;
  float* p = nullptr;
  const void* x = nullptr;
  float* average = nullptr;  // null: none
  const float* numbers = nullptr;
};
cudaError_t muon_update(const MuonUpdateParams& params, cudaStream_t stream);

}  // namespace pom::kernels
