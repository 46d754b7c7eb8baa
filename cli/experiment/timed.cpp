// What is timed in place of being judged: the network against its length, and a stream against its age.
#include <algorithm>
#include <chrono>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/DeviceGuard.h>

#include "cli/bench/report.h"
#include "cli/experiment/judge.h"
#include "pom/io/toml_fields.h"
#include "pom/models/denoiser.h"

namespace pom::cli::experiment {
namespace {

// A stream of one clip: so many blocks before, then a block timed again and again.
struct StreamOptions {
  std::int64_t blocks = 2, dim = 192, depth = 6, side = 32, window = 8, rounds = 11;

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "blocks", .help = "blocks before the one that is timed", .least = 1, .most = 1e6},
          blocks);
    visit(Field{.name = "dim", .help = "width of a token", .least = 16, .most = 65536}, dim);
    visit(Field{.name = "depth", .help = "number of layers", .least = 1, .most = 1000}, depth);
    visit(Field{.name = "side", .help = "pixels of a side", .least = 4, .most = 65536}, side);
    visit(Field{.name = "window", .help = "blocks that a window sees", .least = 1, .most = 1e6}, window);
    visit(Field{.name = "rounds", .help = "times the block is made", .least = 1, .most = 1e6}, rounds);
  }
};

models::NetworkConfig stream_network(const StreamOptions& options, const std::string& mixer,
                                     std::int64_t window) {
  models::NetworkConfig config;
  config.kind = "vdipom", config.mixer = mixer, config.window = window;
  config.dim = options.dim, config.depth = options.depth,
  config.heads = std::max<std::int64_t>(1, options.dim / 32);
  config.patch = 4, config.patch_time = 2, config.channels = 3, config.text_width = 128,
  config.ffw_expand = 4;
  return config;
}

models::Weights drawn_weights(const models::NetworkConfig& config) {
  models::Weights weights;  // time does not know them
  for (const models::TensorSpec& spec : models::expected_tensors(config))
    weights[spec.name] = at::randn(spec.shape).mul_(0.02);
  return weights;
}

constexpr std::int64_t evaluations_of_a_block = 4;

double seconds_of_block(models::Denoiser& network, const at::Tensor& x) {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < evaluations_of_a_block; ++i) network(x, i);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct BlockTime {
  double ms = 0, state_kib = 0;
};

// The median of the rounds; the state is all that the stream keeps of the blocks before.
BlockTime time_block(const StreamOptions& options, const models::NetworkConfig& config) {
  const at::NoGradGuard no_gradients;
  const auto made = models::Denoiser::make(config, drawn_weights(config));
  models::Denoiser& network = *made;
  std::vector<models::Evaluation> evaluations;
  for (std::int64_t i = 0; i < evaluations_of_a_block; ++i)
    evaluations.push_back({1.0 - 0.25 * static_cast<double>(i), true});
  network.plan({1, options.side, options.side, evaluations});
  constexpr std::int64_t words = 12;
  network.tell({.text = at::randn({1, words, config.text_width}), .mask = at::ones({1, words}, at::kBool)});
  const at::Tensor x = at::randn({1, config.channels, config.patch_time, options.side, options.side});
  for (; network.block() < options.blocks; network.advance()) seconds_of_block(network, x);
  std::vector<double> times;
  for (std::int64_t i = 0; i < options.rounds; ++i) times.push_back(seconds_of_block(network, x));
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  double bytes = 0;
  for (const auto& [name, tensor] : network.state()) bytes += static_cast<double>(tensor.nbytes());
  return {1e3 * times[times.size() / 2], bytes / 1024};
}

void add_section(Scores& scores, const BenchSection& section) {
  const BenchRow& row = section.rows.front();
  const std::string name = section.key == "forward" ? "forward_" : "training_";
  const double pom = row.ms(row.pom), attention = row.ms(row.attention);
  scores.emplace_back(name + "pom", pom);
  scores.emplace_back(name + "attention", attention);
  scores.emplace_back(name + "ratio", attention / pom);
}

}  // namespace

Scores time_figure1(const std::vector<std::string>& sets, const std::string& device,
                    const StopSignals& signals) {
  BenchOptions options;
  options.what = "figure1", options.device = device, options.json = true, options.quiet = true;
  for (const std::string& assignment : sets) io::set_field(assignment, options, "points");
  Bench bench = make_bench(options, signals);
  const c10::DeviceGuard guard(bench.device);
  Scores scores;
  for (const BenchSection& section : figure1_report(bench).sections) add_section(scores, section);
  return scores;
}

Scores time_streaming(const std::vector<std::string>& sets) {
  StreamOptions options;
  for (const std::string& assignment : sets) io::set_field(assignment, options, "points");
  const BlockTime pom = time_block(options, stream_network(options, "pom", 0)),
                  window = time_block(options, stream_network(options, "pom", options.window)),
                  attention = time_block(options, stream_network(options, "attention", 0));
  return {{"pom", pom.ms},
          {"attention", attention.ms},
          {"pom_window", window.ms},
          {"pom_state", pom.state_kib},
          {"attention_state", attention.state_kib}};
}

}  // namespace pom::cli::experiment
