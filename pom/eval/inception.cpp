#include "pom/eval/inception.h"

#include <set>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/io/sha256.h"
#include "pom/models/state_dict.h"

namespace pom::eval {
namespace {

constexpr double batch_norm_eps = 1e-3;
constexpr std::int64_t spatial_channels = 7;

// The list of convolutions, in the order of the forward pass.
class ConvList {
 public:
  std::vector<InceptionConv> all;

  // Padded so that a stride of 1 keeps the size, or not at all.
  void add(const std::string& name, std::int64_t out, std::int64_t in, std::array<std::int64_t, 2> kernel,
           std::int64_t stride = 1, bool padded = true) {
    const std::array<std::int64_t, 2> padding = {padded ? kernel[0] / 2 : 0, padded ? kernel[1] / 2 : 0};
    all.push_back({name, out, in, kernel, stride, padding});
  }
  void beginning() {
    add("Conv2d_1a_3x3", 32, 3, {3, 3}, 2, false);
    add("Conv2d_2a_3x3", 32, 32, {3, 3}, 1, false);
    add("Conv2d_2b_3x3", 64, 32, {3, 3});
    add("Conv2d_3b_1x1", 80, 64, {1, 1}, 1, false);
    add("Conv2d_4a_3x3", 192, 80, {3, 3}, 1, false);
  }
  void a(const std::string& name, std::int64_t in, std::int64_t pool) {
    const std::string b = name + ".branch";
    add(b + "1x1", 64, in, {1, 1});
    add(b + "5x5_1", 48, in, {1, 1});
    add(b + "5x5_2", 64, 48, {5, 5});
    add(b + "3x3dbl_1", 64, in, {1, 1});
    add(b + "3x3dbl_2", 96, 64, {3, 3});
    add(b + "3x3dbl_3", 96, 96, {3, 3});
    add(b + "_pool", pool, in, {1, 1});
  }
  void b(const std::string& name) {
    const std::string b = name + ".branch";
    add(b + "3x3", 384, 288, {3, 3}, 2, false);
    add(b + "3x3dbl_1", 64, 288, {1, 1});
    add(b + "3x3dbl_2", 96, 64, {3, 3});
    add(b + "3x3dbl_3", 96, 96, {3, 3}, 2, false);
  }
  void c(const std::string& name, std::int64_t width) {
    const std::string b = name + ".branch";
    add(b + "1x1", 192, 768, {1, 1});
    add(b + "7x7_1", width, 768, {1, 1});
    add(b + "7x7_2", width, width, {1, 7});
    add(b + "7x7_3", 192, width, {7, 1});
    add(b + "7x7dbl_1", width, 768, {1, 1});
    add(b + "7x7dbl_2", width, width, {7, 1});
    add(b + "7x7dbl_3", width, width, {1, 7});
    add(b + "7x7dbl_4", width, width, {7, 1});
    add(b + "7x7dbl_5", 192, width, {1, 7});
    add(b + "_pool", 192, 768, {1, 1});
  }
  void d(const std::string& name) {
    const std::string b = name + ".branch";
    add(b + "3x3_1", 192, 768, {1, 1});
    add(b + "3x3_2", 320, 192, {3, 3}, 2, false);
    add(b + "7x7x3_1", 192, 768, {1, 1});
    add(b + "7x7x3_2", 192, 192, {1, 7});
    add(b + "7x7x3_3", 192, 192, {7, 1});
    add(b + "7x7x3_4", 192, 192, {3, 3}, 2, false);
  }
  void e(const std::string& name, std::int64_t in) {
    const std::string b = name + ".branch";
    add(b + "1x1", 320, in, {1, 1});
    add(b + "3x3_1", 384, in, {1, 1});
    add(b + "3x3_2a", 384, 384, {1, 3});
    add(b + "3x3_2b", 384, 384, {3, 1});
    add(b + "3x3dbl_1", 448, in, {1, 1});
    add(b + "3x3dbl_2", 384, 448, {3, 3});
    add(b + "3x3dbl_3a", 384, 384, {1, 3});
    add(b + "3x3dbl_3b", 384, 384, {3, 1});
    add(b + "_pool", 192, in, {1, 1});
  }
};

std::vector<InceptionConv> all_convs() {
  ConvList list;
  list.beginning();
  list.a("Mixed_5b", 192, 32);
  list.a("Mixed_5c", 256, 64);
  list.a("Mixed_5d", 288, 64);
  list.b("Mixed_6a");
  list.c("Mixed_6b", 128);
  list.c("Mixed_6c", 160);
  list.c("Mixed_6d", 160);
  list.c("Mixed_6e", 192);
  list.d("Mixed_7a");
  list.e("Mixed_7b", 1280);
  list.e("Mixed_7c", 2048);
  return list.all;
}

using models::StateDict;

std::vector<StateDict::Expected> expected_weights() {
  std::vector<StateDict::Expected> all;
  for (const InceptionConv& conv : inception_convs()) {
    all.push_back({conv.name + ".conv.weight", {conv.out, conv.in, conv.kernel[0], conv.kernel[1]}});
    for (const char* norm : {".bn.weight", ".bn.bias", ".bn.running_mean", ".bn.running_var"})
      all.push_back({conv.name + norm, {conv.out}});
  }
  all.push_back({"fc.weight", {inception_outputs, inception_features}});
  all.push_back({"fc.bias", {inception_outputs}});
  return all;
}

// Counters of training that some files have and nobody needs.
std::set<std::string> dropped_weights() {
  std::set<std::string> names;
  for (const InceptionConv& conv : inception_convs()) names.insert(conv.name + ".bn.num_batches_tracked");
  return names;
}

at::Tensor average_pool(const at::Tensor& x) {
  return at::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1}, /*ceil_mode=*/false, /*count_include_pad=*/false);
}

