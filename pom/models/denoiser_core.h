// Private to the room: what the sampling networks of images and of clips share: weights in the dtype of their
// products, the table of modulations, tokens in and out. R rows, T times, Q conditions, d width, N tokens.
#pragma once

#include <string>
#include <vector>

#include "pom/models/denoiser.h"
#include "pom/models/time_input.h"
#include "pom/ops/block/inference.h"

namespace pom::models {

// Weights by name, in the dtype of a network's products. What has been taken is gone from the weights, and
// its memory with it where it was converted.
class WeightReader {
 public:
  WeightReader(Weights& weights, at::ScalarType dtype) : weights_(weights), dtype_(dtype) {}

  at::Tensor take(const std::string& name);
  ops::Dense dense(const std::string& name);                       // NAME.weight, NAME.bias
  ops::LayerWeights mixer(const std::string& name);                // ho_proj, se_proj, ag_proj
  at::Tensor take(const std::string& name, at::ScalarType dtype);  // in a dtype of its own

 private:
  Weights& weights_;
  at::ScalarType dtype_;
};

// Scales, shifts and gates of all blocks, and scale and shift of the output, for pairs of a time and a
// condition: those of some times by all conditions are made at once and kept. A row is (parts * depth + 2) d
// values wide.
class ModulationTable {
 public:
  // `parts` of each block, the last `gates` of which are gates.
  ModulationTable(WeightReader& weights, const NetworkConfig& config, int parts, int gates,
                  at::TensorOptions stream);

  // conditions (Q, d) are added to the time's embedding; where undefined there is one, of zeros.
  void plan(const std::vector<Evaluation>& evaluations, const at::Tensor& conditions);
  at::Tensor rows(std::int64_t evaluation);  // (Q, width), of its time

  // Of rows (R, width): a part of a layer (R, d), a scale and shift together, and those of the output.
  at::Tensor part(const at::Tensor& rows, std::int64_t layer, int which) const;
  ops::Modulation modulation(const at::Tensor& rows, std::int64_t layer, int scale, int shift) const;
  ops::Modulation output(const at::Tensor& rows) const;
  std::int64_t width() const { return (parts_ * depth_ + 2) * dim_; }

 private:
  void fill(std::int64_t first);

  std::int64_t parts_, gates_, depth_, dim_;
  nn::TimeFeatures features_;
  bool one_plus_;  // gates are 1 + g
  at::TensorOptions stream_;
  ops::Dense time_up_, time_down_, matrix_;
  std::vector<std::int64_t> time_of_;  // of each evaluation, which of the times without those that come again
  at::Tensor time_emb_, conditions_;   // (T, d), (Q, d)
  at::Tensor table_;                   // (count * Q, width)
  std::int64_t first_ = 0, count_ = 0;
};

// The dtype that weights are stored in for products of this one, and that of the residual stream.
at::ScalarType stored_as(at::ScalarType dtype);
at::ScalarType arithmetic_of(at::ScalarType dtype);

// Sides that the patch divides, one item and one evaluation at least. `who` begins the messages.
void check_plan(const SamplingPlan& plan, const NetworkConfig& config, const char* who);

// Denoiser::make, for each kind of network.
std::unique_ptr<Denoiser> make_image_denoiser(const NetworkConfig& config, Weights weights,
                                              at::ScalarType dtype);
std::unique_ptr<Denoiser> make_clip_denoiser(const NetworkConfig& config, Weights weights,
                                             at::ScalarType dtype);

}  // namespace pom::models
