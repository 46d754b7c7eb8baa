#include "pom/models/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/base/shown.h"
#include "pom/base/suggest.h"

namespace pom::models {
namespace {

namespace st = io::safetensors;

std::string shape_text(std::span<const std::int64_t> shape) {
  constexpr std::size_t most = 16;  // of a file of others there may be any number
  std::string text = "(";
  for (std::size_t i = 0; i < std::min(shape.size(), most); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > most ? ", …)" : ")");
}

class Specs {
 public:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    all_.push_back({name, std::move(shape)});
  }
  void linear(const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  std::vector<TensorSpec> take() { return std::move(all_); }

 private:
  std::vector<TensorSpec> all_;
};

void add_mixer(Specs& specs, const std::string& mixer, const NetworkConfig& c) {
  specs.linear(mixer + ".ho_proj", c.dim, c.features());
  specs.linear(mixer + ".se_proj", c.dim, c.features());
  specs.linear(mixer + ".ag_proj", c.features(), c.dim);
}

// What mixes text into a clip.
void add_cross(Specs& specs, const std::string& layer, const NetworkConfig& c) {
  if (!c.attention()) return add_mixer(specs, layer + "c_pom", c);
  specs.linear(layer + "c_attn.q", c.dim, c.dim);
  specs.linear(layer + "c_attn.kv", c.dim, 2 * c.dim);
  specs.linear(layer + "c_attn.proj", c.dim, c.dim);
}

void add_layer(Specs& specs, const std::string& layer, const NetworkConfig& c) {
  if (c.video()) add_cross(specs, layer, c);
  if (c.attention()) {
    specs.linear(layer + "attn.qkv", c.dim, 3 * c.dim);
    specs.linear(layer + "attn.proj", c.dim, c.dim);
  } else {
    add_mixer(specs, layer + "pom", c);
  }
  specs.linear(layer + "ffw.0", c.dim, c.ffw_expand * c.dim);
  specs.linear(layer + "ffw.2", c.ffw_expand * c.dim, c.dim);
  specs.linear(layer + "cond_mlp.1", c.dim, (c.video() ? 8 : 4) * c.dim);
  specs.linear(layer + "gate_mlp.1", c.dim, (c.video() ? 3 : 2) * c.dim);
}

// ---- first values ----

bool has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

at::Tensor normal(const TensorSpec& spec, const NoiseKey& key, float deviation) {
  at::Tensor values = at::empty(spec.shape, at::kFloat);
  fill_normal(values.data_ptr<float>(), values.numel(), key);
  return values.mul_(deviation);
}

at::Tensor xavier_uniform(const TensorSpec& spec, const NoiseKey& key) {
  at::Tensor values = at::empty(spec.shape, at::kFloat);
  fill_uniform(values.data_ptr<float>(), values.numel(), key);
  const double out = static_cast<double>(spec.shape[0]), in = static_cast<double>(values.numel()) / out;
  const double bound = std::sqrt(6.0 / (in + out));
  return values.mul_(2 * bound).sub_(bound);
}

at::Tensor initial(const TensorSpec& spec, const NetworkConfig& config, const NoiseKey& key) {
  const std::string& name = spec.name;
  const bool bias = name.ends_with(".bias");
  // Each block starts as the identity: no modulation, and a gate 1 + g (attention: g) that is shut.
  if (has(name, "gate_mlp"))
    return at::full(spec.shape, bias && !config.attention() ? -1.0 : 0.0, at::kFloat);
  if (has(name, "cond_mlp")) return at::zeros(spec.shape, at::kFloat);
  // The first prediction is zero, whatever the picture: the loss starts at the target's own variance.
  if (has(name, "out_proj") || has(name, "out_mod")) return at::zeros(spec.shape, at::kFloat);
  if (bias) return at::zeros(spec.shape, at::kFloat);
  // Classes and times start near each other, so that the network first learns what they have in common.
  if (has(name, "classes_emb") || has(name, "time_emb") || name == "no_text") return normal(spec, key, 0.02F);
  // The variance of activations is kept forward and backward; a convolution counts as the product it is.
  return xavier_uniform(spec, key);
}

// ---- every tensor accounted for ----

struct Found {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Computed from the configuration, and so allowed but not read.
bool derived(std::string_view name) {
  return name == "freqs";
}

// "every name begins with \"model.\"" where taking a prefix off would mend it.
std::string prefix_guess(const std::vector<Found>& found,
                         const std::map<std::string, std::vector<std::int64_t>>& expected) {
  constexpr std::size_t longest = 256;        // a prefix, not a text: keeps the work small
  std::map<std::string, std::size_t> counts;  // of the names that are one of ours behind this prefix
  for (const Found& tensor : found)
    for (std::size_t dot = tensor.name.find('.'); dot < longest; dot = tensor.name.find('.', dot + 1))
      if (expected.contains(tensor.name.substr(dot + 1))) ++counts[tensor.name.substr(0, dot + 1)];
  for (const auto& [prefix, count] : counts)
    if (count * 2 > expected.size())
      return detail::concat("; ", count, " of the names begin with \"", shown(prefix),
                            "\": are these the weights of a training checkpoint? Take the prefix off");
  const bool authors = std::ranges::any_of(found, [](const Found& t) { return has(t.name, ".hom."); });
  if (authors && !expected.empty()) return "; names with \"hom\" are the authors': here they say \"pom\"";
  return {};
}

void account(const std::vector<Found>& found, const NetworkConfig& config, std::string_view where) {
  std::map<std::string, std::vector<std::int64_t>> expected;
  for (TensorSpec& spec : expected_tensors(config)) expected.emplace(spec.name, std::move(spec.shape));
  std::vector<std::string> extra, missing;
  std::map<std::string, const Found*> present;
  for (const Found& tensor : found) {
    present[tensor.name] = &tensor;
    if (!expected.contains(tensor.name) && !derived(tensor.name)) extra.push_back(tensor.name);
  }
  for (const auto& [name, shape] : expected)
    if (!present.contains(name)) missing.push_back(name);
  const bool no_token = missing == std::vector<std::string>{"no_text"};
  if (!missing.empty())
    fail(where, ": tensor \"", missing[0], "\" of shape ", shape_text(expected[missing[0]]), " is missing",
         missing.size() > 1 ? detail::concat(", and ", missing.size() - 1, " more") : "",
         extra.empty() ? ""
                       : detail::concat("; the file has ", extra.size(), " that the network does not, \"",
                                        shown(extra[0]), "\" first"),
         no_token ? "; where a mask of zeros stands for no text, network.no_text is \"mask\"" : "",
         prefix_guess(found, expected));
  if (!extra.empty())
    fail(where, ": tensor \"", shown(extra[0]), "\" is not part of the network",
         extra.size() > 1 ? detail::concat(", nor are ", extra.size() - 1, " more") : "");
  for (const auto& [name, shape] : expected)
    check(present[name]->shape == shape, where, ": tensor \"", name, "\": expected shape ", shape_text(shape),
          ", got ", shape_text(present[name]->shape));
}

at::ScalarType torch_dtype(const st::TensorInfo& tensor, const std::string& where) {
  switch (tensor.dtype) {
    case st::Dtype::F32:
      return at::kFloat;
    case st::Dtype::F64:
      return at::kDouble;
    case st::Dtype::BF16:
      return at::kBFloat16;
    case st::Dtype::F16:
      return at::kHalf;
    default:
      fail(where, ": tensor \"", shown(tensor.name), "\": expected F32, BF16, F16 or F64, got ",
           st::name(tensor.dtype));
  }
}

st::Dtype stored_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return st::Dtype::F32;
    case at::kDouble:
      return st::Dtype::F64;
    case at::kBFloat16:
      return st::Dtype::BF16;
    case at::kHalf:
      return st::Dtype::F16;
    default:
      fail("write_weights: storage: expected fp32, bf16, fp16 or fp64, got ", dtype);
  }
}

}  // namespace

