#include "pom/train/step_model.h"

#include <algorithm>

#include <c10/core/ScalarType.h>

#include "pom/base/error.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"
#include "pom/models/counts.h"

namespace pom::train {
namespace {

constexpr double tera = 1e12, gib = 1073741824.0;

// bench/reports/h200-training.md, `pom bench figure1` of 28 blocks of 1152: the column of GEMMs
// gives rate and launch, that of forward + backward the passes and a block's own time. Reading 1.486 GB in
// 320 µs (h200-causal-decoding.md) gives the bandwidth. recipes/shapes.toml at 20,220 images a second
// (docs/cluster.md) gives what narrow rows cost.
constexpr double measured_flops = 810 * tera, measured_bandwidth = 4.64 * tera, measured_launch = 2e-6;
constexpr double kept_passes = 5.23;     // over what a block keeps, at the bandwidth, for rows without end
constexpr double narrow_width = 140;     // rows of so many numbers take twice as long as such
constexpr double block_kernels = 30e-6;  // seconds of a block's small kernels
constexpr double weight_bytes = 18;      // of a weight of a block: casts, other forms, its gradient
constexpr double attention_flops = 335 * tera;  // of the two products of attention, for long sequences
constexpr double attention_ramp = 1500;         // tokens at which they run at half of that
constexpr double sheet_flops = 989 * tera, sheet_bandwidth = 4.8 * tera;  // of an H200

// Forward again in the backward pass, and the backward pass twice the forward one.
constexpr double forward_share = 1.0 / 3;

std::string as_measured(const char* what) {
  return detail::concat(what,
                        ": products at 810 TFLOP/s (bf16) beside their bytes at 4.64 TB/s, which together "
                        "are 640 to 660 for large ones, measured on an H200",
                        " (bench/reports/h200-training.md, h200-causal-decoding.md)");
}

Processor scaled_h200(std::string_view name, double flops, double flops_fp32, double bandwidth, double memory,
                      bool fused) {
  const double share = measured_flops / sheet_flops, memory_share = measured_bandwidth / sheet_bandwidth;
  Processor p{.name = std::string(name),
              .flops = flops * share,
              .flops_fp32 = flops_fp32 * share,
              .bytes_per_second = bandwidth * memory_share,
              .memory = memory,
              .launch = measured_launch,
              .reserved = gib,
              .fused = fused};
  p.sources = {detail::concat(name, ": not measured: its data sheet (", flops / tera, " TFLOP/s in bf16, ",
                              bandwidth / tera, " TB/s) times what an H200 reaches of its own (",
                              static_cast<int>(100 * share + 0.5), " % and ",
                              static_cast<int>(100 * memory_share + 0.5), " %)")};
  if (!fused)
    p.sources.push_back("the fused kernels are Hopper's: what is done beside products takes longer");
  return p;
}

struct Product {
  double rows, in, out, times;
  double passes = 3;  // forward, of the input, of the weight
};

// With `rows` tokens of `examples` examples on this rank.
std::vector<Product> products_of(const Workload& work, double rows, double examples) {
  const models::NetworkConfig& c = work.network;
  const auto d = static_cast<double>(c.dim), f = static_cast<double>(c.features()),
             depth = static_cast<double>(c.depth), hidden = static_cast<double>(c.ffw_expand) * d;
  const double words = examples * static_cast<double>(work.words);
  std::vector<Product> all = {{rows, static_cast<double>(c.values()), d, 1, 2},
                              {rows, d, static_cast<double>(c.outputs()), 1},
                              {rows, d, hidden, depth},
                              {rows, hidden, d, depth}};
  if (c.attention()) {
    all.push_back({rows, d, 3 * d, depth});
    all.push_back({rows, d, d, depth});
  } else {
    all.push_back({rows, d, f, 2 * depth});
    all.push_back({rows, f, d, depth});
  }
  if (c.video()) {
    const double inner = c.attention() ? d : f;
    all.push_back({rows, d, inner, depth});
    all.push_back({rows, inner, d, depth});
    all.push_back({words, static_cast<double>(c.text_width), d, 1});
    all.push_back({words, d, c.attention() ? 2 * d : f, depth});
  }
  const double conditions = examples * (c.video() ? static_cast<double>(work.blocks) : 1.0);
  all.push_back({conditions, d, (c.video() ? 11 : 6) * d, depth});
  return all;
}

double flops_of(const std::vector<Product>& products) {
  double flops = 0;
  for (const Product& p : products) flops += 2 * p.passes * p.times * p.rows * p.in * p.out;
  return flops;
}

double seconds_of(const std::vector<Product>& products, const Processor& processor, bool lower) {
  const double element = lower ? 2 : 4, rate = lower ? processor.flops : processor.flops_fp32;
  double seconds = 0;
  for (const Product& p : products) {
    const double bytes = element * (p.rows * (p.in + p.out) + p.in * p.out);
    seconds += p.passes * p.times *
               (2 * p.rows * p.in * p.out / rate + bytes / processor.bytes_per_second + processor.launch);
  }
  return seconds;
}

// The two products over all pairs of tokens, forward and two and a half times that backward.
double attention_seconds(const Workload& work, double rows) {
  const models::NetworkConfig& c = work.network;
  if (!c.attention()) return 0;
  const auto n = static_cast<double>(work.tokens()), d = static_cast<double>(c.dim);
  const double flops = 3.5 * 4 * n * d * static_cast<double>(c.depth) * rows;
  return flops / (attention_flops * n / (n + attention_ramp));
}

double beside_products(const Workload& work, const Processor& processor, double examples) {
  const models::NetworkConfig& c = work.network;
  const at::ScalarType dtype = work.precision == "bf16" ? at::kBFloat16 : at::kFloat;
  const models::TrainingActivations each =
      models::training_activations(c, work.height, work.width, dtype, processor.fused);
  const double kept = examples * static_cast<double>(work.blocks * each.kept);
  const double narrow = 1 + narrow_width / static_cast<double>(c.dim);
  const double weights =
      weight_bytes * static_cast<double>(models::block_matrices(c).all) / processor.bytes_per_second;
  return kept_passes * narrow * kept / processor.bytes_per_second +
         static_cast<double>(c.depth) * (block_kernels + weights);
}

// Of processes that share the cores of one machine.
double crowding(const Processor& processor, std::int64_t ranks) {
  if (processor.cores == 0) return 1;
  return std::max(1.0, static_cast<double>(ranks * processor.threads) / static_cast<double>(processor.cores));
}

}  // namespace

std::vector<std::string> processor_names() {
  return {"h200", "h100", "a100"};
}

Processor processor_named(std::string_view name) {
  constexpr double h200_memory = 139 * gib, eighty = 79 * gib;
  if (name == "h200") {
    Processor p = scaled_h200(name, sheet_flops, 67 * tera, sheet_bandwidth, h200_memory, true);
    p.sources = {as_measured("h200")};
    return p;
  }
  if (name == "h100") return scaled_h200(name, 989 * tera, 67 * tera, 3.35 * tera, eighty, true);
  if (name == "a100") return scaled_h200(name, 312 * tera, 19.5 * tera, 2.039 * tera, eighty, false);
  const std::vector<std::string> names = processor_names();
  fail("gpu: expected h200, h100, a100 or cpu, got \"", shown(name), "\"", suggestion(name, names));
}

// Weights, gradient, two moments and average are read, all but the gradient written; the norm reads the
// gradient, and before the next step it is cleared.
double update_bytes(std::int64_t average_every) {
  const double average = 8.0 / static_cast<double>(average_every);
  return 4 * 4 + 3 * 4 + average + 4 + 4;
}

ComputeTime compute_time(const Workload& work, const RankWork& mine, const Processor& processor, Shard shard,
                         std::int64_t ranks) {
  const double parts = static_cast<double>(mine.parts),
               examples = static_cast<double>(mine.examples) / static_cast<double>(mine.sharing);
  const double rows = examples * static_cast<double>(work.tokens());
  const std::vector<Product> products = products_of(work, rows, static_cast<double>(mine.examples));
  ComputeTime t;
  t.flops = parts * flops_of(products);
  double both = 0;
  if (processor.measured()) {
    const double step = processor.step_base + processor.step_block * static_cast<double>(work.network.depth);
    both = step * crowding(processor, ranks) / static_cast<double>(ranks);
  } else {
    t.products = parts * seconds_of(products, processor, work.precision == "bf16");
    both = t.products + parts * (attention_seconds(work, rows) + beside_products(work, processor, examples));
  }
  t.forward = forward_share * both;
  t.backward = both - t.forward + (work.batch.checkpointing && !processor.measured() ? t.forward : 0);
  const bool divided = shard != Shard::none && ranks > 1;
  const double numbers =
      static_cast<double>(work.parameters()) / (divided ? static_cast<double>(ranks) : 1.0);
  const double shared = processor.cores > 0 ? static_cast<double>(ranks) : 1;  // one memory for all of them
  t.update = numbers * update_bytes(work.average_every) * shared / processor.bytes_per_second;
  if (processor.measured()) {  // what was measured has the update of one rank in it
    const double inside = static_cast<double>(work.parameters()) * update_bytes(work.average_every) /
                          processor.bytes_per_second / static_cast<double>(ranks);
    const double less = std::min(inside, 0.5 * both);
    t.forward -= forward_share * less;
    t.backward -= (1 - forward_share) * less;
  }
  return t;
}

}  // namespace pom::train