at::Tensor max_pool(const at::Tensor& x) {
  return at::max_pool2d(x, {3, 3}, {2, 2});
}

at::Tensor mean_of_pixels(const at::Tensor& x) {
  return x.mean({2, 3});
}

void check_weights(const Inception::Weights& weights) {
  const std::set<std::string> dropped = dropped_weights();
  std::set<std::string> known = dropped;
  for (const StateDict::Expected& each : expected_weights()) {
    const auto found = weights.find(each.name);
    check(found != weights.end(), "inception: expected the tensor ", each.name, ", got none of that name");
    check(found->second.sizes() == at::IntArrayRef(each.shape), "inception: ", each.name, ": expected shape ",
          at::IntArrayRef(each.shape), ", got ", found->second.sizes());
    known.insert(each.name);
  }
  for (const auto& [name, tensor] : weights)
    check(known.contains(name), "inception: ", name, ": expected the tensors of Inception-v3 of 2015, got ",
          "this one as well");
}

// Where convolutions in fp32 are fastest: of cuDNN's, without TF32, those over planes.
at::MemoryFormat layout_on(const at::Device& device) {
  return device.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

}  // namespace

const std::vector<InceptionConv>& inception_convs() {
  static const std::vector<InceptionConv> all = all_convs();
  return all;
}

// The batch norm goes into weights and bias, in fp64.
Inception::Inception(const Weights& weights, at::ScalarType dtype, const at::Device& device)
    : dtype_(dtype), device_(device), layout_(layout_on(device)) {
  c10::NoGradGuard no_grad;
  check(dtype == at::kFloat || dtype == at::kDouble, "inception: dtype: expected fp32 or fp64, got ", dtype);
  check_weights(weights);
  const auto fp64 = [&](const std::string& name) { return weights.at(name).to(at::kCPU, at::kDouble); };
  for (const InceptionConv& conv : inception_convs()) {
    const at::Tensor scale =
        fp64(conv.name + ".bn.weight") / (fp64(conv.name + ".bn.running_var") + batch_norm_eps).sqrt();
    const at::Tensor weight = fp64(conv.name + ".conv.weight") * scale.view({-1, 1, 1, 1});
    const at::Tensor bias = fp64(conv.name + ".bn.bias") - fp64(conv.name + ".bn.running_mean") * scale;
    layers_[conv.name] = {weight.to(device, dtype).contiguous(layout_), bias.to(device, dtype), &conv};
  }
  fc_ = weights.at("fc.weight").to(device, dtype);
}

Inception Inception::read(const std::filesystem::path& file, at::ScalarType dtype, const at::Device& device) {
  const io::safetensors::Reader reader(file);
  const StateDict tensors(reader, "");
  tensors.account(expected_weights(), dropped_weights());
  Weights weights;
  for (const StateDict::Expected& each : expected_weights()) weights[each.name] = tensors.read(each.name);
  Inception network(weights, dtype, device);
  network.sha256_ = io::sha256_file(file);
  return network;
}

at::Tensor Inception::conv(const at::Tensor& x, const std::string& name) const {
  const Layer& layer = layers_.at(name);
  return at::relu(at::conv2d(x, layer.weight, layer.bias, {layer.conv->stride, layer.conv->stride},
                             {layer.conv->padding[0], layer.conv->padding[1]}));
}

