#include "pom/eval/dinov2.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/eval/one_thread.h"
#include "pom/io/sha256.h"
#include "pom/models/state_dict.h"

namespace pom::eval {
namespace {

using models::StateDict;

constexpr std::int64_t patch = 14, mlp = 4, side_patches = dinov2_side / patch;
constexpr double norm_eps = 1e-6, position_offset = 0.1;

Dinov2Config config_of(const StateDict& tensors) {
  Dinov2Config config;
  config.width = tensors.shape("cls_token", 3)[2];
  config.depth = tensors.count("blocks.");
  const std::int64_t positions = tensors.shape("pos_embed", 3)[1] - 1;
  config.grid = std::llround(std::sqrt(static_cast<double>(positions)));
  check(config.grid * config.grid == positions && config.grid >= 1, "dinov2: ", tensors.file(),
        ": pos_embed: expected a class token and a square of patches, got ", positions + 1, " positions");
  check(config.width >= 64 && config.width % 64 == 0, "dinov2: ", tensors.file(),
        ": expected a width that is a multiple of 64, got ", config.width);
  check(config.depth >= 1, "dinov2: ", tensors.file(), ": expected blocks, got none");
  return config;
}

std::vector<StateDict::Expected> expected_weights(const Dinov2Config& config) {
  const std::int64_t D = config.width;
  std::vector<StateDict::Expected> all = {{"cls_token", {1, 1, D}},
                                          {"pos_embed", {1, config.grid * config.grid + 1, D}},
                                          {"patch_embed.proj.weight", {D, 3, patch, patch}},
                                          {"patch_embed.proj.bias", {D}}};
  const auto add = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    if (in > 0)
      all.push_back({name + ".weight", {out, in}});
    else
      all.push_back({name + ".weight", {out}});
    all.push_back({name + ".bias", {out}});
  };
  for (std::int64_t i = 0; i < config.depth; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    add(block + "norm1", D, 0);
    add(block + "attn.qkv", 3 * D, D);
    add(block + "attn.proj", D, D);
    all.push_back({block + "ls1.gamma", {D}});
    add(block + "norm2", D, 0);
    add(block + "mlp.fc1", mlp * D, D);
    add(block + "mlp.fc2", D, mlp * D);
    all.push_back({block + "ls2.gamma", {D}});
  }
  add("norm", D, 0);
  return all;
}

}  // namespace

at::Tensor Dinov2::Linear::operator()(const at::Tensor& x) const {
  return at::linear(x, weight, bias);
}

at::Tensor Dinov2::Norm::operator()(const at::Tensor& x) const {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, norm_eps);
}

Dinov2 Dinov2::read(const std::filesystem::path& file, at::ScalarType dtype, const at::Device& device) {
  const c10::NoGradGuard no_grad;
  check(dtype == at::kFloat || dtype == at::kDouble, "dinov2: dtype: expected fp32 or fp64, got ", dtype);
  const io::safetensors::Reader reader(file);
  const StateDict tensors(reader, "");
  Dinov2 network(config_of(tensors), dtype, device);
  tensors.account(expected_weights(network.config_), {"mask_token"});
  const auto get = [&](const std::string& name) { return tensors.read(name).to(device, dtype); };
  const auto pair = [&](const std::string& name, auto& part) {
    part.weight = get(name + ".weight");
    part.bias = get(name + ".bias");
  };
  pair("patch_embed.proj", network.patches_);
  pair("norm", network.norm_);
  for (std::int64_t i = 0; i < network.config_.depth; ++i) {
    const std::string name = "blocks." + std::to_string(i) + ".";
    Block& block = network.blocks_.emplace_back();
    pair(name + "norm1", block.norm1);
    pair(name + "norm2", block.norm2);
    pair(name + "attn.qkv", block.qkv);
    pair(name + "attn.proj", block.proj);
    pair(name + "mlp.fc1", block.fc1);
    pair(name + "mlp.fc2", block.fc2);
    block.scale1 = get(name + "ls1.gamma");
    block.scale2 = get(name + "ls2.gamma");
  }
  const at::Tensor positions = tensors.read("pos_embed").to(at::kCPU, dtype);
  network.class_ = get("cls_token") + positions.narrow(1, 0, 1).to(device);
  network.positions_ =
      dinov2_positions(positions.narrow(1, 1, positions.size(1) - 1), side_patches).to(device);
  network.sha256_ = io::sha256_file(file);
  return network;
}

