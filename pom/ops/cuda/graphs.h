// For those who run a network again and again on CUDA (Denoiser, train::Learner): its evaluations as graphs,
// one launch each. What an evaluation reads and writes are buffers that stay where they are from one call to
// the next.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace pom::ops::cuda {

class GraphedEvaluations {
 public:
  virtual ~GraphedEvaluations() = default;

  // Evaluations of one key do the same on the same buffers: the first one runs and is captured, the ones
  // after it are the graph. Where capturing fails, all of them run as they are; the results are the same
  // bits. The environment (read once) may say otherwise: with POM_GRAPHS=0 nothing is captured, with
  // POM_GRAPHS=always a capture that fails is an error.
  virtual void run(int key, const std::function<void()>& evaluate) = 0;
  virtual void run_once(const std::function<void()>& evaluate) = 0;  // one that does not come again

  // Before any of the buffers goes. Waits for the device.
  virtual void drop() = 0;
};

// Of weights that never change the copies for the kernels are kept here; of those that do (in place) they are
// made in every evaluation, but for those that the owner of the weights keeps (pom/ops/weight_copies.h),
// which are as new as the weights whenever a graph starts. Null where the device has no CUDA, or the build no
// kernels.
enum class GraphWeights { frozen, changing };
std::unique_ptr<GraphedEvaluations> graphs_on(c10::Device device,
                                              GraphWeights weights = GraphWeights::frozen);

}  // namespace pom::ops::cuda