at::Tensor Inception::chain(at::Tensor x, const std::string& block,
                            std::initializer_list<const char*> names) const {
  for (const char* name : names) x = conv(x, block + ".branch" + name);
  return x;
}

at::Tensor Inception::block_a(const at::Tensor& x, const std::string& block) const {
  return at::cat(
      {chain(x, block, {"1x1"}), chain(x, block, {"5x5_1", "5x5_2"}),
       chain(x, block, {"3x3dbl_1", "3x3dbl_2", "3x3dbl_3"}), chain(average_pool(x), block, {"_pool"})},
      1);
}

at::Tensor Inception::block_b(const at::Tensor& x, const std::string& block) const {
  return at::cat(
      {chain(x, block, {"3x3"}), chain(x, block, {"3x3dbl_1", "3x3dbl_2", "3x3dbl_3"}), max_pool(x)}, 1);
}

at::Tensor Inception::block_c(const at::Tensor& x, const std::string& block) const {
  return at::cat({chain(x, block, {"1x1"}), chain(x, block, {"7x7_1", "7x7_2", "7x7_3"}),
                  chain(x, block, {"7x7dbl_1", "7x7dbl_2", "7x7dbl_3", "7x7dbl_4", "7x7dbl_5"}),
                  chain(average_pool(x), block, {"_pool"})},
                 1);
}

at::Tensor Inception::block_d(const at::Tensor& x, const std::string& block) const {
  return at::cat({chain(x, block, {"3x3_1", "3x3_2"}),
                  chain(x, block, {"7x7x3_1", "7x7x3_2", "7x7x3_3", "7x7x3_4"}), max_pool(x)},
                 1);
}

at::Tensor Inception::block_e(const at::Tensor& x, const std::string& block, bool last) const {
  const at::Tensor wide = chain(x, block, {"3x3_1"}), deep = chain(x, block, {"3x3dbl_1", "3x3dbl_2"});
  const at::Tensor pooled = last ? at::max_pool2d(x, {3, 3}, {1, 1}, {1, 1}) : average_pool(x);
  return at::cat(
      {chain(x, block, {"1x1"}), chain(wide, block, {"3x3_2a"}), chain(wide, block, {"3x3_2b"}),
       chain(deep, block, {"3x3dbl_3a"}), chain(deep, block, {"3x3dbl_3b"}), chain(pooled, block, {"_pool"})},
      1);
}

at::Tensor Inception::beginning(const at::Tensor& x, const InceptionWanted& wanted,
                                InceptionFeatures& out) const {
  at::Tensor h = conv(conv(conv(x, "Conv2d_1a_3x3"), "Conv2d_2a_3x3"), "Conv2d_2b_3x3");
  h = max_pool(h);
  if (wanted.early) out.pool64 = mean_of_pixels(h);
  h = max_pool(conv(conv(h, "Conv2d_3b_1x1"), "Conv2d_4a_3x3"));
  if (wanted.early) out.pool192 = mean_of_pixels(h);
  return h;
}

InceptionFeatures Inception::forward(const at::Tensor& x, const InceptionWanted& wanted) const {
  c10::NoGradGuard no_grad;
  check(x.dim() == 4 && x.size(1) == 3 && x.size(2) == inception_side && x.size(3) == inception_side,
        "inception: x: expected shape (N, 3, 299, 299), got ", x.sizes());
  InceptionFeatures out;
  at::Tensor h = beginning(x.to(device_, dtype_).contiguous(layout_), wanted, out);
  if (!wanted.pool768 && !wanted.spatial && !wanted.pool3 && !wanted.logits) return out;
  for (const char* block : {"Mixed_5b", "Mixed_5c", "Mixed_5d"}) h = block_a(h, block);
  h = block_b(h, "Mixed_6a");
  h = block_c(block_c(h, "Mixed_6b"), "Mixed_6c");
  if (wanted.spatial)
    out.spatial =
        chain(h, "Mixed_6d", {"1x1"}).narrow(1, 0, spatial_channels).permute({0, 2, 3, 1}).flatten(1);
  h = block_c(block_c(h, "Mixed_6d"), "Mixed_6e");
  if (wanted.pool768) out.pool768 = mean_of_pixels(h);
  if (!wanted.pool3 && !wanted.logits) return out;
  h = block_d(h, "Mixed_7a");
  h = block_e(h, "Mixed_7b", false);
  h = block_e(h, "Mixed_7c", true);
  out.pool3 = mean_of_pixels(h);
  if (wanted.logits) out.logits = at::linear(out.pool3, fc_);
  return out;
}

}  // namespace pom::eval
