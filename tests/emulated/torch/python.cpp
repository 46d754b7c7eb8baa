// What Python asks of the emulated GPU, for tests/emulated/python: torch.cuda's own bindings are no part of a
// torch without CUDA.
#include "tests/emulated/torch/emulated.h"

#include <ATen/cuda/CUDAGraph.h>
#include <torch/custom_class.h>
#include <torch/library.h>

namespace emulated {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Graph : torch::CustomClassHolder {
  at::cuda::CUDAGraph graph;
};

c10::cuda::CUDAStream stream(std::int64_t id) {
  return c10::cuda::CUDAStream(
      c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), static_cast<c10::StreamId>(id)));
}

TORCH_LIBRARY(emulated_gpu, m) {
  m.class_<Graph>("Graph")
      .def(torch::init<>())
      .def("capture_begin", [](const c10::intrusive_ptr<Graph>& self) { self->graph.capture_begin(); })
      .def("capture_end", [](const c10::intrusive_ptr<Graph>& self) { self->graph.capture_end(); })
      .def("replay", [](const c10::intrusive_ptr<Graph>& self) { self->graph.replay(); })
      .def("reset", [](const c10::intrusive_ptr<Graph>& self) { self->graph.reset(); });
  m.def("capturing", [] { return capturing(); });
  m.def("new_stream", [] { return static_cast<std::int64_t>(c10::cuda::getStreamFromPool(false).id()); });
  m.def("exchange_stream", [](std::int64_t id) {
    const auto before = c10::cuda::getCurrentCUDAStream();
    c10::cuda::setCurrentCUDAStream(stream(id));
    return static_cast<std::int64_t>(before.id());
  });
  m.def("current_stream", [] { return static_cast<std::int64_t>(c10::cuda::getCurrentCUDAStream().id()); });
  m.def("allocated", [] { return allocator::getDeviceStats(0).allocated_bytes[0].current; });
  m.def("most_allocated", [] { return allocator::getDeviceStats(0).allocated_bytes[0].peak; });
  m.def("reset_most_allocated", [] { allocator::resetPeakStats(0); });
  m.def("seed", [](std::int64_t seed) {
    at::Generator(generator()).set_current_seed(static_cast<std::uint64_t>(seed));
  });
}

}  // namespace
}  // namespace emulated
