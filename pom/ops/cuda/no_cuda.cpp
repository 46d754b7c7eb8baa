// A build without CUDA kernels: what pom/ops/cuda promises, and nothing of it is there. Every caller
// composes.
#include "pom/base/error.h"
#include "pom/ops/cuda/block.h"
#include "pom/ops/cuda/device.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/cuda/group_norm.h"
#include "pom/ops/cuda/inference.h"
#include "pom/ops/cuda/mixer.h"
#include "pom/ops/cuda/noise.h"
#include "pom/ops/cuda/optimizer.h"
#include "pom/ops/cuda/span_attention.h"
#include "pom/ops/cuda/weight_copies.h"

namespace pom::ops::cuda {
namespace {

[[noreturn]] void absent(const char* op) {
  fail(op, ": this build of libpom has no CUDA kernels");
}

}  // namespace

bool has_kernels() {
  return false;
}

// ---- group_norm.h ----

bool takes_group_norm(const at::Tensor&, std::int64_t) {
  return false;
}
Summed complete_(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t) {
  absent("complete");
}
Summed shuffle_parities(const at::Tensor&, const at::Tensor&, std::int64_t, const at::Tensor&) {
  absent("shuffle");
}
at::Tensor group_norm(const Summed&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const NormOptions&, const LatentMaps&, at::Tensor) {
  absent("group norm");
}

// ---- span_attention.h ----

bool has_span_attention(c10::Device, at::ScalarType, std::int64_t) {
  return false;
}
at::Tensor span_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t,
                          const Spans&) {
  absent("span_attention");
}

// ---- inference.h ----

bool add_mixer(at::Tensor&, const Modulation&, const LayerWeights&, std::int64_t, const at::Tensor&,
               const Fp8&) {
  return false;
}
bool add_mixer(at::Tensor&, const Modulation&, const LayerWeights&, std::int64_t, const at::Tensor&,
               const PastSums&, const Fp8&) {
  return false;
}
bool add_selection(at::Tensor&, const Modulation&, const at::Tensor&, const LayerWeights&, const at::Tensor&,
                   const Fp8&) {
  return false;
}
bool add_feed_forward(at::Tensor&, const Modulation&, const Dense&, const Dense&, const at::Tensor&,
                      const Fp8&) {
  return false;
}
bool modulated_linear(const at::Tensor&, const Modulation&, const Dense&, at::Tensor&, const Fp8&) {
  return false;
}
bool add_linear(at::Tensor&, const at::Tensor&, const Dense&, const at::Tensor&, const Fp8&) {
  return false;
}
std::optional<at::Tensor> inference_layer(const Problem&, const at::Tensor&, const at::Tensor&,
                                          const LayerWeights&) {
  return {};
}
std::optional<at::Tensor> inference_gated(const Problem&, const at::Tensor&, const at::Tensor&,
                                          const LayerWeights&) {
  return {};
}
std::optional<at::Tensor> inference_summary(const Problem&, const at::Tensor&, const at::Tensor&,
                                            const at::Tensor&) {
  return {};
}
std::optional<at::Tensor> inference_select(const at::Tensor&, const at::Tensor&, const LayerWeights&) {
  return {};
}
std::optional<std::tuple<at::Tensor, at::Tensor>> inference_scan(const Problem&, const at::Tensor&,
                                                                 const LayerWeights&, const at::Tensor&,
                                                                 const at::Tensor&) {
  return {};
}
std::string fp8_refusal(c10::Device) {
  return "fp8 needs CUDA kernels, and this build of libpom has none";
}

// ---- mixer.h ----

