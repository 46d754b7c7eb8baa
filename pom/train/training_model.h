// The model that a run trains, behind one interface: a network conditioned on the class of an image, or one
// conditioned on the caption of a clip, with the text encoder that is trained along. B examples, L pieces of
// text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/layer_visitor.h"
#include "pom/models/sequence.h"
#include "pom/models/weights.h"
#include "pom/train/parameters.h"
#include "pom/train/recipe.h"

namespace pom::train {

// Which numbers a batch gets. Training counts `draw` up; validation has one of its own that training never
// uses.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint32_t draw = 0;
};
inline constexpr std::uint32_t validation_draw = 0xFFFFFFFF;

// Labels and captions of B examples.
struct Annotations {
  at::Tensor labels;                      // (B) int64
  std::span<const std::string> captions;  // of clips, B of them, or of each of P parts of each, B * P
  at::Tensor text = {}, text_mask = {};   // their states (B, L, w) and (B, L), where the data has them

  // Captions of a clip, P.
  std::int64_t parts() const { return captions.empty() ? 1 : std::ssize(captions) / labels.size(0); }
};

// The same as the network takes them, on its device: {labels (B)}, or {pieces (B, L), mask (B, L), the
// numbers of the clips' first blocks (B)}; of clips with several captions pieces and mask (B, P, L).
using Condition = std::vector<at::Tensor>;

class TrainingModel {
 public:
  virtual ~TrainingModel() = default;

  virtual std::vector<NamedParameter> parameters() = 0;
  virtual std::vector<std::string> forward_order() const = 0;  // their names

  // For examples `first` … of the batch with this key, some of which are told nothing. A function of key and
  // place in the batch alone.
  virtual Condition tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const = 0;
  // Everything, to all of them.
  virtual Condition tell_all(const Annotations& annotations) const = 0;
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) = 0;

  // From now on x is this rank's part of what the split says, and so is what comes out.
  virtual void set_sequence(const models::SequenceSplit& split) = 0;

  // Is told before each layer's weights are used; none: nobody.
  virtual void set_layer_visitor(models::LayerVisitor* visitor) = 0;

  // The words that have a piece of their own, one a line; empty where there is no text.
  virtual std::string words() const { return {}; }

  // Called with what each layer gives, in the order of the forward pass; empty for none.
  using Observer = std::function<void(std::string_view layer, const at::Tensor& out)>;
  virtual void set_observer(Observer observer) = 0;
};

// For a complete recipe, to compute on `device`, with weights at `home` until someone takes them elsewhere.
// `words` are those of a checkpoint or a model; where there are none, the data's.
std::unique_ptr<TrainingModel> make_training_model(const Recipe& recipe, const at::Device& device,
                                                   const at::Device& home, const std::string& words = {});

// The parameters of the text encoder have names of their own among those of the network.
models::Weights network_part(const models::Weights& weights);
models::Weights text_part(const models::Weights& weights);  // as the encoder calls them
std::string text_name(std::string_view name);               // "pieces.weight" -> "text_encoder.pieces.weight"

// (B * P, …) -> (B, P, …), and as it is where clips have one caption.
at::Tensor by_clip(const at::Tensor& rows, std::int64_t parts);
// What clips are told in their parts (B, P, …) -> in the blocks that a rank has of them.
at::Tensor of_own_blocks(const at::Tensor& parts, const models::NetworkConfig& config,
                         const models::SequenceSplit& split);

// To where a batch is computed, without waiting for what a GPU is busy with.
at::Tensor sent_to(const at::Device& device, const at::Tensor& host);

}  // namespace pom::train