std::vector<TensorSpec> expected_tensors(const NetworkConfig& c) {
  Specs specs;
  if (c.video()) {
    specs.linear("text_proj", c.text_width, c.dim);
    if (c.learns_no_text()) specs.add("no_text", {c.dim});
  } else {
    specs.add("classes_emb.weight", {c.classes + 1, c.dim});
  }
  specs.linear("time_emb.0", c.time_inputs(), c.time_hidden());
  specs.linear("time_emb.2", c.time_hidden(), c.dim);
  if (c.video())
    specs.add("in_conv.weight", {c.dim, c.channels, c.patch_time, c.patch, c.patch});
  else
    specs.add("in_conv.weight", {c.dim, c.channels, c.patch, c.patch});
  specs.add("in_conv.bias", {c.dim});
  for (std::int64_t i = 0; i < c.depth; ++i) add_layer(specs, "layers." + std::to_string(i) + ".", c);
  specs.linear("out_mod.1", c.dim, 2 * c.dim);
  specs.linear("out_proj", c.dim, c.outputs());
  return specs.take();
}

Weights initial_weights(const NetworkConfig& config, std::uint64_t seed) {
  check_config(config, "initial_weights: ");
  Weights weights;
  std::uint32_t place = 0;  // a tensor's noise is that of its place in the network
  for (const TensorSpec& spec : expected_tensors(config))
    weights[spec.name] = initial(spec, config, {seed, noise_for::weights, place++});
  return weights;
}