bool covers(const Mask&, const Packing&, std::int64_t, const at::Tensor&) {
  return false;
}
bool covers_whole(const Mask&, std::int64_t, const at::Tensor&) {
  return false;
}
at::Tensor mix_forward(const Problem&, const at::Tensor&, const at::Tensor&) {
  absent("mixer");
}
std::tuple<at::Tensor, at::Tensor> mix_backward(const Problem&, const at::Tensor&, const at::Tensor&,
                                                const at::Tensor&) {
  absent("mixer_backward");
}
at::Tensor layer_gated(const Problem&, const at::Tensor&, const at::Tensor&, const LayerWeights&, Saved*,
                       const BetweenMeans*, const LayerCopies&) {
  absent("mixer_gated");
}
at::Tensor layer_forward(const Problem&, const at::Tensor&, const at::Tensor&, const LayerWeights&, Saved*,
                         const BetweenMeans*, const LayerCopies&) {
  absent("mixer_layer");
}
ProjectionGradients projection_gradients(const Problem&, const at::Tensor&, const at::Tensor&, const Saved&,
                                         bool, const BetweenMeans*, const LayerCopies&) {
  absent("mixer_gated_backward");
}
Gradients layer_backward(const Problem&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const LayerWeights&, const Saved&, bool, bool, const BetweenMeans*) {
  absent("mixer_layer_backward");
}

// ---- block.h ----

std::unique_ptr<BlockStack> block_stack(const at::Tensor&, std::span<const StackedBlock>, std::int64_t,
                                        bool) {
  return nullptr;
}
bool stack_step(at::Tensor&, std::span<const SteppedBlock>, const at::Tensor&, at::Tensor&, at::Tensor&,
                std::int64_t, double) {
  return false;
}

// ---- graphs.h, noise.h, optimizer.h, weight_copies.h, device.h ----

std::unique_ptr<GraphedEvaluations> graphs_on(c10::Device, GraphWeights) {
  return nullptr;
}
std::optional<at::Tensor> normal_noise(const NoiseKey&, const at::Tensor&, std::int64_t) {
  return {};
}
bool adamw(const AdamW&) {
  return false;
}
WeightTable table_of(const std::vector<CopiedMatrix>&, std::int64_t, std::int64_t, c10::Device) {
  return {};
}
WeightTable table_of(const std::vector<CopiedMatrix>&, c10::Device) {
  return {};
}
bool lower_weights(const at::Tensor&, const WeightTable&) {
  return false;
}
bool capturing(c10::Device) {
  return false;
}
std::int64_t free_bytes(c10::Device) {
  return 0;
}
std::string device_name(c10::Device) {
  return "";
}

}  // namespace pom::ops::cuda

namespace pom::ops::detail {

using cuda::absent;

NormForward modulated_norm_forward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                                        at::ScalarType) {
  absent("modulated_norm");
}
NormBackward modulated_norm_backward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                          const at::Tensor&, const at::Tensor&) {
  absent("modulated_norm");
}
at::Tensor gated_add_forward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) {
  absent("gated_add");
}
GateBackward gated_add_backward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) {
  absent("gated_add");
}
GatedNormForward gated_add_norm_forward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                                             const at::Tensor&, const at::Tensor&, double,
                                             const at::Tensor&) {
  absent("gated_add_norm");
}
GatedNormBackward gated_add_norm_backward_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, const at::Tensor&, double,
                                               const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  absent("gated_add_norm");
}
std::optional<ResidualStream> mixer_branch_cuda(const ResidualStream&, const Modulation&, const LayerWeights&,
                                                std::int64_t, const MixerContext&) {
  return {};
}
std::optional<ResidualStream> feed_forward_branch_cuda(const ResidualStream&, const Modulation&,
                                                       const at::Tensor&, const at::Tensor&,
                                                       const at::Tensor&, const at::Tensor&) {
  return {};
}
std::optional<std::vector<at::Tensor>> conditions_cuda(const at::Tensor&, const std::vector<ConditionMatrix>&,
                                                       const at::Tensor&) {
  return {};
}
bool has_feed_forward_cuda(const at::Tensor&, const at::Tensor&) {
  return false;
}
FeedForward feed_forward_cuda(const at::Tensor&, const FeedForwardWeights&, bool) {
  absent("feed_forward");
}
FeedForwardBackward feed_forward_backward_cuda(const at::Tensor&, const at::Tensor&,
                                               const FeedForwardWeights&, const at::Tensor&, bool) {
  absent("feed_forward");
}

}  // namespace pom::ops::detail