std::string Dinov2::name() const {
  const std::pair<std::int64_t, std::int64_t> sizes = {config_.depth, config_.width};
  if (sizes == std::pair<std::int64_t, std::int64_t>{24, 1024}) return "dinov2-vitl14";
  if (sizes == std::pair<std::int64_t, std::int64_t>{12, 768}) return "dinov2-vitb14";
  if (sizes == std::pair<std::int64_t, std::int64_t>{12, 384}) return "dinov2-vits14";
  return detail::concat("dinov2-", config_.depth, "-blocks-of-", config_.width);
}

at::Tensor Dinov2::attention(const Block& block, const at::Tensor& x) const {
  const std::int64_t N = x.size(0), T = x.size(1), D = config_.width;
  const at::Tensor parts =
      block.qkv(x).view({N, T, 3, config_.heads(), D / config_.heads()}).permute({2, 0, 3, 1, 4});
  const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  return block.proj(mixed.transpose(1, 2).reshape({N, T, D}));
}

// The class token and one of each patch, row by row, with their positions.
at::Tensor Dinov2::tokens(const at::Tensor& x) const {
  const at::Tensor patches =
      at::conv2d(x, patches_.weight, patches_.bias, {patch, patch}).flatten(2).transpose(1, 2);
  return at::cat({class_.expand({x.size(0), 1, config_.width}), patches + positions_}, 1);
}

at::Tensor Dinov2::run(const at::Tensor& x) const {
  at::Tensor h = tokens(x);
  for (const Block& block : blocks_) {
    h = h + block.scale1 * attention(block, block.norm1(h));
    h = h + block.scale2 * block.fc2(at::gelu(block.fc1(block.norm2(h))));
  }
  return norm_(h.select(1, 0));
}

// On a CPU each picture is one thread's: what a GEMM rounds may depend on how many threads share it.
at::Tensor Dinov2::forward(const at::Tensor& x) const {
  const c10::NoGradGuard no_grad;
  check(x.dim() == 4 && x.size(1) == 3 && x.size(2) == dinov2_side && x.size(3) == dinov2_side,
        "dinov2: x: expected shape (N, 3, 224, 224), got ", x.sizes());
  const at::Tensor input = x.to(device_, dtype_);
  if (!device_.is_cpu()) return run(input);
  at::Tensor features = at::empty({x.size(0), config_.width}, at::TensorOptions(dtype_));
  each_in_one_thread(x.size(0), x.size(0),
                     [&](std::int64_t i) { features[i].copy_(run(input.narrow(0, i, 1))[0]); });
  return features;
}

at::Tensor dinov2_positions(const at::Tensor& positions, std::int64_t side) {
  const std::int64_t grid = std::llround(std::sqrt(static_cast<double>(positions.size(1))));
  if (grid == side) return positions;
  const double scale = (static_cast<double>(side) + position_offset) / static_cast<double>(grid);
  const at::Tensor plane = positions.view({1, grid, grid, -1}).permute({0, 3, 1, 2});
  return at::upsample_bicubic2d(plane, {side, side}, /*align_corners=*/false, scale, scale)
      .flatten(2)
      .transpose(1, 2)
      .contiguous();
}

at::Tensor dinov2_input(const at::Tensor& pictures, InputRule rule, at::ScalarType dtype) {
  const at::Tensor x = resized(pictures, dinov2_side, rule, dtype) / 255;
  const auto planes = [&](double red, double green, double blue) {
    return at::tensor({red, green, blue}, at::kDouble).to(x.options()).view({3, 1, 1});
  };
  return (x - planes(0.485, 0.456, 0.406)) / planes(0.229, 0.224, 0.225);
}

}  // namespace pom::eval
