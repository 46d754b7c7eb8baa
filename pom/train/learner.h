// A network that learns: what a run is without its files. Batches go in, weights get better. On several ranks
// each has its share of a batch, all make the same calls, and all come to the same weights.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pom/codecs/codec.h"
#include "pom/data/loader.h"
#include "pom/ops/cuda/graphs.h"
#include "pom/ops/weight_copies.h"
#include "pom/parallel/ranks.h"
#include "pom/train/checkpoint.h"
#include "pom/train/division.h"
#include "pom/train/gradient_sum.h"
#include "pom/train/layer_store.h"
#include "pom/train/objective.h"
#include "pom/train/optimizer.h"
#include "pom/train/parameters.h"
#include "pom/train/recipe.h"
#include "pom/train/shares.h"
#include "pom/train/training_model.h"

namespace pom::train {

// A rank's share of a batch where the network is, with everything that is drawn for it, in the parts it is
// computed in.
struct Prepared {
  data::Batch batch;
  std::vector<at::Tensor> x0;
  std::vector<Draw> draws;
  std::vector<Condition> told;
};

struct StepResult {
  double loss = 0, norm = 0;         // of the batch, and of its gradient before the clip
  double rate = 0;                   // the learning rate of this step
  bool finite = true;                // else nothing was changed, and
  std::string culprit;               // this is what was not finite first
  std::vector<float> losses, times;  // of each example of the batch
};

// The mean loss in each tenth of (0, 1), the first nearest to the picture; not a number where there is none.
class LossByTime {
 public:
  void add(const std::vector<float>& losses, const std::vector<float>& times);
  std::vector<double> means() const;

 private:
  static constexpr std::size_t parts = 10;
  std::array<double, parts> sums_ = {}, counts_ = {};
};

struct ValidationResult {
  double loss = 0;
  std::vector<double> by_time;      // of LossByTime
  std::vector<std::string> broken;  // examples that could not be read, each with the reason
};

class Learner {
 public:
  // A complete recipe (classes and channels known). Weights are the network's first values. `words` are those
  // that a text encoder has a piece for, of a checkpoint or a model; where there are none, the data's.
  Learner(const Recipe& recipe, const at::Device& device, const std::string& words = {},
          const parallel::Ranks& ranks = {});

  // What of a batch the loader has to read, and how it is divided.
  const Division& division() const { return division_; }

  // For the step that is the `draw`-th to draw noise. On a GPU this only starts the work.
  Prepared prepare(const data::Batch& batch, std::int64_t seed, std::int64_t draw) const;
  // One step on a batch prepared for (state.seed, state.draws), which counts in `state` also where it was not
  // finite. `meanwhile` is called once the device is busy and before its result is waited for.
  StepResult step(const Prepared& prepared, State& state, const std::function<void()>& meanwhile = {});
  StepResult step(const data::Batch& batch, State& state) {
    return step(prepare(batch, state.seed, state.draws), state);
  }

  // The loss of the average's weights on every example, with fixed noise at fixed times.
  ValidationResult validate(const data::Dataset& dataset, std::uint64_t seed);

  // Whether weights and average are numbers: a step whose loss was finite may still have ruined them.
  bool is_finite() const;

  // Weights and average of all ranks become these of the first, of which it alone may have any.
  void start_from(const models::Weights& weights);

  Checkpoint snapshot(const State& state) const;  // without the recipe; on the first rank alone with tensors
  void restore(const Checkpoint& checkpoint);     // the first rank's, on all

  std::string words() const { return model_->words(); }
  Parameters& parameters() { return parameters_; }
  Optimizer& optimizer() { return optimizer_; }
  const at::Device& device() const { return device_; }
  double waited() const { return sum_->waited(); }  // for gradients of others, after the backward pass

 private:
  struct Parts {
    std::vector<at::Tensor> losses, times;  // of each part of a batch
  };
  struct Computed {
    at::Tensor losses, times, norm;  // of each example (B), and of the gradient
  };
  // Where every step of a GPU with batches of one shape computes, so that the work of one is a graph that the
  // next ones run again.
  struct Workplace {
    Prepared prepared;  // without the batch
    Computed computed;
  };
  at::Tensor to_latents(const at::Tensor& pictures) const;
  at::Tensor of_batch(const at::Tensor& share, bool add) const;  // (B) from each rank's examples
  at::Tensor losses_of(const at::Tensor& x0, const Draw& draw, const Condition& told);
  at::Tensor gradient_norm();
  void fill_from_first(at::Tensor& t, const models::Weights& weights) const;
  std::unique_ptr<LayerStore> layer_store();
  std::unique_ptr<ops::WeightCopies> weight_copies();
  void weights_changed();
  std::int64_t pieces_of_clips(const DrawKey& key) const;
  // The losses of a batch, part by part; `use` gets those of a part while its graph is there.
  Parts in_parts(const Prepared& prepared, const std::function<void(const at::Tensor&)>& use);
  Computed gradients(const Prepared& prepared);        // into parameters_
  Computed gradients_again(const Prepared& prepared);  // the same in the workplace
  int workplace_for(const Prepared& prepared);
  std::string find_culprit(const Prepared& prepared);
  std::string agreed_culprit(const std::string& found) const;

  Recipe recipe_;
  at::Device device_;
  parallel::Ranks ranks_;     // all
  parallel::Ranks sequence_;  // those that share the tokens of this rank's examples
  Division division_;
  std::unique_ptr<codecs::Codec> codec_;  // none for data that is latents already
  std::unique_ptr<TrainingModel> model_;
  Parameters parameters_;
  Shares shares_;
  std::unique_ptr<LayerStore> layers_;         // where ranks divide the parameters too
  std::unique_ptr<ops::WeightCopies> copies_;  // in bf16, where that is the precision of a GPU
  Optimizer optimizer_;
  std::unique_ptr<GradientSum> sum_;
  Objective objective_;
  std::unique_ptr<ops::cuda::GraphedEvaluations>
      graphs_;  // none on the CPU; the key is the workplace's number
  std::vector<Workplace> workplaces_;
};

}  // namespace pom::train
