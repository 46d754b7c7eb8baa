// Private to the room: V-DiPoM, which is told captions, with the encoder of words that it learns them by.
#pragma once

#include "pom/codecs/words.h"
#include "pom/models/vdipom.h"
#include "pom/train/training_model.h"

namespace pom::train {

class ClipModel final : public TrainingModel {
 public:
  ClipModel(const Recipe& recipe, const at::Device& device, const at::Device& home, const std::string& words);

  std::vector<NamedParameter> parameters() override;
  std::vector<std::string> forward_order() const override;
  Condition tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const override;
  Condition tell_all(const Annotations& annotations) const override;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) override;
  void set_sequence(const models::SequenceSplit& split) override { network_->set_sequence(split_ = split); }
  void set_layer_visitor(models::LayerVisitor* visitor) override { network_->set_layer_visitor(visitor); }
  std::string words() const override { return words_.vocabulary().lines(); }
  void set_observer(Observer observer) override;

 private:
  at::Device device_;
  codecs::Words words_;
  models::VDiPoM network_;
  models::SequenceSplit split_;
  Observer observer_;
  double drop_;
  std::int64_t latest_;  // number that a clip's first block may have
};

}  // namespace pom::train
