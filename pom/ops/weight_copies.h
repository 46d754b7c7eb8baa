// Copies in bf16 of fp32 weights that are trained, kept by whoever trains them for the GEMMs that read them:
// what changes the weights writes the copies too, instead of a cast in every step. A GEMM says which it
// reads by asking; what nobody asks for is not made.
//
// A copy can not be older than its weight: changes in place are seen by the version counters of the weight
// and of the flat memory that it lies in. find() looks before it answers, and a graph that reads copies is
// launched after refresh_all(). Who writes through a raw pointer has to call bump_version on the flat memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/ops/cuda/weight_copies.h"

namespace pom::ops {

enum class CopyForm {
  plain,
  transposed,
  context,  // rows in the order of pom/kernels/common/context_order.h
};

class WeightCopies {
 public:
  // Of those of `weights` that are matrices in fp32. All lie in `flat` (n), and no two of them overlap.
  WeightCopies(at::Tensor flat, std::span<const at::Tensor> weights);
  ~WeightCopies();
  WeightCopies(const WeightCopies&) = delete;
  WeightCopies& operator=(const WeightCopies&) = delete;

  // The copy of a weight, as new as the weight; undefined where nobody keeps copies of it in `dtype`, or
  // where a graph is being captured and nobody has asked before. From any thread. `order`: of a context.
  static at::Tensor find(const at::Tensor& weight, at::ScalarType dtype, CopyForm form,
                         std::int64_t order = 0);

  // Makes those anew that are older than their weights; refresh_all: of all there are.
  void refresh();
  static void refresh_all();

  // For who changes the weights: the copies there are, in their places in `flat`. Once all of them have been
  // written, written() says so.
  std::vector<cuda::CopiedMatrix> copied() const;
  // The same as a table for kernels that go over flat from `begin` on; none where there is no copy there or
  // no kernel.
  const cuda::WeightTable& table(std::int64_t begin);
  void written();

  std::int64_t bytes() const;

 private:
  struct Copy {
    CopyForm form;
    std::int64_t order;
    at::Tensor values;
  };
  struct Versions {
    std::uint32_t weight = 0, flat = 0;
    bool operator==(const Versions&) const = default;
  };
  struct Matrix {
    at::Tensor weight;
    std::int64_t begin = 0;
    std::vector<Copy> copies;
    Versions made = {};  // what the copies were made of
  };
  // With the lock of all.
  Versions versions_of(const Matrix& matrix) const;
  at::Tensor copy_of(Matrix& matrix, CopyForm form, std::int64_t order);
  std::vector<cuda::CopiedMatrix> copies_from(std::int64_t begin) const;
  void make(Matrix& matrix) const;
  void refresh_locked();

  struct Table {
    std::int64_t begin;
    cuda::WeightTable table;
  };
  at::Tensor flat_;
  std::vector<Matrix> matrices_;
  std::vector<Table> tables_;  // of the copies there are
  cuda::WeightTable all_;      // of the copies alone
};

}  // namespace pom::ops
