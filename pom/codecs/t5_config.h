// What config.json says of a T5 encoder (v1.0, v1.1, flan, mT5), and what follows from it: the tensors it
// has, and how distances between tokens are put into buckets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pom/base/fields.h"
#include "pom/codecs/weight_folder.h"

namespace pom::codecs {

// Fields and defaults are those of transformers.
struct T5Config {
  std::string model_type = "t5";
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;  // d
  std::int64_t d_kv = 64;      // k, of one head
  std::int64_t d_ff = 2048;    // f
  std::int64_t num_layers = 6;
  std::int64_t num_heads = 8;  // h; h k need not be d
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  std::string feed_forward_proj = "relu";

  bool gated() const { return feed_forward_proj == "gated-gelu"; }  // v1.1
  std::int64_t inner() const { return num_heads * d_kv; }

  template <class Visit>
  void fields(Visit&& visit) {
    visit(Field{.name = "model_type", .help = "kind of network", .choices = {"t5", "mt5"}}, model_type);
    visit(Field{.name = "vocab_size", .help = "pieces", .least = 1, .most = 1 << 24}, vocab_size);
    visit(Field{.name = "d_model", .help = "width of a token", .least = 1, .most = 65536}, d_model);
    visit(Field{.name = "d_kv", .help = "width of a head", .least = 1, .most = 65536}, d_kv);
    visit(Field{.name = "d_ff", .help = "width within feed-forward layers", .least = 1, .most = 1 << 20},
          d_ff);
    visit(Field{.name = "num_layers", .help = "blocks", .least = 1, .most = 1024}, num_layers);
    visit(Field{.name = "num_heads", .help = "heads", .least = 1, .most = 65536}, num_heads);
    visit(Field{.name = "relative_attention_num_buckets",
                .help = "buckets of distances",
                .least = 4,
                .most = 65536},
          relative_attention_num_buckets);
    visit(Field{.name = "relative_attention_max_distance",
                .help = "distance from which on all are in one bucket",
                .least = 2,
                .most = 1 << 24},
          relative_attention_max_distance);
    visit(Field{.name = "layer_norm_epsilon", .help = "added to the mean square", .least = 0, .most = 1},
          layer_norm_epsilon);
    visit(
        Field{.name = "feed_forward_proj", .help = "feed-forward layers", .choices = {"relu", "gated-gelu"}},
        feed_forward_proj);
  }
};

// Errors begin with `source`.
T5Config read_t5_config(std::string_view json, std::string_view source);

std::vector<TensorSpec> t5_tensors(const T5Config& config);

// The bucket of a key `delta` = j - i tokens after its query, for delta from -(length - 1) to length - 1.
std::vector<std::int64_t> t5_buckets(const T5Config& config, std::int64_t length);

}  // namespace pom::codecs
