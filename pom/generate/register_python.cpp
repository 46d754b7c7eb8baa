// torch.classes.pom.Engine: the engine as Python reaches it, in strings of JSON and tensors, so that
// libpom.so needs no Python to build. python/libpom/engine.py is its other half.
#include <atomic>
#include <cstring>
#include <mutex>
#include <tuple>

#include <ATen/ops/empty.h>
#include <torch/custom_class.h>

#include "pom/base/error.h"
#include "pom/generate/engine.h"
#include "pom/generate/metadata.h"
#include "pom/io/json_fields.h"

namespace pom::generate {
namespace {

// (B, H, W, C) of 8 bits.
at::Tensor stack(const std::vector<Picture>& pictures) {
  const io::Image& first = pictures.front().image;
  at::Tensor out =
      at::empty({static_cast<std::int64_t>(pictures.size()), first.height, first.width, first.channels},
                at::TensorOptions(at::kByte));
  std::uint8_t* to = out.data_ptr<std::uint8_t>();
  for (const Picture& picture : pictures) {
    std::memcpy(to, picture.image.data.data(), picture.image.data.size());
    to += picture.image.data.size();
  }
  return out;
}

std::string list_of(const std::vector<Request>& requests) {
  std::string list = "[";
  for (const Request& request : requests) {
    if (list.size() > 1) list += ',';
    list += request_json(request);
  }
  return list += ']';
}

class PythonEngine : public torch::CustomClassHolder {
 public:
  PythonEngine(const std::string& folder, const std::string& device) : engine_(folder, device) {}

  std::string name() { return engine_.name(); }
  std::string device() { return engine_.device(); }
  std::string weights_hash() {
    const std::lock_guard alone(one_at_a_time_);
    return engine_.weights_hash();
  }
  std::string config() {
    ModelConfig copy = engine_.config();
    return io::write_json(copy);
  }
  std::string resolve(const std::string& request) {
    return list_of(engine_.resolve(request_from_json(request, "sample")));
  }
  // Pictures (B, H, W, C) and the list of their requests.
  std::tuple<at::Tensor, std::string> sample(const std::string& request, std::int64_t batch) {
    const std::lock_guard alone(one_at_a_time_);
    stop_ = false;
    std::vector<Picture> pictures;
    Observer observer;
    observer.stop = &stop_;
    observer.on_picture = [&](Picture&& picture) { pictures.push_back(std::move(picture)); };
    try {
      engine_.run(request_from_json(request, "sample"), {.batch = batch}, observer);
    } catch (const Stopped&) {
      fail("sample: stopped");
    }
    std::vector<Request> requests;
    for (const Picture& picture : pictures) requests.push_back(picture.request);
    return {stack(pictures), list_of(requests)};
  }
  void stop() { stop_ = true; }  // from another thread: sample() ends with an error at its next step

 private:
  Engine engine_;
  std::mutex one_at_a_time_;  // Python's threads are free to meet here: torch lets its lock go during a call
  std::atomic<bool> stop_ = false;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(pom, m) {
  m.class_<PythonEngine>("Engine")
      .def(torch::init<std::string, std::string>())
      .def("name", &PythonEngine::name)
      .def("device", &PythonEngine::device)
      .def("weights_hash", &PythonEngine::weights_hash)
      .def("config", &PythonEngine::config)
      .def("resolve", &PythonEngine::resolve)
      .def("sample", &PythonEngine::sample)
      .def("stop", &PythonEngine::stop);
}

}  // namespace pom::generate
