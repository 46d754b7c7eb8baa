#include "pom/ops/cuda/muon.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "pom/kernels/portable/muon.h"
#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/weight_parts.h"

namespace pom::ops::cuda {
namespace {

template <class Entry>
at::Tensor on_device(const std::vector<Entry>& entries, c10::Device device) {
  const std::size_t bytes = entries.size() * sizeof(Entry);
  const at::Tensor host = at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte));
  std::memcpy(host.mutable_data_ptr(), entries.data(), bytes);
  return host.to(device);
}

kernels::MuonTable launched(const MuonTable& table) {
  return {static_cast<const kernels::MuonMatrix*>(table.matrices.const_data_ptr()), table.count, table.tiles};
}

at::Tensor floats(std::int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().dtype(at::kFloat));
}

}  // namespace

MuonTable muon_table(const std::vector<MuonMatrix>& matrices, c10::Device device) {
  if (!device.is_cuda() || matrices.empty()) return {};
  std::vector<kernels::MuonMatrix> entries;
  for (const MuonMatrix& m : matrices) {
    kernels::MuonMatrix entry;
    entry.p = m.p, entry.g = m.g, entry.own = m.own, entry.x = m.x;
    entry.rows = m.rows, entry.columns = m.columns, entry.size = static_cast<float>(m.size);
    entry.copies = weight_part(m.copies, 0);
    entries.push_back(entry);
  }
  const std::int64_t tiles = kernels::number_tiles(entries);
  return {on_device(entries, device), static_cast<int>(entries.size()), tiles};
}

MuonGrams muon_grams(const std::vector<MuonGram>& grams, c10::Device device) {
  if (!device.is_cuda() || grams.empty()) return {};
  std::vector<kernels::MuonGrams> entries;
  bool eights = true;
  for (const MuonGram& each : grams) {
    entries.push_back({each.begin, each.n});
    eights = eights && each.n % 8 == 0;
  }
  return {on_device(entries, device), static_cast<int>(entries.size()), eights};
}

void muon_directions(const MuonTable& table, const at::Tensor& g, const at::Tensor& m,
                     const at::Tensor& scale, double momentum, double least_norm, const at::Tensor& x) {
  const detail::OnDevice device(m);
  const at::Tensor partial = floats(table.tiles, m), inverse = floats(table.count, m);
  kernels::MuonDirectionParams p;
  p.table = launched(table);
  p.g = g.const_data_ptr<float>(), p.m = m.mutable_data_ptr<float>();
  p.scale = scale.const_data_ptr<float>(), p.momentum = momentum, p.least_norm = least_norm;
  p.partial = partial.mutable_data_ptr<float>(), p.inverse = inverse.mutable_data_ptr<float>();
  p.x = x.mutable_data_ptr();
  detail::check_launch("muon", kernels::muon_directions(p, device.stream()));
}

void muon_polynomial(const MuonGrams& grams, const at::Tensor& gram, const at::Tensor& squares, double a,
                     double b, double c) {
  const detail::OnDevice device(gram);
  kernels::MuonPolynomialParams p;
  p.grams = static_cast<const kernels::MuonGrams*>(grams.grams.const_data_ptr());
  p.count = grams.count, p.eights = grams.eights, p.values = gram.numel();
  p.gram = gram.const_data_ptr(), p.squares = squares.mutable_data_ptr();
  p.a = a, p.b = b, p.c = c;
  detail::check_launch("muon", kernels::muon_polynomial(p, device.stream()));
}

void muon_update(const MuonTable& table, const at::Tensor& p, const at::Tensor& x, const at::Tensor& average,
                 const at::Tensor& numbers) {
  const detail::OnDevice device(p);
  kernels::MuonUpdateParams u;
  u.table = launched(table);
  u.p = p.mutable_data_ptr<float>(), u.x = x.const_data_ptr();
  u.average = average.defined() ? average.mutable_data_ptr<float>() : nullptr;
  u.numbers = numbers.const_data_ptr<float>();
  detail::check_launch("muon", kernels::muon_update(u, device.stream()));
}

}  // namespace pom::ops::cuda
