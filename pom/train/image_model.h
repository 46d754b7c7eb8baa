// Private to the room: DiPoM, which is told classes.
#pragma once

#include "pom/models/dipom.h"
#include "pom/train/training_model.h"

namespace pom::train {

class ImageModel final : public TrainingModel {
 public:
  ImageModel(const Recipe& recipe, const at::Device& device, const at::Device& home);

  std::vector<NamedParameter> parameters() override;
  std::vector<std::string> forward_order() const override;
  Condition tell(const Annotations& annotations, const DrawKey& key, std::int64_t first) const override;
  Condition tell_all(const Annotations& annotations) const override;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& times, const Condition& told) override;
  void set_sequence(const models::SequenceSplit& split) override { network_->set_sequence(split); }
  void set_layer_visitor(models::LayerVisitor* visitor) override { network_->set_layer_visitor(visitor); }
  void set_observer(Observer observer) override { network_->set_observer(std::move(observer)); }

 private:
  at::Device device_;
  models::DiPoM network_;
  double drop_;
};

}  // namespace pom::train
