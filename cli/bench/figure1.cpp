// `pom bench figure1`: time against the number of tokens for the network with the Polynomial Mixer and with
// attention, with the products' floor under both.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/gemms.h"
#include "cli/bench/network.h"
#include "cli/bench/report.h"
#include "cli/command.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/generate/process.h"
#include "pom/models/counts.h"

namespace pom::cli {
namespace {

using models::NetworkConfig;

struct Figure {
  Bench& bench;
  NetworkConfig pom, attention;
  std::vector<std::int64_t> sides;  // of the squares of tokens
  BenchReport report = {};
};

// ---- what is timed ----

// "XL", "XL/2", "DiPoM-XL/2", "DiT-XL/2": the sizes are the same, and those of attention say the heads.
NetworkConfig named(std::string name) {
  if (const std::size_t dash = name.find('-'); dash != std::string::npos) name.erase(0, dash + 1);
  if (name.find('/') == std::string::npos) name += "/2";
  return as_usage([&] { return models::variant("DiT-" + name); });
}

NetworkConfig network_of(const Bench& bench) {
  const BenchOptions& options = bench.options;
  NetworkConfig config = named(!options.variant.empty() ? options.variant : bench.gpu() ? "XL" : "S");
  if (options.variant.empty() && !bench.gpu()) config.depth = 6;  // a minute, not ten
  return sized(config, options);
}

std::int64_t side_of(std::int64_t tokens) {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(tokens))));
  if (side * side != tokens)
    throw UsageError(detail::concat("--tokens: expected squares of whole numbers, got ", tokens,
                                    " (near: ", side * side, ")"));
  return side;
}

std::vector<std::int64_t> sides_of(const Bench& bench) {
  std::vector<std::int64_t> tokens = bench.options.tokens;
  if (tokens.empty() && bench.options.paper)
    tokens = bench.gpu() ? std::vector<std::int64_t>{64, 256, 1024, 4096, 16384}
                         : std::vector<std::int64_t>{64, 256};
  else if (tokens.empty())
    tokens = bench.gpu() ? std::vector<std::int64_t>{256, 1024, 2304, 4096, 16384, 65536}
                         : std::vector<std::int64_t>{64, 256, 1024};
  std::vector<std::int64_t> sides;
  for (const std::int64_t count : tokens) sides.push_back(side_of(count));
  std::ranges::sort(sides);
  sides.erase(std::unique(sides.begin(), sides.end()), sides.end());
  return sides;
}

void check_figure_usage(const Bench& bench) {
  const BenchOptions& options = bench.options;
  if (!options.mask.empty()) throw UsageError("--mask: is for pom bench operator");
  refuse_of_video(bench);
  if (!options.paper) return;
  if (bench.dtype != "fp32") throw UsageError("--dtype: expected fp32 with --paper, got " + bench.dtype);
  if (options.ffw_expand)
    throw UsageError("--ffw-expand: expected without --paper, which has 2, and 4 for attention");
}

std::string batch_text(const Bench& bench, const std::vector<std::int64_t>& sides) {
  const std::int64_t first = bench.batch_at(sides.front() * sides.front()),
                     last = bench.batch_at(sides.back() * sides.back());
  return first == last ? detail::concat("batch ", first)
                       : detail::concat("batch ", first, ", ", last, " from 65536 tokens on");
}

void describe(Figure& figure) {
  const NetworkConfig &pom = figure.pom, &attention = figure.attention;
  BenchReport& report = figure.report;
  const std::string ffw =
      pom.ffw_expand == attention.ffw_expand
          ? detail::concat("feed-forward ", pom.ffw_expand)
          : detail::concat("feed-forward ", pom.ffw_expand, " (attention: ", attention.ffw_expand, ")");
  report.name = "figure1";
  report.heading =
      detail::concat(pom.depth, " blocks of ", pom.dim, ", ", ffw, ", ", attention.heads, " heads, ",
                     figure.bench.dtype, ", ", batch_text(figure.bench, figure.sides));
  report.about.add("dim", pom.dim)
      .add("depth", pom.depth)
      .add("order", pom.order)
      .add("expand", pom.order_expand)
      .add("heads", attention.heads)
      .add("ffw_expand", pom.ffw_expand)
      .add("attention_ffw_expand", attention.ffw_expand)
      .add("patch", pom.patch)
      .add("optimizer_inside", figure.bench.options.paper);
}

