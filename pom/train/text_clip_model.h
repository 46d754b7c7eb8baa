// Private to the room: V-DiPoM with captions through a text encoder that is used as it is: states that the
// data has, or states made here from captions. Nothing of the encoder is learned.
#pragma once

#include <memory>

#include "pom/codecs/text.h"
#include "pom/models/vdipom.h"
#include "pom/train/training_model.h"

namespace pom::train {

class TextClipModel final : public TrainingModel {
 public:
  TextClipModel(const Recipe& recipe, const at::Device& device, const at::Device& home);

  std::vector<NamedParameter> parameters() override { return named_parameters(*network_); }
  std::vector<std::string> forward_order() const override { return forward_names(network_->config()); }
  Condition tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const override;
  Condition tell_all(const Annotations& annotations) const override;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) override;
  void set_sequence(const models::SequenceSplit& split) override { network_->set_sequence(split_ = split); }
  void set_layer_visitor(models::LayerVisitor* visitor) override { network_->set_layer_visitor(visitor); }
  void set_observer(Observer observer) override { network_->set_observer(std::move(observer)); }

 private:
  codecs::EncodedText states_of(const Annotations& annotations) const;

  at::Device device_;
  at::ScalarType dtype_;
  std::unique_ptr<codecs::TextEncoder> encoder_;  // none where no folder was given: the data has the states
  models::VDiPoM network_;
  models::SequenceSplit split_;
  double drop_;
  std::int64_t latest_;  // number that a clip's first block may have
};

}  // namespace pom::train
