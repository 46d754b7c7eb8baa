// What the benchmarks of `pom bench` share: what was asked for, and where and in what it runs.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "cli/bench/timing.h"
#include "cli/common_fields.h"
#include "cli/signals.h"
#include "pom/base/fields.h"
#include "pom/generate/device.h"

namespace pom::cli {

struct BenchOptions {
  std::string what, device = "auto", dtype, variant, mask, output;
  std::vector<std::int64_t> tokens, blocks, before, streams;
  std::optional<std::int64_t> batch, dim, depth, heads, ffw_expand, order, expand;
  double budget = 2, longest = 5;
  std::int64_t threads = 0;
  bool paper = false, no_backward = false, no_graphs = false;
  bool yes = false, json = false, quiet = false;

  template <class Visit>
  void fields(Visit&& visit) {
    about_fields(visit);
    size_fields(visit);
    constexpr std::string_view where = "Where it goes", work = "How to work";
    visit(Field{.name = "output",
                .help = "folder for the report: .md, .svg and .json of the benchmark's name",
                .value = "DIR",
                .group = where},
          output);
    visit(yes_field(where), yes);
    visit(json_field(where), json);
    visit(quiet_field(where), quiet);
    visit(generate::device_field(work), device);
    visit(Field{.name = "budget",
                .help = "seconds per row, roughly",
                .value = "X",
                .group = work,
                .least = 0,
                .most = 3600},
          budget);
    visit(
        Field{
            .name = "longest",
            .help =
                "skip calls that would take longer than this many seconds, extrapolated from the row before",
            .value = "X",
            .group = work,
            .least = 0,
            .most = 3600},
        longest);
    visit(Field{.name = "no_graphs",
                .help = "on a GPU: GEMMs, layers and the networks' forward + backward are launched one by "
                        "one, not as CUDA graphs; for the networks' forward set POM_GRAPHS=0",
                .group = work},
          no_graphs);
    visit(threads_field(work), threads);
  }

 private:
  template <class Visit>
  void about_fields(Visit&& visit) {
    constexpr std::string_view about = "About";
    visit(Field{.name = "what",
                .help = "the network of images, a single layer, or the network of clips",
                .value = "figure1|operator|video",
                .group = about,
                .choices = {"figure1", "operator", "video"}},
          what);
    visit(Field{.name = "dtype",
                .help =
                    "dtype of the GEMMs: fp32, bf16, fp16, fp8 (e4m3, networks on a GPU); default: bf16 on a "
                    "GPU, else fp32",
                .value = "NAME",
                .group = about,
                .choices = {"fp32", "bf16", "fp16", "fp8"}},
          dtype);
    visit(Field{.name = "tokens",
                .help = "numbers of tokens (figure1: squares; video: those of a block); default: 256 to "
                        "65536 on a GPU, else 64 to 1024, of video 360 and 64",
                .value = "N,N",
                .group = about,
                .least = 1,
                .most = 1 << 24},
          tokens);
    visit(Field{.name = "batch",
                .help = "batch size; default: 4 on a GPU and 1 from 65536 tokens on, else 1",
                .value = "N",
                .group = about,
                .least = 1,
                .most = 65536},
          batch);
    visit(Field{.name = "blocks",
                .help = "video: blocks of clips that are made whole, and of those that are trained on "
                        "(default: 2,10)",
                .value = "N,N",
                .group = about,
                .least = 1,
                .most = 4096},
          blocks);
    visit(Field{.name = "before",
                .help = "video: blocks of a stream before the one that is timed; default: 2,50,200 on a GPU, "
                        "else 2,20",
                .value = "N,N",
                .group = about,
                .least = 0,
                .most = 1 << 20},
          before);
    visit(Field{.name = "streams",
                .help = "video: streams, each with a text of its own, whose blocks are made in one batch; "
                        "default: 4,16 on a GPU, else 2",
                .value = "N,N",
                .group = about,
                .least = 1,
                .most = 65536},
          streams);
    visit(Field{.name = "no_backward", .help = "the forward pass only", .group = about}, no_backward);
    visit(
        Field{.name = "paper",
              .help = "figure1 as in the paper: fp32, batch 4, a feed-forward of 2 against attention's 4, an "
                      "AdamW step in forward + backward",
              .group = about},
        paper);
  }

  template <class Visit>
  void size_fields(Visit&& visit) {
    constexpr std::string_view sizes = "Sizes";
    const auto number = [&](std::string_view name, std::string_view help, double most, auto& value) {
      visit(Field{.name = name, .help = help, .value = "N", .group = sizes, .least = 1, .most = most}, value);
    };
    visit(Field{.name = "variant",
                .help = "figure1, video: S, B, L or XL gives dim, depth and heads; default: XL on a GPU, "
                        "else 6 blocks of S",
                .value = "NAME",
                .group = sizes},
          variant);
    number("dim", "width of a token; default of operator: 1152, on a processor 384", 65536, dim);
    number("depth", "figure1, video: number of layers", 1000, depth);
    number("heads", "attention heads; default of operator: heads of 72 or 64", 1024, heads);
    number("ffw_expand",
           "figure1, video: hidden features of the feed-forward, as a multiple of dim (default: 4)", 64,
           ffw_expand);
    number("order", "degree of the mixer (default: 2)", 64, order);
    number("expand", "features per degree, as a multiple of dim (default: 2)", 64, expand);
    visit(Field{.name = "mask",
                .help = "operator: none, causal, or block:K for blocks of K tokens",
                .value = "MASK",
                .group = sizes},
          mask);
  }
};

// A benchmark that runs.
struct Bench {
  const BenchOptions& options;
  const StopSignals& signals;
  c10::Device device;
  std::string dtype;
  c10::ScalarType type = c10::ScalarType::Float;
  std::string started = {};  // the date

  bool gpu() const { return device.is_cuda(); }
  std::int64_t batch_at(std::int64_t tokens) const;
  TimingOptions timing() const;
  // The call as a CUDA graph, where there are any.
  Call in_graph(const Call& call) const;
  void remark(const std::string& text) const;
};

// Flags that only `pom bench video` has.
void refuse_of_video(const Bench& bench);

// On the device and in the dtype that the options ask for, or that suit each other.
Bench make_bench(const BenchOptions& options, const StopSignals& signals);

// How long a call will take, by the last one of its kind that was timed: the time of a picture goes with
// N (1 + N / even), `even` being the length at which what grows with its square takes half of the time.
class Forecast {
 public:
  explicit Forecast(double even = std::numeric_limits<double>::infinity()) : even_(even) {}
  void learn(std::int64_t tokens, std::int64_t batch, const Timing& timing);
  // The note of a contender that would take more than `longest` seconds; empty: let it run.
  std::string skip(std::int64_t tokens, std::int64_t batch, double longest) const;

 private:
  double cost(std::int64_t tokens) const;
  double even_;
  double rate_ = 0;  // seconds for a unit of cost; 0: nothing is known
};

// The note of a contender that a processor has no memory for, before the system ends the program for it: a
// GPU says so by itself. Empty: let it run.
std::string too_large(const Bench& bench, std::int64_t bytes);

int bench_figure1(Bench& bench);
int bench_operator(Bench& bench);
int bench_video(Bench& bench);

// "pom bench figure1 --tokens 64,256": what was asked for, as one would type it.
std::string typed_command(const BenchOptions& options);

}  // namespace pom::cli
