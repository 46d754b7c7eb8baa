// Time and memory of one block of a streamed clip against how many came before: for bench/stream.py.
//   stream_bench MIXER WINDOW BLOCKS,BLOCKS,...
// prints a line of JSON. A stream goes on to the last of those blocks, its states are kept on the way, and
// then a block is made again and again from each of them in turn. Weights are drawn: time does not know them.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "pom/models/denoiser.h"

namespace {

using namespace pom;

constexpr std::int64_t kSide = 32, kText = 12, kEvaluations = 4;
constexpr int kRepetitions = 21;

models::NetworkConfig config_of(const std::string& mixer, std::int64_t window) {
  models::NetworkConfig config;
  config.kind = "vdipom", config.mixer = mixer, config.window = window;
  config.dim = 192, config.depth = 6, config.heads = 6, config.patch = 4, config.patch_time = 2;
  config.channels = 3, config.text_width = 128, config.ffw_expand = 4;
  return config;
}

models::Weights drawn_weights(const models::NetworkConfig& config) {
  at::manual_seed(5);
  models::Weights weights;
  for (const models::TensorSpec& spec : models::expected_tensors(config))
    weights[spec.name] = at::randn(spec.shape) * 0.02;
  return weights;
}

double resident_mib() {
  std::ifstream status("/proc/self/statm");
  double size = 0, resident = 0;
  status >> size >> resident;
  return resident * 4096 / (1024 * 1024);
}

double seconds_of_block(models::Denoiser& network, const at::Tensor& x) {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < kEvaluations; ++i) network(x, i);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Stop {
  std::int64_t block = 0;
  std::map<std::string, at::Tensor> state = {};
  double mib = 0;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};

double mib_of(const std::map<std::string, at::Tensor>& state) {
  double bytes = 0;
  for (const auto& [name, tensor] : state) bytes += static_cast<double>(tensor.nbytes());
  return bytes / (1024 * 1024);
}

std::map<std::string, at::Tensor> copied(const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, tensor] : state) result[name] = tensor.clone();
  return result;
}

}  // namespace

int main(int count, char** words) try {
  if (count != 4) throw std::runtime_error("expected a mixer, a window and blocks");
  const at::NoGradGuard no_gradients;
  const std::string mixer = words[1];
  std::vector<Stop> stops;
  std::stringstream numbers(words[3]);
  for (std::string number; std::getline(numbers, number, ',');)
    stops.push_back({.block = std::stoll(number)});
  const models::NetworkConfig config = config_of(mixer, std::stoll(words[2]));
  const auto made = models::Denoiser::make(config, drawn_weights(config));
  models::Denoiser& network = *made;
  std::vector<models::Evaluation> evaluations;
  for (std::int64_t i = 0; i < kEvaluations; ++i) evaluations.push_back({1.0 - 0.25 * i, true});
  network.plan({1, kSide, kSide, evaluations});
  network.tell({.text = at::randn({1, kText, config.text_width}), .mask = at::ones({1, kText}, at::kBool)});
  const at::Tensor x = at::randn({1, config.channels, config.patch_time, kSide, kSide});
  double kept = 0;  // the copies are not the stream's
  for (Stop& stop : stops) {
    for (; network.block() < stop.block; network.advance()) seconds_of_block(network, x);
    stop.mib = resident_mib() - kept;
    stop.state = copied(network.state());
    kept += mib_of(stop.state);
  }
  for (int i = 0; i < kRepetitions; ++i)
    for (Stop& stop : stops) {
      network.set_state(stop.state);
      seconds_of_block(network, x);  // the states are in the cache, as in a stream
      stop.times.push_back(seconds_of_block(network, x));
    }
  std::cout << R"({"mixer": ")" << mixer << R"(", "window": )" << config.window << R"(, "blocks": [)";
  for (Stop& stop : stops)
    std::cout << (&stop == &stops.front() ? "" : ", ") << R"({"block": )" << stop.block
              << R"(, "milliseconds": )" << 1e3 * stop.median() << R"(, "resident_mib": )" << stop.mib << "}";
  std::cout << "]}\n";
} catch (const std::exception& error) {
  std::cerr << "stream_bench: " << error.what() << "\n";
  return 1;
}
