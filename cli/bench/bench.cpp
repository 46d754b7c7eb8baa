// `pom bench`: how fast the network and its layer are on this machine, beside attention and beside the matrix
// products alone.
#include "cli/bench/bench.h"

#include <cstdio>
#include <ctime>
#include <memory>

#include <c10/core/DeviceGuard.h>

#include "cli/bench/cuda.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/processor.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "pom/base/error.h"
#include "pom/generate/process.h"
#include "pom/ops/block/inference.h"

namespace pom::cli {
namespace {

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts);
  return text;
}

c10::ScalarType type_of(const std::string& dtype) {
  if (dtype == "bf16") return at::kBFloat16;
  if (dtype == "fp16") return at::kHalf;
  if (dtype == "fp8") return at::kFloat8_e4m3fn;
  return at::kFloat;
}

int bench(const BenchOptions& options) {
  if (options.what.empty())
    throw UsageError("expected what to time, got nothing: pom bench figure1, operator or video");
  set_threads(options.threads);
  const StopSignals signals;
  Bench bench = make_bench(options, signals);
  const c10::DeviceGuard guard(bench.device);
  try {
    if (options.what == "video") return bench_video(bench);
    return options.what == "figure1" ? bench_figure1(bench) : bench_operator(bench);
  } catch (const BenchStopped&) {
    say("stopped; no report was written");
    return signals.exit_code();
  }
}

// A field's value as one would type it after its flag; empty: as it is by itself.
std::string typed(const std::string& value) {
  return value;
}
std::string typed(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}
std::string typed(const std::optional<std::int64_t>& value) {
  return value ? std::to_string(*value) : std::string();
}
template <class Number>
std::string typed(const Number& value) {
  return detail::concat(value);
}

Action declare_bench(Flags& flags) {
  const auto options = std::make_shared<BenchOptions>();
  flags.positional("what");
  flags.letter("output", 'o');
  flags.letter("yes", 'y');
  flags.letter("quiet", 'q');
  flags.add(*options);
  return [options] { return bench(*options); };
}

}  // namespace

Bench make_bench(const BenchOptions& options, const StopSignals& signals) {
  const c10::Device device = as_usage([&] { return generate::device_named(options.device, "bench"); });
  std::string dtype = options.dtype;
  if (dtype.empty()) dtype = device.is_cuda() && !options.paper ? "bf16" : "fp32";
  if (dtype == "fp8")
    if (const std::string reason = ops::fp8_refusal(device); !reason.empty())
      throw UsageError("--dtype: " + reason);
  return {options, signals, device, dtype, type_of(dtype), date_text()};
}

void refuse_of_video(const Bench& bench) {
  if (!bench.options.blocks.empty()) throw UsageError("--blocks: is for pom bench video");
  if (!bench.options.before.empty()) throw UsageError("--before: is for pom bench video");
  if (!bench.options.streams.empty()) throw UsageError("--streams: is for pom bench video");
}

std::int64_t Bench::batch_at(std::int64_t tokens) const {
  if (options.batch) return *options.batch;
  if (options.paper) return 4;
  return gpu() && tokens < 65536 ? 4 : 1;
}

TimingOptions Bench::timing() const {
  return {.device = device, .budget = options.budget, .stop = &signals.asked()};
}

Call Bench::in_graph(const Call& call) const {
  return gpu() && !options.no_graphs ? captured(call) : call;
}

void Bench::remark(const std::string& text) const {
  if (!options.quiet) say(text);
}

double Forecast::cost(std::int64_t tokens) const {
  const auto length = static_cast<double>(tokens);
  return length * (1 + length / even_);
}

void Forecast::learn(std::int64_t tokens, std::int64_t batch, const Timing& timing) {
  if (timing.measured()) rate_ = timing.median() / static_cast<double>(batch) / cost(tokens);
}

std::string Forecast::skip(std::int64_t tokens, std::int64_t batch, double longest) const {
  const double seconds = rate_ * cost(tokens) * static_cast<double>(batch);
  return seconds > longest ? "skipped: about " + seconds_text(seconds) + " a call" : std::string();
}

std::string too_large(const Bench& bench, std::int64_t bytes) {
  const std::int64_t there = generate::available_bytes();
  if (bench.gpu() || there == 0 || bytes < there / 10 * 9) return {};
  return "skipped: needs about " + bytes_text(static_cast<double>(bytes));
}

std::string typed_command(const BenchOptions& options) {
  std::string line = "pom bench " + options.what;
  BenchOptions given = options, usual;
  std::vector<std::string> plain;
  usual.fields([&]<class Value>(const Field&, Value& value) {
    if constexpr (std::is_same_v<Value, bool>)
      plain.emplace_back();
    else
      plain.push_back(typed(value));
  });
  std::size_t place = 0;
  given.fields([&]<class Value>(const Field& field, Value& value) {
    const std::string& before = plain[place++];
    if (field.name == "what") return;
    if constexpr (std::is_same_v<Value, bool>) {
      if (value) line += " " + flag_name(field.name);
    } else if (const std::string text = typed(value); text != before) {
      line += " " + flag_name(field.name) + " " + text;
    }
  });
  return line;
}

Command bench_command() {
  return {
      .name = "bench",
      .summary = "time the networks, or a layer, against attention",
      .usage = "bench figure1|operator|video [flags]",
      .about =
          "figure1 times the network with the Polynomial Mixer and the same network with attention against "
          "the number of tokens, forward (as sampling does it) and forward + backward (as training does it), "
          "and the GEMMs of the first one alone, as torch does them. operator does the same for a single "
          "layer, and says what share of the machine's speed it reaches. video times the network of clips: a "
          "guided evaluation of a whole clip, of one block of a stream after many others, and of several "
          "streams in "
          "one batch, and training.\n"
          "\n"
          "All contenders of a row are called in turn in one process. A figure is the median of its rounds, "
          "in ms per image or clip; after it stands half of what lies between the 10th and the 90th "
          "percentile.",
      .examples =
          "pom bench figure1 --tokens 64,256 --dim 64 --depth 2 --heads 2\n"
          "pom bench operator --tokens 64,256 --dim 64 --mask causal --budget 0.5\n"
          "pom bench video --tokens 16 --blocks 2 --before 4 --dim 64 --heads 2",
      .declare = declare_bench,
  };
}

}  // namespace pom::cli
