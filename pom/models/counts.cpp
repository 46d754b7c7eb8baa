#include "pom/models/counts.h"

#include <algorithm>
#include <limits>

#include <ATen/Parallel.h>

#include "pom/base/error.h"
#include "pom/models/weights.h"

namespace pom::models {
namespace {

std::int64_t bytes_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}
std::int64_t stream_bytes(at::ScalarType dtype) {  // of the residual stream and of sums
  return dtype == at::kDouble ? 8 : 4;
}

std::int64_t modulations(const NetworkConfig& c) {  // scales, shifts and gates of a layer, in widths
  return c.video() ? 11 : 6;
}
std::int64_t cross_macs(const NetworkConfig& c) {  // of a token that is told a text that was read before
  if (!c.video()) return 0;
  return 2 * c.dim * (c.attention() ? c.dim : c.features());
}

}  // namespace

std::int64_t count_parameters(const NetworkConfig& config) {
  std::int64_t total = 0;
  for (const TensorSpec& tensor : expected_tensors(config)) {
    std::int64_t elements = 1;
    for (const std::int64_t n : tensor.shape) elements *= n;
    total += elements;
  }
  return total;
}

std::int64_t count_macs(const NetworkConfig& c, std::int64_t height, std::int64_t width) {
  const std::int64_t n = c.tokens(height, width), d = c.dim;
  const std::int64_t mixer = c.attention() ? 4 * d * d + 2 * n * d : 3 * c.features() * d;
  const std::int64_t token =
      (c.values() + c.outputs()) * d + c.depth * (mixer + cross_macs(c) + 2 * c.ffw_expand * d * d);
  const std::int64_t time = (c.time_inputs() + d) * c.time_hidden();
  const std::int64_t conditioning = time + c.depth * modulations(c) * d * d + 2 * d * d;
  std::int64_t macs = 0;
  const bool too_many =
      __builtin_mul_overflow(n, token, &macs) || __builtin_add_overflow(macs, conditioning, &macs);
  return too_many ? std::numeric_limits<std::int64_t>::max() : macs;
}

SamplingMemory sampling_memory(const NetworkConfig& c, std::int64_t height, std::int64_t width,
                               at::ScalarType dtype, bool guided, std::int64_t steps) {
  const std::int64_t n = c.tokens(height, width), d = c.dim, stream = stream_bytes(dtype);
  const std::int64_t pixels = c.values(), rows = guided ? 2 : 1;
  SamplingMemory m;
  m.weights = count_parameters(c) * bytes_of(dtype);
  const std::int64_t modulation =
      (modulations(c) * c.depth + 2) * d * stream;  // of one picture in one evaluation
  constexpr std::int64_t tile = 256, sub = 64;
  m.fixed = at::get_num_threads() * tile * (4 * d + 2 * 192) * stream + n * d * stream  // scratch, position
            + std::min<std::int64_t>(steps * rows, 64) * modulation;  // a table of some steps
  const std::int64_t mixer =
      c.attention() ? 5 * n * d * bytes_of(dtype) : (n / sub + 2) * c.features() * stream;
  m.per_picture =
      rows * (n * d * stream + mixer + modulation + 4 * n * pixels * stream) + 6 * n * pixels * stream;
  if (c.video() && !c.attention())  // a state and what the text says, for each step and layer
    m.per_picture +=
        rows * steps * c.depth * (1 + std::max<std::int64_t>(1, c.window)) * c.features() * stream;
  return m;
}

// In doubles: a clip may be asked for that is longer than any number of bytes.
std::int64_t whole_clip_memory(const NetworkConfig& c, std::int64_t height, std::int64_t width,
                               std::int64_t blocks, std::int64_t words, at::ScalarType dtype, bool guided) {
  const double n = static_cast<double>(c.tokens(height, width)) * static_cast<double>(blocks);
  const double rows = guided ? 2 : 1, d = static_cast<double>(c.dim), B = static_cast<double>(blocks);
  const double element = static_cast<double>(bytes_of(dtype)),
               stream = static_cast<double>(stream_bytes(dtype));
  const double features = static_cast<double>(c.features()), values = static_cast<double>(c.values());
  const double hidden = static_cast<double>(c.ffw_expand) * d;
  const double token = (5 * d + hidden) * element;  // the stream, its norms and what a layer adds to it
  const double mixer = c.attention() ? 3 * n * d * element + 14 * n * n / rows : 2 * B * features * stream;
  const double text =
      B * static_cast<double>(words) * (3 * static_cast<double>(c.text_width) + 4 * d) * element;
  const double latents = n * values * stream * (6 + 4 * rows);
  return static_cast<std::int64_t>(std::min(rows * (n * token + mixer + text) + latents, 0x1p60));
}

// Of a branch: the stream before it, what it adds, and what its products need again.
// pom/ops/block/training.cpp and pom/ops/cuda/training_branch.cpp say what is saved.
TrainingActivations training_activations(const NetworkConfig& c, std::int64_t height, std::int64_t width,
                                         at::ScalarType dtype, bool fused) {
  const std::int64_t n = c.tokens(height, width), d = c.dim, element = bytes_of(dtype),
                     stream = stream_bytes(dtype);
  const std::int64_t hidden = c.ffw_expand * d, branches = c.video() ? 3 : 2;
  const std::int64_t normal = fused ? 0 : d;  // made again in the backward pass
  const std::int64_t mixer = c.attention() ? 5 * d : 2 * c.features() + normal;
  const std::int64_t cross = !c.video() ? 0 : c.attention() ? 4 * d : c.features() + normal;
  const std::int64_t forward = hidden + normal;
  const std::int64_t widest = std::max(hidden, c.attention() ? d : c.features());
  TrainingActivations a;
  a.kept = n * c.depth * (element * (mixer + cross + forward + branches * d) + branches * d * stream);
  a.input = n * d * stream;
  a.working = n * element * (2 * widest + 4 * d);
  return a;
}

BlockMatrices block_matrices(const NetworkConfig& c) {
  const std::int64_t d = c.dim, mixer = c.attention() ? 4 * d * d : 3 * c.features() * d;
  BlockMatrices m;
  m.products = (c.video() ? 2 : 1) * mixer + 2 * c.ffw_expand * d * d;
  m.all = m.products + modulations(c) * d * d;
  return m;
}

std::int64_t training_memory(const NetworkConfig& c, std::int64_t height, std::int64_t width,
                             at::ScalarType dtype, std::int64_t batch) {
  const std::int64_t masters = count_parameters(c) * 5 * stream_bytes(dtype);  // with gradient, moments, EMA
  const std::int64_t copy =
      bytes_of(dtype) < 4 ? c.depth * block_matrices(c).products * bytes_of(dtype) : 0;  // for the products
  const TrainingActivations each = training_activations(c, height, width, dtype, /*fused=*/true);
  return masters + copy + batch * (each.kept + each.working);
}

}  // namespace pom::models
