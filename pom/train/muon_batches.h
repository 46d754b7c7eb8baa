// Muon's step (muon.h) of all matrices at once, for a GPU: matrices of one shape, whatever their role and
// whether they stand or lie, are one batch of each GEMM, and what stands between the GEMMs is one launch for
// all. Kernels in fp32 on CUDA, elsewhere composed operations: the same steps, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/ops/cuda/muon.h"
#include "pom/train/muon.h"

namespace pom::train {

// Where a matrix begins in the parameters, in their gradients, and in the moment and the average.
struct MuonPlace {
  std::int64_t p = 0, g = 0, own = 0;
  std::int64_t rows = 0, columns = 0;
};

class MuonBatches {
 public:
  // `one_by_one`: no GEMM has more than one matrix, so that the bits of none depend on the others. `copies`
  // are written with their matrices, which they belong to by where these begin in the parameters.
  MuonBatches(std::vector<MuonPlace> places, bool one_by_one, c10::Device device, at::ScalarType dtype,
              const std::vector<ops::cuda::CopiedMatrix>& copies = {});

  // Changes p, m and the average (undefined: none); all are flat.
  void step(const MuonNumbers& numbers, const at::Tensor& scale, const at::Tensor& p, const at::Tensor& g,
            const at::Tensor& m, const at::Tensor& average) const;

  bool kernels() const { return kernels_; }
  bool writes_all() const { return writes_all_; }  // of the copies
  std::size_t gemms() const;                       // calls of a batched GEMM in a step

 private:
  // Of one shape: x (count, n, longer), its Gram matrices (count, n, n).
  struct Batch {
    std::int64_t x = 0, gram = 0, count = 0, n = 0, longer = 0;
    at::Tensor of_x(const at::Tensor& values) const;
    at::Tensor of_gram(const at::Tensor& values) const;
  };
  // As many as working memory is spent on.
  struct Round {
    std::vector<ops::cuda::MuonMatrix> matrices;
    std::vector<Batch> batches;
    std::int64_t x = 0, gram = 0;  // values
    ops::cuda::MuonTable table;
    ops::cuda::MuonGrams grams;
  };
  void add(const MuonPlace& place, bool one_by_one, ops::cuda::CopiedMatrix copies);
  void directions(const Round& round, const MuonNumbers& numbers, const at::Tensor& scale,
                  const at::Tensor& g, const at::Tensor& m, const at::Tensor& x) const;
  at::Tensor orthogonal(const Round& round, at::Tensor x) const;
  void polynomial(const Round& round, const at::Tensor& gram, const at::Tensor& squares) const;
  void update(const Round& round, const MuonNumbers& numbers, const at::Tensor& p, const at::Tensor& x,
              const at::Tensor& average) const;

  std::vector<Round> rounds_;
  at::ScalarType products_;  // dtype of the GEMMs
  bool kernels_ = false, writes_all_ = false;
};

}  // namespace pom::train
