// `pom bench video`: the network of clips with the Polynomial Mixer and with attention, with the products'
// floor under both: a guided evaluation of a whole clip, of one block of a stream after many others, of one
// block of each of several streams, and a step of training. K tokens of a block, n blocks.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/gemms.h"
#include "cli/bench/network.h"
#include "cli/bench/report.h"
#include "cli/command.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/models/counts.h"

namespace pom::cli {
namespace {

using models::NetworkConfig;

constexpr std::int64_t kSteps = 20;          // guided, for which frames a second are told
constexpr std::int64_t kFramesOfLatent = 4;  // of CogVideoX's autoencoder
constexpr std::int64_t kWords = 64;

struct Video {
  Bench& bench;
  NetworkConfig pom, attention;
  std::int64_t tokens = 0;  // of a block
  std::vector<std::int64_t> blocks, before, streams;
  BenchReport report = {};

  std::int64_t batch() const { return bench.options.batch.value_or(1); }
  std::int64_t training_batch() const { return bench.options.batch.value_or(bench.gpu() ? 4 : 1); }
  std::int64_t frames_of_block() const { return pom.patch_time * kFramesOfLatent; }
  BatchSize size(std::int64_t clips, std::int64_t n) const;
};

// A block as near to 16:10 as its number of tokens allows: 360 are 15 x 24.
BatchSize Video::size(std::int64_t clips, std::int64_t n) const {
  std::int64_t rows = 1;
  const double wanted = std::sqrt(static_cast<double>(tokens) / 1.6);
  const auto off = [&](std::int64_t r) { return std::abs(static_cast<double>(r) - wanted); };
  for (std::int64_t r = 1; r * r <= tokens; ++r)
    if (tokens % r == 0 && off(r) < off(rows)) rows = r;
  return {.pictures = clips, .side = rows, .columns = tokens / rows, .blocks = n, .words = kWords};
}

// "XL", "XL/2", "V-DiPoM-XL/2": the sizes are the same whatever stands before the last dash.
NetworkConfig named(std::string name) {
  name.erase(0, name.rfind('-') + 1);
  if (name.find('/') == std::string::npos) name += "/2";
  return as_usage([&] { return models::variant("V-DiPoM-" + name); });
}

NetworkConfig network_of(const Bench& bench) {
  const BenchOptions& options = bench.options;
  NetworkConfig config = named(!options.variant.empty() ? options.variant : bench.gpu() ? "XL" : "S");
  if (options.variant.empty() && !bench.gpu()) config.depth = 6, config.text_width = 1024;
  return sized(config, options);
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> numbers) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void describe(Video& video) {
  const NetworkConfig& c = video.pom;
  BenchReport& report = video.report;
  report.name = "video";
  report.heading =
      detail::concat(c.depth, " layers of ", c.dim, ", feed-forward ", c.ffw_expand, ", ", c.heads,
                     " heads, ", video.bench.dtype, ", blocks of ", video.tokens, " tokens (",
                     video.frames_of_block(), " frames), texts of ", kWords, ", batch ", video.batch());
  if (video.training_batch() != video.batch())
    report.heading += detail::concat(" (training: ", video.training_batch(), ")");
  report.about.add("dim", c.dim)
      .add("depth", c.depth)
      .add("order", c.order)
      .add("expand", c.order_expand)
      .add("heads", c.heads)
      .add("ffw_expand", c.ffw_expand)
      .add("tokens_of_block", video.tokens)
      .add("frames_of_block", video.frames_of_block());
}

Video plan_video(Bench& bench) {
  const BenchOptions& options = bench.options;
  if (!options.mask.empty()) throw UsageError("--mask: is for pom bench operator");
  if (options.paper) throw UsageError("--paper: is for pom bench figure1");
  if (options.tokens.size() > 1)
    throw UsageError(detail::concat("--tokens: expected one number with video, that of a block, got ",
                                    options.tokens.size()));
  Video video{
      .bench = bench, .pom = network_of(bench), .attention = {}, .blocks = {}, .before = {}, .streams = {}};
  video.tokens = !options.tokens.empty() ? options.tokens.front() : bench.gpu() ? 360 : 64;
  video.blocks = sorted(options.blocks.empty() ? std::vector<std::int64_t>{2, 10} : options.blocks);
  video.before = sorted(!options.before.empty() ? options.before
                        : bench.gpu()           ? std::vector<std::int64_t>{2, 50, 200}
                                                : std::vector<std::int64_t>{2, 20});
  video.streams = sorted(!options.streams.empty() ? options.streams
                         : bench.gpu()            ? std::vector<std::int64_t>{4, 16}
                                                  : std::vector<std::int64_t>{2});
  video.attention = video.pom;
  video.attention.mixer = "attention";
  as_usage([&] {
    models::check_config(video.pom, "");
    models::check_config(video.attention, "");
  });
  describe(video);
  return video;
}

// ---- rows ----

using Contenders = std::vector<Contender>;  // products, PoM, attention; in fp8 also PoM in bf16
using Forecasts = std::array<Forecast, 4>;  // by the tokens that are evaluated, and seen by attention

Forecasts forecasts(const Video& video) {
  return {Forecast(), Forecast(), Forecast(3 * static_cast<double>(video.attention.dim)), Forecast()};
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// `first` stands in the first column, `tokens` are those that the work grows with. `what` begins a note.
BenchRow race(Video& video, const std::string& what, std::int64_t first, std::int64_t tokens,
              std::int64_t batch, Contenders contenders, Forecasts& known) {
  BenchRow row{.tokens = first, .batch = batch};
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (contenders[i].note.empty())
      contenders[i].note = known[i].skip(tokens, batch, video.bench.options.longest);
  std::vector<Timing> timings = interleave(contenders, video.bench.timing());
  for (std::size_t i = 0; i < contenders.size(); ++i) known[i].learn(tokens, batch, timings[i]);
  row.gemms = std::move(timings[0]), row.pom = std::move(timings[1]), row.attention = std::move(timings[2]);
  if (timings.size() > 3 && row.pom.measured() && timings[3].measured()) {
    const double wide = row.ms(timings[3]);
    video.report.notes.push_back(detail::concat(what, ": in bf16 PoM takes ", number_text(wide),
                                                " ms, in fp8 it is ", number_text(wide / row.ms(row.pom)),
                                                " times as fast."));
  }
  return row;
}

void add_row(Video& video, BenchSection& section, BenchRow row) {
  print_row(video.bench, video.report, section, row);
  section.rows.push_back(std::move(row));
}

Contender products(const Video& video, std::vector<GemmShape> shapes, bool backward) {
  const Bench& bench = video.bench;
  return {[&bench, shapes = std::move(shapes), backward] {
    const auto floor = std::make_shared<Gemms>(shapes, bench.type, bench.device);
    return bench.in_graph([floor, backward] { backward ? floor->forward_backward() : floor->forward(); });
  }};
}

// Both halves of guidance; what goes into the network is the same for both, and is multiplied once.
Contenders sampling_contenders(const Video& video, std::int64_t clips, std::int64_t n, std::int64_t before) {
  const Bench& bench = video.bench;
  const BatchSize size = video.size(clips, n);
  std::vector<GemmShape> shapes = token_gemms(video.pom, size.tokens(), 2 * size.pictures);
  shapes.front().rows /= 2;
  const auto network = [&](const NetworkConfig& config, at::ScalarType type) {
    const std::int64_t height = size.side * config.patch, width = size.width() * config.patch;
    const models::SamplingMemory weights =
        models::sampling_memory(config, height, width, type, /*guided=*/true, 1);
    const std::int64_t bytes = models::whole_clip_memory(config, height, width, n + before, kWords, type,
                                                         /*guided=*/true);
    return Contender{
        [&bench, config, type, size, before] { return evaluation(config, type, bench.device, size, before); },
        too_large(bench,
                  weights.weights +
                      size.pictures * (before > 0 && !config.attention() ? weights.per_picture : bytes))};
  };
  Contenders all = {products(video, shapes, /*backward=*/false), network(video.pom, bench.type),
                    network(video.attention, bench.type)};
  if (bench.dtype == "fp8") all.push_back(network(video.pom, at::kBFloat16));
  return all;
}

// ---- sections ----

std::string seconds_and_rate(double ms, double frames) {
  char text[96];
  std::snprintf(text, sizeof text, "%.3g s, %.3g frames a second", ms / 1e3, frames / (ms / 1e3));
  return text;
}

void time_whole(Video& video) {
  BenchSection section{.key = "whole", .title = "A whole clip, one guided evaluation", .unit = "ms per clip"};
  print_section(video.bench, video.report, section);
  Forecasts known = forecasts(video);
  for (const std::int64_t n : video.blocks)
    add_row(video, section,
            race(video, detail::concat("A whole clip of ", n, " blocks"), n * video.tokens, n * video.tokens,
                 video.batch(), sampling_contenders(video, video.batch(), n, 0), known));
  const BenchRow& last = section.rows.back();
  const auto frames = static_cast<double>(video.blocks.back() * video.frames_of_block());
  if (last.pom.measured())
    video.report.notes.push_back(
        detail::concat("Whole, ", frames, " frames in ", kSteps, " guided evaluations: ",
                       seconds_and_rate(last.ms(last.pom) * kSteps, frames), ", without the autoencoder."));
  video.report.sections.push_back(std::move(section));
}

void time_stream(Video& video) {
  BenchSection section{.key = "stream",
                       .title = "A stream, one guided evaluation of one block",
                       .first = "blocks before",
                       .unit = "ms per block"};
  print_section(video.bench, video.report, section);
  // One block takes as long whatever the mixer has behind it, and attention's grows slower than its past.
  Forecasts known = {Forecast(), Forecast(), Forecast(), Forecast()};
  for (const std::int64_t before : video.before)
    add_row(video, section,
            race(video, detail::concat("A block of a stream after ", before), before, video.tokens,
                 video.batch(), sampling_contenders(video, video.batch(), 1, before), known));
  const BenchRow& last = section.rows.back();
  if (last.pom.measured())
    video.report.notes.push_back(detail::concat(
        "A stream, ", kSteps, " guided evaluations of a block of ", video.frames_of_block(), " frames: ",
        seconds_and_rate(last.ms(last.pom) * kSteps, static_cast<double>(video.frames_of_block())),
        ", without the autoencoder."));
  video.report.sections.push_back(std::move(section));
}

// Each with a text of its own, all of them as far, and one evaluation for all: a server's clients.
void time_streams(Video& video) {
  const std::int64_t before = video.before.front();
  BenchSection section{
      .key = "streams",
      .title = detail::concat("Streams in one batch, one guided evaluation of a block of each "
                              "after ",
                              before),
      .first = "streams",
      .unit = "ms per stream"};
  print_section(video.bench, video.report, section);
  Forecasts known = {Forecast(), Forecast(), Forecast(), Forecast()};
  for (const std::int64_t streams : video.streams) {
    const std::string what = detail::concat(streams, " streams in one batch");
    add_row(video, section,
            race(video, what, streams, video.tokens, streams, sampling_contenders(video, streams, 1, before),
                 known));
    const BenchRow& row = section.rows.back();
    if (!row.pom.measured()) continue;
    const double ms = row.ms(row.pom) * static_cast<double>(streams) * kSteps;  // of a block of each
    video.report.notes.push_back(detail::concat(
        what, ", ", kSteps, " guided evaluations of a block of ", video.frames_of_block(),
        " frames of each: ", seconds_and_rate(ms, static_cast<double>(streams * video.frames_of_block())),
        " in all, without the autoencoder."));
  }
  video.report.sections.push_back(std::move(section));
}

void time_training(Video& video) {
  BenchSection section{
      .key = "forward_backward", .title = "Training, forward + backward", .unit = "ms per clip"};
  print_section(video.bench, video.report, section);
  std::unique_ptr<Trainee> trainees[2];
  const Bench& bench = video.bench;
  const auto network = [&](const NetworkConfig& config, std::unique_ptr<Trainee>& trainee,
                           const BatchSize& size) {
    const std::int64_t blocks = size.blocks * size.pictures;
    return Contender{
        [&bench, &trainee, config, size] {
          const Trainee::Options options{.precision = bench.dtype, .graphs = !bench.options.no_graphs};
          if (!trainee) trainee = std::make_unique<Trainee>(config, options, bench.device);
          return trainee->step(size);
        },
        too_large(bench, models::training_memory(config, size.side * config.patch,
                                                 size.width() * config.patch, bench.type, blocks))};
  };
  Forecasts known = forecasts(video);
  for (const std::int64_t n : video.blocks) {
    const BatchSize size = video.size(video.training_batch(), n);
    std::vector<GemmShape> shapes = token_gemms(video.pom, size.tokens(), size.pictures);
    for (const GemmShape& shape : condition_gemms(video.pom, size.pictures, kWords)) shapes.push_back(shape);
    add_row(video, section,
            race(video, "Training", size.tokens(), size.tokens(), size.pictures,
                 {products(video, shapes, /*backward=*/true), network(video.pom, trainees[0], size),
                  network(video.attention, trainees[1], size)},
                 known));
  }
  video.report.sections.push_back(std::move(section));
}

}  // namespace

int bench_video(Bench& bench) {
  Video video = plan_video(bench);
  report_files(bench, video.report.name);
  print_heading(bench, video.report);
  time_whole(video);
  time_stream(video);
  time_streams(video);
  if (times_backward(bench, video.report)) time_training(video);
  return finish_report(bench, video.report);
}

}  // namespace pom::cli