void check_weights(const Weights& weights, const NetworkConfig& config, std::string_view where) {
  std::vector<Found> found;
  for (const auto& [name, tensor] : weights) found.push_back({name, tensor.sizes().vec()});
  account(found, config, where);
}

void check_weights(const st::Header& header, const NetworkConfig& config, std::string_view where) {
  std::vector<Found> found;
  for (const st::TensorInfo& tensor : header.tensors()) found.push_back({tensor.name, tensor.shape});
  account(found, config, where);
}

Weights read_weights(const std::filesystem::path& path, const NetworkConfig& config,
                     std::optional<at::ScalarType> dtype) {
  return read_weights(st::Reader(path), config, dtype);
}

Weights read_weights(const st::Reader& file, const NetworkConfig& config, std::optional<at::ScalarType> dtype,
                     io::Sha256* hash) {
  check_weights(file.header(), config, file.file());
  if (hash != nullptr) hash->update(file.head());
  Weights weights;
  for (const st::TensorInfo& tensor : file.header().tensors()) {  // in the order of the data
    if (derived(tensor.name)) {
      if (hash != nullptr) hash->update(file.read(tensor.name).span());
      continue;
    }
    at::Tensor values = at::empty(tensor.shape, torch_dtype(tensor, file.file()));
    const std::span<std::byte> bytes(static_cast<std::byte*>(values.data_ptr()), values.nbytes());
    file.read(tensor, bytes);
    if (hash != nullptr) hash->update(bytes);
    weights[tensor.name] = dtype ? values.to(*dtype) : values;
  }
  return weights;
}

void write_weights(const std::filesystem::path& path, const Weights& weights,
                   std::optional<at::ScalarType> storage, const io::safetensors::Metadata& metadata) {
  std::vector<at::Tensor> kept;
  std::vector<st::TensorView> views;
  for (const auto& [name, tensor] : weights) {
    kept.push_back(tensor.detach().to(at::kCPU, storage.value_or(tensor.scalar_type())).contiguous());
    const at::Tensor& values = kept.back();
    views.push_back({name,
                     stored_dtype(values.scalar_type()),
                     {values.sizes().data(), values.sizes().size()},
                     {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}});
  }
  st::write(path, views, metadata.empty() ? std::nullopt : std::optional(metadata));
}

}  // namespace pom::models
