// Weights of which every rank keeps its part alone (ZeRO-3). The matrices of a layer are gathered before it
// uses them, into one of two places that take turns, while the layer before it still computes; what else
// there is stays whole. N ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/models/layer_visitor.h"
#include "pom/parallel/ranks.h"
#include "pom/train/parameters.h"
#include "pom/train/shares.h"

namespace pom::train {

class LayerStore final : public models::LayerVisitor {
 public:
  // From here on parameters.values() are the own parts alone, on `device`. The parameters are of layers (by
  // their names), and the shares divided.
  LayerStore(Parameters& parameters, const Shares& shares, const parallel::Ranks& ranks,
             const at::Device& device);

  // All ranks make these calls in the same order.
  void before_forward(std::int64_t layer) override;
  void before_backward(std::int64_t layer) override;
  void pass();    // of a rank that has nothing to compute while the others go forward
  void forget();  // the next pass gathers every layer anew
  void renew();   // the own parts have changed

 private:
  struct Place {
    at::Tensor memory;
    std::int64_t layer = -1;                 // whose weights are here, or on their way
    std::vector<parallel::Pending> pending;  // what has not arrived
  };
  struct Gap {
    std::int64_t begin = 0, count = 0, at = 0;  // in the flat memory, and in rest_
  };
  Place& place_of(std::int64_t layer) { return places_[static_cast<std::size_t>(layer % 2)]; }
  void find_gaps();
  at::Tensor memory_of(const Slice& slice);
  void start(std::int64_t layer);
  void need(std::int64_t layer);
  std::int64_t layers() const;

  Parameters& parameters_;
  const Shares& shares_;
  parallel::Ranks ranks_;
  std::vector<Gap> gaps_;  // between the layers
  at::Tensor rest_;
  std::array<Place, 2> places_;
};

}  // namespace pom::train