Figure plan_figure(Bench& bench) {
  check_figure_usage(bench);
  Figure figure{.bench = bench, .pom = network_of(bench), .attention = {}, .sides = sides_of(bench)};
  figure.attention = figure.pom;
  figure.attention.mixer = "attention";
  figure.pom.mixer = "pom";
  if (bench.options.paper) figure.pom.ffw_expand = 2;
  as_usage([&] {
    models::check_config(figure.pom, "");
    models::check_config(figure.attention, "");
  });
  describe(figure);
  return figure;
}

// ---- a row ----

using Contenders = std::array<Contender, 3>;  // products, PoM, attention
using Forecasts = std::array<Forecast, 3>;
// Attention's own products run at about half the speed of the others, of which the network has 12 d^2 a
// token.
Forecasts forecasts(const Figure& figure) {
  return {Forecast(), Forecast(), Forecast(3 * static_cast<double>(figure.attention.dim))};
}

BenchRow race(Figure& figure, std::int64_t side, Contenders contenders, Forecasts& forecasts) {
  const Bench& bench = figure.bench;
  BenchRow row{.tokens = side * side, .batch = bench.batch_at(side * side)};
  if (bench.options.paper) row.label = 32 * side;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (contenders[i].note.empty())
      contenders[i].note = forecasts[i].skip(row.tokens, row.batch, bench.options.longest);
  std::vector<Timing> timings = interleave({contenders.begin(), contenders.end()}, bench.timing());
  for (std::size_t i = 0; i < contenders.size(); ++i) forecasts[i].learn(row.tokens, row.batch, timings[i]);
  row.gemms = std::move(timings[0]), row.pom = std::move(timings[1]), row.attention = std::move(timings[2]);
  return row;
}

void add_row(Figure& figure, BenchSection& section, BenchRow row) {
  print_row(figure.bench, figure.report, section, row);
  section.rows.push_back(std::move(row));
}

// ---- forward ----

Contenders forward_contenders(const Figure& figure, const BatchSize& size) {
  const Bench& bench = figure.bench;
  const auto network = [&](const NetworkConfig& config) {
    const std::int64_t latent = size.side * config.patch;
    const models::SamplingMemory memory =
        models::sampling_memory(config, latent, latent, bench.type, false, 1);
    return Contender{[&bench, config, size] { return evaluation(config, bench.type, bench.device, size); },
                     too_large(bench, memory.weights + memory.fixed + size.pictures * memory.per_picture)};
  };
  const auto gemms = [&bench, shapes = token_gemms(figure.pom, size.tokens(), size.pictures)] {
    const auto floor = std::make_shared<Gemms>(shapes, bench.type, bench.device);
    return bench.in_graph([floor] { floor->forward(); });
  };
  return {Contender{gemms}, network(figure.pom), network(figure.attention)};
}

void time_forward(Figure& figure) {
  BenchSection section{.key = "forward", .title = "Forward"};
  print_section(figure.bench, figure.report, section);
  Forecasts known = forecasts(figure);
  for (const std::int64_t side : figure.sides) {
    const BatchSize size{figure.bench.batch_at(side * side), side};
    add_row(figure, section, race(figure, side, forward_contenders(figure, size), known));
  }
  figure.report.sections.push_back(std::move(section));
}

// ---- forward + backward ----

struct Trainees {
  std::unique_ptr<Trainee> pom, attention;  // made when first needed
};

