#include "pom/ops/cuda/weight_copies.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "pom/ops/cuda/launch.h"
#include "pom/ops/cuda/weight_parts.h"

namespace pom::ops::cuda {
namespace {

kernels::WeightPart part_of(const CopiedMatrix& m, std::int64_t begin) {
  const auto data = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
  kernels::WeightPart part;
  part.begin = m.begin - begin, part.rows = m.rows, part.columns = m.columns;
  part.plain = data(m.plain), part.transposed = data(m.transposed), part.context = data(m.context);
  part.order = static_cast<int>(m.order);
  return part;
}

WeightTable on_device(std::vector<kernels::WeightPart> parts, c10::Device device) {
  const std::int64_t tiles = kernels::number_tiles(parts);
  const at::Tensor host = at::empty({static_cast<std::int64_t>(parts.size() * sizeof(kernels::WeightPart))},
                                    at::TensorOptions(at::kByte));
  std::memcpy(host.mutable_data_ptr(), parts.data(), parts.size() * sizeof(kernels::WeightPart));
  return {host.to(device), static_cast<int>(parts.size()), tiles};
}

}  // namespace

kernels::WeightParts weight_parts(const WeightTable& table) {
  if (!table.parts.defined()) return {};
  return {static_cast<const kernels::WeightPart*>(table.parts.const_data_ptr()), table.count, table.tiles};
}

WeightTable table_of(const std::vector<CopiedMatrix>& matrices, std::int64_t begin, std::int64_t end,
                     c10::Device device) {
  if (!device.is_cuda() || matrices.empty()) return {};
  std::vector<kernels::WeightPart> parts;
  std::int64_t at = begin;
  const auto between = [&](std::int64_t to) {
    kernels::WeightPart part;
    part.begin = at - begin, part.rows = to - at;
    if (part.rows > 0) parts.push_back(part);
  };
  for (const CopiedMatrix& m : matrices) {
    between(m.begin);
    parts.push_back(part_of(m, begin));
    at = m.begin + m.rows * m.columns;
  }
  between(end);
  return on_device(std::move(parts), device);
}

WeightTable table_of(const std::vector<CopiedMatrix>& matrices, c10::Device device) {
  if (!device.is_cuda() || matrices.empty()) return {};
  std::vector<kernels::WeightPart> parts;
  for (const CopiedMatrix& m : matrices) parts.push_back(part_of(m, 0));
  return on_device(std::move(parts), device);
}

bool lower_weights(const at::Tensor& flat, const WeightTable& matrices) {
  if (!matrices.parts.defined()) return false;
  const detail::OnDevice device(flat);
  detail::check_launch(
      "lower_weights",
      kernels::lower_weights({flat.const_data_ptr<float>(), weight_parts(matrices)}, device.stream()));
  return true;
}

bool capturing(c10::Device device) {
  if (!device.is_cuda()) return false;
  const c10::cuda::CUDAGuard guard(device);
  return detail::capturing(c10::cuda::getCurrentCUDAStream().stream());
}

}  // namespace pom::ops::cuda
