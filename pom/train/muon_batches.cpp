#include "pom/train/muon_batches.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

namespace pom::train {
namespace {

using ops::cuda::MuonMatrix;

// Of a round, in values of the GEMMs: large enough that launches cost nothing, and at most a quarter of a
// gigabyte, which there are two of, beside the Gram matrices.
constexpr std::int64_t most_values = std::int64_t{1} << 27;

bool tall(const MuonMatrix& m) {
  return m.rows > m.columns;
}

at::Tensor matrix(const at::Tensor& flat, std::int64_t begin, const MuonMatrix& m) {
  return flat.narrow(0, begin, m.rows * m.columns).view({m.rows, m.columns});
}
at::Tensor of_x(const at::Tensor& x, const MuonMatrix& m) {  // (rows, columns)
  const at::Tensor part = x.narrow(0, m.x, m.rows * m.columns);
  return tall(m) ? part.view({m.columns, m.rows}).t() : part.view({m.rows, m.columns});
}

}  // namespace

at::Tensor MuonBatches::Batch::of_x(const at::Tensor& values) const {
  return values.narrow(0, x, count * n * longer).view({count, n, longer});
}
at::Tensor MuonBatches::Batch::of_gram(const at::Tensor& values) const {
  return values.narrow(0, gram, count * n * n).view({count, n, n});
}

MuonBatches::MuonBatches(std::vector<MuonPlace> places, bool one_by_one, c10::Device device,
                         at::ScalarType dtype, const std::vector<ops::cuda::CopiedMatrix>& copies)
    : products_(device.is_cuda() && dtype == at::kFloat ? at::kBFloat16 : dtype) {
  const auto shape = [](const MuonPlace& p) { return std::minmax(p.rows, p.columns); };
  std::ranges::stable_sort(places, [&](const MuonPlace& a, const MuonPlace& b) {
    return std::pair<std::int64_t, std::int64_t>(shape(a)) > std::pair<std::int64_t, std::int64_t>(shape(b));
  });
  std::size_t written = 0;
  for (const MuonPlace& place : places) {
    const auto found = std::ranges::find(copies, place.p, &ops::cuda::CopiedMatrix::begin);
    written += found != copies.end();
    add(place, one_by_one, found != copies.end() ? *found : ops::cuda::CopiedMatrix());
  }
  for (Round& round : rounds_) {
    std::vector<ops::cuda::MuonGram> grams;
    for (const Batch& each : round.batches) grams.push_back({each.gram, each.n});
    if (dtype == at::kFloat) round.table = ops::cuda::muon_table(round.matrices, device);
    if (round.table.matrices.defined()) round.grams = ops::cuda::muon_grams(grams, device);
    kernels_ = round.table.matrices.defined();
  }
  writes_all_ = kernels_ && written == copies.size();
}

void MuonBatches::add(const MuonPlace& place, bool one_by_one, ops::cuda::CopiedMatrix copies) {
  const std::int64_t n = std::min(place.rows, place.columns), longer = std::max(place.rows, place.columns);
  if (rounds_.empty() || rounds_.back().x + n * longer > most_values) rounds_.emplace_back();
  Round& round = rounds_.back();
  if (one_by_one || round.batches.empty() || round.batches.back().n != n ||
      round.batches.back().longer != longer)
    round.batches.push_back({round.x, round.gram, 0, n, longer});
  ++round.batches.back().count;
  const double size = 0.2 * std::sqrt(static_cast<double>(longer));
  round.matrices.push_back(
      {place.p, place.g, place.own, round.x, place.rows, place.columns, size, std::move(copies)});
  round.x += n * longer, round.gram += n * n;
}

std::size_t MuonBatches::gemms() const {
  std::size_t batches = 0;
  for (const Round& round : rounds_) batches += round.batches.size();
  return 3 * muon_iterations * batches;
}

void MuonBatches::directions(const Round& round, const MuonNumbers& n, const at::Tensor& scale,
                             const at::Tensor& g, const at::Tensor& m, const at::Tensor& x) const {
  if (kernels_) return ops::cuda::muon_directions(round.table, g, m, scale, n.momentum, muon_least_norm, x);
  for (const MuonMatrix& each : round.matrices) {
    const at::Tensor scaled = matrix(g, each.g, each) * scale, moment = matrix(m, each.own, each);
    moment.lerp_(scaled, 1 - n.momentum);
    const at::Tensor u = scaled.lerp_(moment, n.momentum);
    of_x(x, each).copy_(u / at::linalg_vector_norm(u).clamp_min(muon_least_norm));
  }
}

void MuonBatches::polynomial(const Round& round, const at::Tensor& gram, const at::Tensor& squares) const {
  const auto [a, b, c] = muon_polynomial;
  if (kernels_) return ops::cuda::muon_polynomial(round.grams, gram, squares, a, b, c);
  squares.mul_(c).add_(gram, b);
  for (const Batch& each : round.batches) each.of_gram(squares).diagonal(0, 1, 2).add_(a);
}

// The a·x of the polynomial is part of its last product: a on the diagonal of what x is multiplied with.
at::Tensor MuonBatches::orthogonal(const Round& round, at::Tensor x) const {
  at::Tensor next = at::empty({round.x}, x.options());
  const at::Tensor gram = at::empty({round.gram}, x.options()),
                   squares = at::empty({round.gram}, x.options());
  for (int i = 0; i < muon_iterations; ++i) {
    for (const Batch& each : round.batches) {
      const at::Tensor from = each.of_x(x), product = each.of_gram(gram);
      at::Tensor to = product, square = each.of_gram(squares);
      at::bmm_out(to, from, from.transpose(1, 2));
      at::bmm_out(square, product, product);
    }
    polynomial(round, gram, squares);
    for (const Batch& each : round.batches) {
      at::Tensor to = each.of_x(next);
      at::bmm_out(to, each.of_gram(squares), each.of_x(x));
    }
    std::swap(x, next);
  }
  return x;
}

void MuonBatches::update(const Round& round, const MuonNumbers& n, const at::Tensor& p, const at::Tensor& x,
                         const at::Tensor& average) const {
  const at::Tensor numbers = n.there.defined() ? n.there : changing_numbers(n).to(p.options());
  if (kernels_) return ops::cuda::muon_update(round.table, p, x, average, numbers);
  for (const MuonMatrix& each : round.matrices) {
    const at::Tensor values = matrix(p, each.p, each);
    values.mul_(numbers[0]).addcmul_(of_x(x, each).to(p.scalar_type()), numbers[1], each.size);
    if (average.defined()) matrix(average, each.own, each).lerp_(values, numbers[2]);
  }
}

void MuonBatches::step(const MuonNumbers& n, const at::Tensor& scale, const at::Tensor& p,
                       const at::Tensor& g, const at::Tensor& m, const at::Tensor& average) const {
  for (const Round& round : rounds_) {
    const at::Tensor x = at::empty({round.x}, p.options().dtype(products_));
    directions(round, n, scale, g, m, x);
    update(round, n, p, orthogonal(round, x), average);
  }
}

}  // namespace pom::train