Contenders training_contenders(const Figure& figure, const BatchSize& size, Trainees& trainees) {
  const Bench& bench = figure.bench;
  const auto network = [&](const NetworkConfig& config, std::unique_ptr<Trainee>& trainee) {
    const std::int64_t latent = size.side * config.patch;
    return Contender{
        [&bench, &trainee, config, size] {
          if (!trainee)
            trainee = std::make_unique<Trainee>(config,
                                                Trainee::Options{.precision = bench.dtype,
                                                                 .update = bench.options.paper,
                                                                 .graphs = !bench.options.no_graphs},
                                                bench.device);
          return trainee->step(size);
        },
        too_large(bench, models::training_memory(config, latent, latent, bench.type, size.pictures))};
  };
  std::vector<GemmShape> shapes = token_gemms(figure.pom, size.tokens(), size.pictures);
  for (const GemmShape& shape : condition_gemms(figure.pom, size.pictures)) shapes.push_back(shape);
  const auto gemms = [&bench, shapes] {
    const auto floor = std::make_shared<Gemms>(shapes, bench.type, bench.device);
    return bench.in_graph([floor] { floor->forward_backward(); });
  };
  return {Contender{gemms}, network(figure.pom, trainees.pom), network(figure.attention, trainees.attention)};
}

// What a token leaves for the backward pass, where the device says it.
void note_memory(BenchReport& report, const BenchSection& section) {
  std::string text;
  for (const BenchRow& row : section.rows) {
    const auto tokens = static_cast<double>(row.tokens * row.batch);
    if (row.pom.bytes == 0 || row.attention.bytes == 0) continue;
    char part[96];
    std::snprintf(part, sizeof part, "%s%lld tokens: %.1f and %.1f", text.empty() ? "" : "; ",
                  static_cast<long long>(row.tokens), static_cast<double>(row.pom.bytes) / tokens / 1024,
                  static_cast<double>(row.attention.bytes) / tokens / 1024);
    text += part;
  }
  if (!text.empty())
    report.notes.push_back(
        "Memory of forward + backward beside weights and gradients, KiB per token, PoM and "
        "attention: " +
        text + ".");
}

// Which networks ran as graphs, where there was a choice.
void note_graphs(BenchReport& report, const BenchSection& section) {
  std::string graphs, others;
  const auto look = [&](const BenchRow& row, const char* name, const Timing& timing) {
    if (!timing.measured() || !timing.graph) return;
    std::string& list = *timing.graph ? graphs : others;
    list += detail::concat(list.empty() ? "" : ", ", name, " at ", row.tokens);
  };
  for (const BenchRow& row : section.rows) look(row, "PoM", row.pom), look(row, "attention", row.attention);
  if (graphs.empty() && others.empty()) return;
  report.notes.push_back(section.title + " as one CUDA graph: " + (graphs.empty() ? "none" : graphs) +
                         "; kernels launched one by one: " + (others.empty() ? "none" : others) + ".");
}

void time_training(Figure& figure) {
  BenchSection section{
      .key = "forward_backward",
      .title = figure.bench.options.paper ? "Forward + backward + AdamW" : "Forward + backward"};
  print_section(figure.bench, figure.report, section);
  Forecasts known = forecasts(figure);
  Trainees trainees;
  for (const std::int64_t side : figure.sides) {
    const BatchSize size{figure.bench.batch_at(side * side), side};
    add_row(figure, section, race(figure, side, training_contenders(figure, size, trainees), known));
  }
  note_graphs(figure.report, section);
  note_memory(figure.report, section);
  figure.report.sections.push_back(std::move(section));
}

}  // namespace

BenchReport figure1_report(Bench& bench) {
  Figure figure = plan_figure(bench);
  report_files(bench, figure.report.name);
  print_heading(bench, figure.report);
  time_forward(figure);
  if (times_backward(bench, figure.report)) time_training(figure);
  return std::move(figure.report);
}

int bench_figure1(Bench& bench) {
  return finish_report(bench, figure1_report(bench));
}

}  // namespace pom::cli
