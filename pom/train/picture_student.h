// Private to the room: DiPoM, which is told classes.
#pragma once

#include "pom/models/dipom.h"
#include "pom/train/student.h"

namespace pom::train {

class PictureStudent final : public Student {
 public:
  PictureStudent(const Recipe& recipe, const at::Device& device);

  std::vector<NamedParameter> parameters() override;
  std::vector<std::string> forward_order() const override;
  Told tell(const Lesson& lesson, const DrawKey& key, std::int64_t first) const override;
  Told tell_all(const Lesson& lesson) const override;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& times, const Told& told) override;
  void set_observer(Observer observer) override { network_->set_observer(std::move(observer)); }

 private:
  at::Device device_;
  models::DiPoM network_;
  double drop_;
};

}  // namespace pom::train
